"""The management API of a running server, used with the server's own key."""

import json
from typing import Any
from urllib.parse import quote

from tritone.errors import ServerSetupError, ServerUnreachableError
from tritone.keys import GRPC_HEADER, HTTP_HEADER
from tritone.net.fetch import fetch
from tritone.server.options import ServerOptions

TIMEOUT_S = 10.0
LIVE_TIMEOUT_S = 5.0
# A model that cannot load. No repository has it: the names that `tritone build` takes begin with a letter or a digit.
UNREADY = "_draining"


class Control:
    """Asks the server at the HTTP port of `options`. What does not answer is a `ServerUnreachableError`."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options

    def is_ready(self) -> bool:
        """Whether the server answers, and has all its models."""
        try:
            return self._ask("GET", "/v2/health/ready", timeout_s=5)[0] == 200
        except ServerUnreachableError:
            return False

    def is_live(self) -> bool:
        """Whether the server answers at all."""
        try:
            return self._ask("GET", "/v2/health/live", timeout_s=LIVE_TIMEOUT_S)[0] == 200
        except ServerUnreachableError:
            return False

    def models(self, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
        """The models of the repository: `name`, `version`, `state`, and `reason` if it has one; by name."""
        status, body = self._ask("POST", "/v2/repository/index", timeout_s=timeout_s)
        if status != 200:
            raise ServerUnreachableError(f"the server does not list its models: {body[:200]}")
        found: list[dict[str, Any]] = json.loads(body)
        return sorted(found, key=lambda model: model["name"])

    def process_count(self, model: str) -> int:
        """How many processes Triton's Python backend runs of each version of a model that is ready."""
        status, body = self._ask("GET", f"/v2/models/{quote(model, safe='')}/config")
        config = json.loads(body) if status == 200 else {}
        if config.get("backend") != "python":
            return 0
        return sum(each["count"] * max(1, len(each.get("gpus", ()))) for each in config.get("instance_group", ()))

    def unload(self, model: str) -> None:
        """Refuse new requests to a model; it ends once those in flight are answered. Does not wait."""
        self._change(model, "unload", {}, TIMEOUT_S)

    def load(self, model: str, timeout_s: float) -> None:
        """Load a model as its files are now; returns when it is ready.

        Raises:
            ServerSetupError: it does not load; says why.
        """
        if not self._options.has_grpc:
            self._change(model, "load", {}, timeout_s)
            return
        # By HTTP, Triton 2.51 loads in a thread that has connections of others, and they wait until it is done.
        import grpc  # takes a moment, and most servers never load a model again
        from tritonclient.grpc import service_pb2 as pb
        from tritonclient.grpc import service_pb2_grpc

        request, key = pb.RepositoryModelLoadRequest(model_name=model), ((GRPC_HEADER, self._options.key),)
        with grpc.insecure_channel(self._options.address("grpc"), [("grpc.enable_http_proxy", 0)]) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                stub.RepositoryModelLoad(request, timeout=timeout_s, metadata=key)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise ServerUnreachableError(f"tritonserver does not answer ({error.details()})") from error
                raise ServerSetupError(f"model '{model}' cannot be loaded: {error.details()[:2000]}") from error

    def refuse_readiness(self) -> None:
        """Make the server say from now on that it is not ready, without a change to its models."""
        # Triton is ready if every model is that was ever to be loaded; one that was unloaded does not count.
        config = {"name": UNREADY, "backend": "none", "max_batch_size": 0}
        files = {"config": json.dumps(config), "file:1/model.py": ""}
        try:
            self._change(UNREADY, "load", {"parameters": files}, TIMEOUT_S)
        except ServerSetupError:
            return
        raise AssertionError("a model without a backend was loaded")

    def _change(self, model: str, how: str, body: Any, timeout_s: float) -> None:
        path = f"/v2/repository/models/{quote(model, safe='')}/{how}"
        status, answer = self._ask("POST", path, json.dumps(body), timeout_s)
        if status != 200:
            raise ServerSetupError(f"model '{model}' cannot be {how}ed: {answer[:2000]}")

    def _ask(self, method: str, path: str, body: str = "", timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
        url = f"http://{self._options.address('http')}{path}"
        try:
            answer = fetch(
                url, method=method, body=body.encode(), headers={HTTP_HEADER: self._options.key}, timeout_s=timeout_s
            )
        except OSError as error:
            raise ServerUnreachableError(f"tritonserver does not answer ({error})") from error
        return answer.status, answer.body.decode(errors="replace")
