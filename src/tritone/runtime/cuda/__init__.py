"""NVIDIA GPUs: torch as their memory, their streams and loops on them, turns of processes, and TensorRT's library."""
