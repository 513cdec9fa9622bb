"""Whisper: recordings of any length, window by window, to text with times and a language."""
