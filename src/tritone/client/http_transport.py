"""Talking to Triton by HTTP: one background thread runs an event loop for all requests and connections."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import aiohttp
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.http import aio as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tritone.client.endpoint import Endpoint
from tritone.client.failure import explain
from tritone.client.loop_thread import LoopThread
from tritone.client.transport import Call
from tritone.errors import ServerUnreachableError

Answer = TypeVar("Answer")
Reply = TypeVar("Reply")

NO_LIMIT = 0  # connections; the caller's concurrency decides


class HttpTransport:
    """See `Transport`. Thread-safe: the calling threads only hand work to the loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._thread = LoopThread("tritone-http")
        # aiohttp wants its session to be born inside the loop that will use it.
        self._client = self._thread.submit(self._connect()).result()

    async def _connect(self) -> triton.InferenceServerClient:
        # Time limits are set per request below, so the session itself has none.
        return triton.InferenceServerClient(
            self._endpoint.address, conn_limit=NO_LIMIT, conn_timeout=None, ssl=self._endpoint.tls
        )

    def infer(self, call: Call[Answer]) -> Future[Answer]:
        return self._submit(self._infer(call), f"model '{call.model}'", call.timeout_s)

    async def _infer(self, call: Call[Answer]) -> Answer:
        inputs = []
        for name, tensor in call.tensors.items():
            inputs.append(InferInput(name, tensor.shape, np_to_triton_dtype(tensor.dtype)))
            inputs[-1].set_data_from_numpy(tensor)
        reply = await self._client.infer(
            call.model,
            inputs,
            outputs=[InferRequestedOutput(name) for name in call.reply.outputs],
            sequence_id=call.sequence_id,
            sequence_start=call.start,
            sequence_end=call.end,
            parameters=dict(call.parameters),
        )
        return call.read(reply, self._endpoint)

    def model_index(self, timeout_s: float) -> list[dict[str, Any]]:
        return self._submit(self._client.get_model_repository_index(), "list the models", timeout_s).result()

    def model_config(self, model: str, timeout_s: float) -> dict[str, Any]:
        task = f"read the configuration of model '{model}'"
        return self._submit(self._client.get_model_config(model), task, timeout_s).result()

    def close(self) -> None:
        self._thread.close(self._shut())

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()

    def _submit(self, work: Coroutine[Any, Any, Reply], task: str, timeout_s: float) -> "Future[Reply]":
        with self._thread.lock:
            if self._thread.closed:
                work.close()
                raise ServerUnreachableError(f"{self._endpoint}: {task}: this client has been closed")
            return self._thread.submit(self._limit(work, task, timeout_s))

    async def _limit(self, work: Coroutine[Any, Any, Reply], task: str, timeout_s: float) -> Reply:
        try:
            return await asyncio.wait_for(work, timeout_s)
        except (InferenceServerException, aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raise explain(error, self._endpoint, task, timeout_s) from error
