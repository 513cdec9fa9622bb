"""Networks that tell speakers apart."""
