"""Moonshine: from a folder of transformers to a bundle."""
