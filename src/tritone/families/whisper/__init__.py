"""Whisper, of transformers' folders and of OpenAI's own checkpoints: from checkpoint to bundle."""
