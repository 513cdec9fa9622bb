"""Bundles of kind generic, made of graphs and functions as they are: a module for each source."""
