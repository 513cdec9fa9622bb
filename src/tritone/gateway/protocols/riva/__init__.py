"""The protocols of NVIDIA Riva's clients: gRPC on a port of its own, Realtime sessions over HTTP and a WebSocket."""
