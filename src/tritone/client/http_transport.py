"""Talking to Triton by HTTP: one background thread runs an event loop for all requests and connections."""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import aiohttp

from tritone.client.endpoint import Endpoint
from tritone.client.failure import Refusal, explain, seconds_of
from tritone.client.http_message import JSON_LENGTH, HttpReply, inference_request
from tritone.client.transport import Call
from tritone.errors import OperatorError, ServerUnreachableError
from tritone.net.loop_thread import LoopThread

if TYPE_CHECKING:
    from tritone.client.regions import Region

Answer = TypeVar("Answer")
Reply = TypeVar("Reply")

NO_LIMIT = 0  # connections; the caller's concurrency decides
MAX_MESSAGE = 500  # characters of an answer that is not Triton's JSON, such as a proxy's page


def open_connector(endpoint: Endpoint) -> aiohttp.TCPConnector:
    """What opens and keeps connections to this server, any number of them."""
    if endpoint.tls:
        return aiohttp.TCPConnector(limit=NO_LIMIT, ssl=endpoint.files.context())
    return aiohttp.TCPConnector(limit=NO_LIMIT)


class HttpTransport:
    """See `Transport`. Thread-safe: the calling threads only hand work to the loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._base = f"http{'s' if endpoint.tls else ''}://{endpoint.address}/v2/"
        self._thread = LoopThread("tritone-http")
        # aiohttp wants its session to be born inside the loop that will use it.
        self._session = self._thread.submit(self._connect()).result()

    async def _connect(self) -> aiohttp.ClientSession:
        # Triton would compress its few bytes, which costs the server more than it saves.
        headers = {"Accept-Encoding": "identity", **self._endpoint.headers}
        # Time limits are set for each request below, so the session itself has none.
        return aiohttp.ClientSession(
            connector=open_connector(self._endpoint), headers=headers, timeout=aiohttp.ClientTimeout(total=None)
        )

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        return self._submit(partial(self._infer, call), f"model '{call.model}'", call.timeout_s)

    async def _infer(self, call: Call[Answer]) -> Answer:
        path, headers, body = inference_request(call)
        answer, length = await self._ask("POST", path, body, headers)
        return read_reply(call, answer, length, self._endpoint)

    async def _ask(
        self, method: str, path: str, content: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[bytes, str | None]:
        """The answer, and the length of its JSON where tensors follow; raises `Refusal`."""
        async with self._session.request(method, self._base + path, data=content, headers=headers) as response:
            answer = await response.read()
        if response.status != 200:
            hint_s = seconds_of(response.headers.get("Retry-After"))
            raise Refusal(str(response.status), message_in(answer), hint_s)
        return answer, response.headers.get(JSON_LENGTH)

    async def _json(self, method: str, path: str) -> Any:
        answer, _ = await self._ask(method, path)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise _foreign(self._endpoint, error) from error

    def statistics(self, model: str, timeout_s: float) -> list[dict[str, Any]]:
        path = f"models/{quote(model, safe='')}/stats" if model else "models/stats"
        task = f"read the statistics of model '{model}'" if model else "list the models"
        return list(self._submit(partial(self._json, "GET", path), task, timeout_s).result()["model_stats"])

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        return list(
            self._submit(partial(self._json, "POST", "repository/index"), "list the models", timeout_s).result()
        )

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        task = f"read the configuration of model '{model}'"
        path = f"models/{quote(model, safe='')}/config"
        return dict(self._submit(partial(self._json, "GET", path), task, timeout_s).result())

    def load(self, model: str, timeout_s: float) -> None:
        self._change(model, "load", {}, timeout_s)

    def unload(self, model: str, stages: bool, timeout_s: float) -> None:
        self._change(model, "unload", {"unload_dependents": stages}, timeout_s)

    def _change(self, model: str, how: str, parameters: dict[str, Any], timeout_s: float) -> None:
        path = f"repository/models/{quote(model, safe='')}/{how}"
        body = json.dumps({"parameters": parameters}).encode()
        self._submit(partial(self._ask, "POST", path, body), f"{how} model '{model}'", timeout_s).result()

    def register(self, region: "Region", timeout_s: float) -> None:
        fields = {
            name: {"b64": b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in region.registration.items()
        }
        path = f"{region.memory}sharedmemory/region/{region.name}/register"
        self._memory_call("POST", path, timeout_s, json.dumps(fields).encode())

    def unregister(self, region: str, memory: str, timeout_s: float) -> None:
        self._memory_call("POST", f"{memory}sharedmemory/region/{quote(region, safe='')}/unregister", timeout_s)

    def regions(self, memory: str, timeout_s: float) -> list[str]:
        content, _ = self._memory_call("GET", f"{memory}sharedmemory/status", timeout_s)
        return [each["name"] for each in json.loads(content)]

    def _memory_call(self, method: str, path: str, timeout_s: float, content: bytes | None = None) -> Any:
        return self._submit(partial(self._ask, method, path, content), "shared memory", timeout_s).result()

    def close(self) -> None:
        self._thread.close(self._shut())

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._session.close()

    def _submit(self, work: Callable[[], Coroutine[Any, Any, Reply]], task: str, timeout_s: float) -> "Future[Reply]":
        with self._thread.lock:
            if self._thread.closed:
                raise ServerUnreachableError(f"{self._endpoint}: {task}: this client has been closed")
            return self._thread.submit(self._limit(work, task, timeout_s))

    async def _limit(self, work: Callable[[], Coroutine[Any, Any, Reply]], task: str, timeout_s: float) -> Reply:
        # The coroutine is made here: the caller's would never be awaited if this is cancelled before it begins.
        try:
            return await asyncio.wait_for(work(), timeout_s)
        except (TimeoutError, Refusal, aiohttp.ClientError, OSError) as error:
            raise explain(error, self._endpoint, task, timeout_s) from error


def read_reply(call: Call[Answer], body: bytes, json_length: str | None, endpoint: Endpoint) -> Answer:
    """The answer to a request; raises `OperatorError` if it is none."""
    try:
        reply = HttpReply(body, json_length)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(endpoint, error) from error
    return call.read(reply, endpoint)


def _foreign(endpoint: Endpoint, error: Exception) -> OperatorError:
    return OperatorError(f"{endpoint}: what answers there is not Triton ({error}). Is the address right?")


def message_in(answer: bytes) -> str:
    """Why a server refused: Triton's error, or the title of a page."""
    text = answer.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        page = re.search("<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)  # of a proxy
        return (page[1].strip() if page else text)[:MAX_MESSAGE]
