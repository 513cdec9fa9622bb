"""Text to speech: text -> sentences -> phonemes -> waveforms."""
