"""Graphs run by torch: exported programs and TorchScript."""
