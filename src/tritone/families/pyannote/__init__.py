"""Segmentation networks of pyannote.audio: who of a few speakers talks in each frame of a window."""
