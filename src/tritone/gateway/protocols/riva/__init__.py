"""The protocol for clients of NVIDIA Riva: `nvidia.riva.asr.RivaSpeechRecognition` over gRPC, on a port of its own.

server = await serve(gateway, "127.0.0.1:50051")   a grpc.aio server in the gateway's event loop; `await server.stop(1)`
"""

from tritone.gateway.protocols.riva.server import serve

__all__ = ["serve"]
