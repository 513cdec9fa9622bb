"""SpeechBrain's ECAPA-TDNN, which embeds voices."""
