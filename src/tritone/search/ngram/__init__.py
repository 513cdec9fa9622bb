"""N-gram language models: reading them, and scoring with them."""
