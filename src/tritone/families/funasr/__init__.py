"""FunASR's models: SenseVoice-Small and Paraformer."""
