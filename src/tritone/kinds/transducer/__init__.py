"""Transducers."""
