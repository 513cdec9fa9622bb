"""Talking to Triton by HTTP: one background thread runs an event loop for all requests and connections."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from tritone.client.endpoint import Endpoint
from tritone.client.event_stream import DATA, Events, generate_request
from tritone.client.failure import Refusal, explain, seconds_of
from tritone.client.http_message import JSON_LENGTH, HttpReply, inference_request
from tritone.client.transport import Call
from tritone.errors import OperatorError, ServerUnreachableError
from tritone.net.http_client import HttpAnswer, HttpConnections
from tritone.net.loop_thread import LoopThread

if TYPE_CHECKING:
    from tritone.client.regions import Region

Answer = TypeVar("Answer")
Reply = TypeVar("Reply")

MAX_MESSAGE = 500  # characters of an answer that is not Triton's JSON, such as a proxy's page


class HttpServices:
    """The services of one server below /v2/, for one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._path = f"{endpoint.path}/v2/"
        # Triton would compress its few bytes, which costs the server more than it saves.
        plain = {"Content-Type": "application/octet-stream", "Accept-Encoding": "identity"}
        self._headers = {**plain, **endpoint.headers}
        self._connections = HttpConnections(
            endpoint.host, endpoint.port, endpoint.files.context() if endpoint.tls else None
        )

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
        on_part: Callable[[bytes], None] | None = None,
    ) -> HttpAnswer:
        """The answer to a request that was taken; `on_part` as of `HttpConnections.request`.

        Raises:
            Refusal: the server did not take it.
            OSError, TimeoutError: as `HttpConnections.request`.
        """
        all_headers = {**self._headers, **(headers or {})}
        answer = await self._connections.request(
            method, self._path + path, all_headers, body, timeout_s=timeout_s, on_part=on_part
        )
        if answer.status != 200:
            hint_s = seconds_of(answer.headers.get("retry-after"))
            raise Refusal(str(answer.status), answer.headers.get("location") or message_in(answer.body), hint_s)
        return answer

    def close(self) -> None:
        self._connections.close()


class HttpTransport:
    """See `Transport`. Thread-safe: the calling threads only hand work to the loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._services = HttpServices(endpoint)
        self._thread = LoopThread("tritone-http")

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        return self._submit(partial(self._infer, call), f"model '{call.model}'", call.timeout_s)

    async def _infer(self, call: Call[Answer]) -> Answer:
        path, headers, body = inference_request(call)
        answer = await self._services.ask("POST", path, body, headers, timeout_s=call.timeout_s)
        return read_reply(call, answer, self._endpoint)

    def answers(self, call: Call[Answer]) -> Iterator[Answer]:
        path, headers, body = generate_request(call, self._endpoint)
        parts: SimpleQueue[bytes] = SimpleQueue()
        ask = partial(self._services.ask, "POST", path, body, headers, timeout_s=call.timeout_s, on_part=parts.put)
        asking = self._submit(ask, f"model '{call.model}'", call.timeout_s)
        asking.add_done_callback(lambda _: parts.put(b""))
        events = Events(call)
        try:
            while part := parts.get():
                yield from read_events(call, events, part, self._endpoint)
            asking.result()
        finally:
            asking.cancel()  # which closes the connection

    def _ask(self, method: str, path: str, task: str, timeout_s: float, body: bytes = b"") -> HttpAnswer:
        asking = partial(self._services.ask, method, path, body, timeout_s=timeout_s)
        return self._submit(asking, task, timeout_s).result()

    def _json(self, method: str, path: str, task: str, timeout_s: float) -> Any:
        try:
            return json.loads(self._ask(method, path, task, timeout_s).body)
        except ValueError as error:
            raise _foreign(self._endpoint, error) from error

    def statistics(self, model: str, timeout_s: float) -> list[dict[str, Any]]:
        path = f"models/{quote(model, safe='')}/stats" if model else "models/stats"
        task = f"read the statistics of model '{model}'" if model else "list the models"
        return list(self._json("GET", path, task, timeout_s)["model_stats"])

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        return list(self._json("POST", "repository/index", "list the models", timeout_s))

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        task = f"read the configuration of model '{model}'"
        path = f"models/{quote(model, safe='')}/config"
        return dict(self._json("GET", path, task, timeout_s))

    def load(self, model: str, timeout_s: float) -> None:
        self._change(model, "load", {}, timeout_s)

    def unload(self, model: str, stages: bool, timeout_s: float) -> None:
        self._change(model, "unload", {"unload_dependents": stages}, timeout_s)

    def _change(self, model: str, how: str, parameters: dict[str, Any], timeout_s: float) -> None:
        path = f"repository/models/{quote(model, safe='')}/{how}"
        body = json.dumps({"parameters": parameters}).encode()
        self._ask("POST", path, f"{how} model '{model}'", timeout_s, body)

    def register(self, region: "Region", timeout_s: float) -> None:
        fields = {
            name: {"b64": b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in region.registration.items()
        }
        path = f"{region.memory}sharedmemory/region/{region.name}/register"
        self._ask("POST", path, "shared memory", timeout_s, json.dumps(fields).encode())

    def unregister(self, region: str, memory: str, timeout_s: float) -> None:
        path = f"{memory}sharedmemory/region/{quote(region, safe='')}/unregister"
        self._ask("POST", path, "shared memory", timeout_s)

    def regions(self, memory: str, timeout_s: float) -> list[str]:
        return [each["name"] for each in self._json("GET", f"{memory}sharedmemory/status", "shared memory", timeout_s)]

    def close(self) -> None:
        self._thread.close(self._shut)

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._services.close()

    def _submit(self, work: Callable[[], Coroutine[Any, Any, Reply]], task: str, timeout_s: float) -> "Future[Reply]":
        with self._thread.lock:
            if self._thread.closed:
                raise ServerUnreachableError(f"{self._endpoint}: {task}: this client has been closed")
            return self._thread.submit(lambda: self._limit(work, task, timeout_s))

    async def _limit(self, work: Callable[[], Coroutine[Any, Any, Reply]], task: str, timeout_s: float) -> Reply:
        # The coroutine is made here: the caller's would never be awaited if this is cancelled before it begins.
        try:
            return await work()
        except (TimeoutError, Refusal, OSError) as error:
            raise explain(error, self._endpoint, task, timeout_s) from error


def read_events(call: Call[Answer], events: Events, part: bytes, endpoint: Endpoint) -> Iterator[Answer]:
    """The answers that are complete with a part of an event stream; raises errors of `tritone.errors`."""
    try:
        for reply in events.push(part):
            yield call.read(reply, endpoint)
    except Refusal as error:
        raise explain(error, endpoint, f"model '{call.model}'", call.timeout_s) from error
    except (ValueError, TypeError) as error:
        raise _foreign(endpoint, error) from error


def read_reply(call: Call[Answer], answer: HttpAnswer, endpoint: Endpoint) -> Answer:
    """The answer to a request; raises `OperatorError` if it is none."""
    try:
        reply = HttpReply(answer.body, answer.headers.get(JSON_LENGTH.lower()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(endpoint, error) from error
    return call.read(reply, endpoint)


def _foreign(endpoint: Endpoint, error: Exception) -> OperatorError:
    return OperatorError(f"{endpoint}: what answers there is not Triton ({error}). Is the address right?")


def message_in(answer: bytes) -> str:
    """Why a server refused: Triton's error, or the title of a page."""
    text = answer.removeprefix(DATA).decode("utf-8", "replace")  # an event, where events were asked for
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        page = re.search("<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)  # of a proxy
        return (page[1].strip() if page else text)[:MAX_MESSAGE]
