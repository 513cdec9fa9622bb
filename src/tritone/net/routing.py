"""The routing key of a stream: what a proxy in front of several servers reads to send all of it to one of them.

Every request of a stream carries it, as an HTTP header or as gRPC metadata; see docs/operations/routing.md.
"""

import secrets

STREAM_HEADER = "x-tritone-stream"
MAX_STREAM_KEY = 64  # printable ASCII characters


def new_stream_key() -> str:
    """A key that no other stream has, and nobody can guess."""
    return secrets.token_hex(16)
