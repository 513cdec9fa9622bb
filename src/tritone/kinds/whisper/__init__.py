"""Whisper models."""
