"""What the rest may know of the protocols of sherpa-onnx's WebSocket servers."""

from tritone.gateway.protocol import Protocol

PROTOCOL = (
    Protocol(
        name="sherpa_onnx",
        package=__package__,
        what="sherpa-onnx's online server: live streams.",
        page="docs/applications/gateway-websocket.md",
        paths=("/sherpa-onnx",),
        routes=("online:routes",),
        port="Port for clients of sherpa-onnx's online WebSocket server, such as 6006.",
    ),
    Protocol(
        name="sherpa_onnx_offline",
        package=__package__,
        what="sherpa-onnx's offline server: whole recordings by a WebSocket.",
        page="docs/applications/gateway-websocket.md",
        paths=("/sherpa-onnx-offline",),
        routes=("offline:routes",),
        port="Port for clients of sherpa-onnx's offline WebSocket server.",
    ),
)
