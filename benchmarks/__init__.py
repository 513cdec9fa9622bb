"""Measurements of Tritone, each one command; results and conditions in docs/performance."""
