"""The gateway's own WebSocket."""
