"""Speaker models."""
