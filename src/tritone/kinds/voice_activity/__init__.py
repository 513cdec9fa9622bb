"""Voice activity detectors."""
