"""Networks that tell the speakers of a window apart."""
