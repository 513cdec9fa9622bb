"""Recordings and lists of them: Kaldi folders, manifests, folders of audio, the shipped clips."""
