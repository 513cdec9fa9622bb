"""The protocols for clients of NVIDIA Riva: gRPC on a port of its own, and Realtime sessions over HTTP and a WebSocket.

server = await serve(gateway, "127.0.0.1:50051")   `nvidia.riva.asr.RivaSpeechRecognition`, in the gateway's event loop
"""

from tritone.gateway.protocols.riva.realtime import session_routes as routes
from tritone.gateway.protocols.riva.server import serve

__all__ = ["routes", "serve"]
