"""Encoder-decoders without windows of one length."""
