"""Models of any other use."""
