"""Voices of Piper."""
