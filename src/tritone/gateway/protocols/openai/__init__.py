"""The protocols of OpenAI's clients: REST for recordings, Realtime for live streams."""
