"""Load from several processes."""
