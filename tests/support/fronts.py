"""A front before a real server, as a proxy is: it passes requests on, first refuses some, and remembers what it saw.

with Front(server, "http", refusals=[Refuse("UNAVAILABLE", "no room", after_s=0.2)]) as front:
    Client(front.url, ...)
    front.seen[0].headers
"""

import json
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from tritone.net.http_client import HttpConnections
from tritone.net.http_server import HttpServer, Receive, Response, Scope, Send
from tritone.net.limits import LeastRate
from tritone.net.loop_thread import LoopThread
from tritone.net.upload import Upload
from tritone.server import TritonServer, free_ports

HTTP_STATUS = {"INVALID_ARGUMENT": 400, "NOT_FOUND": 404, "INTERNAL": 500, "UNAVAILABLE": 503}
INFER = "/inference.GRPCInferenceService/ModelInfer"
HOP = ("host", "content-length", "connection", "transfer-encoding", "content-type")


@dataclass(frozen=True)
class Refuse:
    """A refusal of an inference: gRPC's name of the status, message, and in how many seconds there may be room.

    `DROP` breaks the connection in place of an answer.
    """

    status: str
    message: str = "no room"
    after_s: float | None = None


DROP = Refuse("UNAVAILABLE", "Socket closed")  # as gRPC says it


@dataclass(frozen=True)
class Seen:
    """A request: what it asked for, its headers or metadata, and the parameters of an inference."""

    path: str
    headers: Mapping[str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerTls:
    """PEM files of a server; with `clients`, it wants certificates that this authority signed."""

    certificate: str
    private_key: str
    clients: str | None = None


class Front:
    """A proxy of one protocol in this process, on a free port of 127.0.0.1."""

    def __init__(
        self,
        server: TritonServer | None,
        protocol: str,
        *,
        refusals: list[Refuse] | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._protocol, self._tls = protocol, tls
        # Without a server behind it, there is still one to connect to.
        self._behind = server or SimpleNamespace(http_address="127.0.0.1:1", grpc_address="127.0.0.1:1")
        (self.port,) = free_ports(1)
        self.refusals = refusals or []
        self.seen: list[Seen] = []

    @property
    def url(self) -> str:
        return f"{self._protocol}{'s' if self._tls else ''}://localhost:{self.port}"

    @property
    def inferences(self) -> list[Seen]:
        return [each for each in self.seen if each.path.endswith(("/infer", "/ModelInfer"))]

    def __enter__(self) -> "Front":
        self._start_grpc() if self._protocol == "grpc" else self._start_http()
        return self

    def __exit__(self, *_: object) -> None:
        if self._protocol == "grpc":
            self._server.stop(0).wait()
            self._channel.close()
        else:
            self._thread.close(self._stop_http)

    # --- gRPC ---------------------------------------------------------------------------------------------------------

    def _start_grpc(self) -> None:
        self._channel = grpc.insecure_channel(self._behind.grpc_address, [("grpc.use_local_subchannel_pool", 1)])
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[_Handler(self)], options=[("grpc.so_reuseport", 0)])
        address = f"127.0.0.1:{self.port}"
        if self._tls is None:
            self._server.add_insecure_port(address)
        else:
            pairs = [(_content(self._tls.private_key), _content(self._tls.certificate))]
            wanted = None if self._tls.clients is None else _content(self._tls.clients)
            secure = grpc.ssl_server_credentials(pairs, wanted, require_client_auth=wanted is not None)
            self._server.add_secure_port(address, secure)
        self._server.start()

    def answer_grpc(self, method: str, message: bytes, context: grpc.ServicerContext) -> bytes:
        headers = {each.key: each.value for each in context.invocation_metadata()}
        request = pb.ModelInferRequest.FromString(message) if method == INFER else pb.ModelInferRequest()
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in request.parameters.items()
        }
        self.seen.append(Seen(method, headers, parameters))
        if method == INFER and self.refusals:
            refusal = self.refusals.pop(0)
            if refusal.after_s is not None:
                context.set_trailing_metadata((("retry-after-ms", str(round(1000 * refusal.after_s))),))
            context.abort(grpc.StatusCode[refusal.status], refusal.message)
        try:
            return self._channel.unary_unary(method)(message, timeout=context.time_remaining())
        except grpc.RpcError as error:
            context.abort(error.code(), error.details())
        raise AssertionError

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    def _start_http(self) -> None:
        self._thread = LoopThread("front")
        self._thread.submit(self._listen).result(10)

    async def _listen(self) -> None:
        context = None
        if self._tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._tls.certificate, self._tls.private_key)
            if self._tls.clients is not None:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(self._tls.clients)
        host, _, port = self._behind.http_address.rpartition(":")
        self._connections = HttpConnections(host, int(port))
        self._web = HttpServer(self._answer_http, idle_s=60.0)
        await self._web.start(host="127.0.0.1", port=self.port, tls=context)

    async def _stop_http(self) -> None:
        await self._web.stop(0.0)
        self._connections.close()

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        upload = Upload(scope, receive, max_bytes=2**26, rate=LeastRate(grace_s=600.0, bytes_per_s=1.0))
        content = b"".join([part async for part in upload.parts()])
        path = scope["raw_path"].decode()
        is_inference = path.endswith("/infer")
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        length = headers.get("inference-header-content-length")
        header = json.loads(content[: None if length is None else int(length)]) if is_inference else {}
        self.seen.append(Seen(path, headers, header.get("parameters", {})))
        if is_inference and self.refusals:
            refusal = self.refusals.pop(0)
            if refusal is DROP:
                scope["state"]["connection"].transport.abort()
                return
            hint = {} if refusal.after_s is None else {"retry-after": f"{refusal.after_s:g}"}
            status = HTTP_STATUS[refusal.status]
            await Response.of_json({"error": refusal.message}, status, hint)(scope, receive, send)
            return
        passed_on = {name: value for name, value in headers.items() if name not in HOP}
        answer = await self._connections.request(scope["method"], path, passed_on, content)
        kept = {name: value for name, value in answer.headers.items() if name not in HOP}
        await Response(answer.status, answer.body, kept)(scope, receive, send)


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, front: Front) -> None:
        self._front = front

    def service(self, details: Any) -> Any:
        method = details.method
        return grpc.unary_unary_rpc_method_handler(
            lambda message, context: self._front.answer_grpc(method, message, context)
        )


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
