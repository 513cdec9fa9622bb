"""Jasper and QuartzNet of NVIDIA's DeepLearningExamples (PyTorch/SpeechRecognition): from checkpoint to bundle."""
