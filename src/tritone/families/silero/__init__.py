"""Voice activity detection of silero-vad (versions 5 and 6): its ONNX file becomes a bundle. No torch."""
