"""The protocol of the clients of WeNet's WebSocket server."""
