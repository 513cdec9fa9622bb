"""Compiling numeric loops with numba, and what compiled code shares."""
