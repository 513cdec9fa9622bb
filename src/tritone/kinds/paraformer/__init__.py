"""Paraformers."""
