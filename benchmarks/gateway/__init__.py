"""What the gateway costs; see `__main__.py`."""
