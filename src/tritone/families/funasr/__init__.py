"""FunASR's models: SenseVoice-Small."""
