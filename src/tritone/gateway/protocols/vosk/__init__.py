"""The protocol of vosk-server's clients."""
