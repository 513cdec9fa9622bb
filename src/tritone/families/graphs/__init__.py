"""Graphs of any use as bundles: what is proposed of one, and how its bundle is written."""
