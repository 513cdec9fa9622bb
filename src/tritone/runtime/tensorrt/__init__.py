"""Engines run by TensorRT."""
