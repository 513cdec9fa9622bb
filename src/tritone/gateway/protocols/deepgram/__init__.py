"""The protocol of Deepgram's clients."""
