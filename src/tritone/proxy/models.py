"""What the proxy must know about models, read from Triton and kept for some seconds.

A model may be loaded again with another configuration at any time, so nothing is kept for long.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from tritone.net.refusal import AGAIN_S, UNKNOWN, UNREADY, RefusedError
from tritone.net.unready import LOST, NOT_READY
from tritone.proxy.checks import ModelFacts, outward
from tritone.proxy.upstream import HttpUpstream

KEPT_S = 5.0
MAX_KEPT = 1024


class Models:
    """Facts about models by name."""

    def __init__(self, upstream: HttpUpstream, headers: Mapping[str, str]) -> None:
        self._upstream = upstream
        self._headers = headers
        self._kept: dict[str, tuple[float, asyncio.Future[ModelFacts]]] = {}

    def forget(self) -> None:
        """Read everything again."""
        self._kept.clear()

    async def fresh(self, model: str) -> ModelFacts:
        """The facts as they are now; raises as `facts`."""
        self._kept.pop(model, None)
        return await self.facts(model)

    async def unready(self, model: str, message: str) -> RefusedError | None:
        """What a client gets for Triton's error about a model that cannot answer now; None of all other errors."""
        if LOST.search(message):
            return _later(model, "it lost its process, and is loaded again")
        if NOT_READY.search(message):
            try:
                await self.fresh(model)
            except RefusedError as refusal:
                return refusal
            return _later(model, "it was loaded just now")
        return None

    async def facts(self, model: str) -> ModelFacts:
        """Raises `RefusedError` if Triton does not know the model, or has it not ready, or does not answer."""
        kept = self._kept.get(model)
        if kept is None or time.monotonic() - kept[0] > KEPT_S or (kept[1].done() and kept[1].exception() is not None):
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            kept = self._kept[model] = time.monotonic(), asyncio.ensure_future(self._read(model))
        try:
            # The first who asks may go away, the others still want the answer.
            return await asyncio.shield(kept[1])
        except RefusedError:
            self._kept.pop(model, None)  # names that do not exist would fill the table
            raise

    async def _read(self, model: str) -> ModelFacts:
        answer = await self._upstream.request("GET", f"/v2/models/{model}/config", self._headers)
        if answer.status == 200:
            return facts_of(model, json.loads(answer.body))
        message = answer.error or f"model '{model}' is not known"
        if NOT_READY.search(message) and await self._exists(model):
            raise _later(model, "it is being loaded, or was unloaded")
        raise RefusedError(UNKNOWN, outward(message))

    async def _exists(self, model: str) -> bool:
        """Whether a repository has the model; Triton remembers those that were removed."""
        answer = await self._upstream.request("POST", "/v2/repository/index", self._headers)
        return answer.status != 200 or any(each["name"] == model for each in json.loads(answer.body))


def _later(model: str, why: str) -> RefusedError:
    return RefusedError(UNREADY, f"model '{model}' is not ready: {why}. Try again in {AGAIN_S:g} s.", AGAIN_S)


def facts_of(name: str, config: Mapping[str, Any]) -> ModelFacts:
    """Pick the facts from a configuration as Triton's HTTP API writes it."""
    parameters = {key: value.get("string_value", "") for key, value in config.get("parameters", {}).items()}
    inputs, outputs = (
        {each["name"]: each.get("data_type", "") for each in config.get(side, ())} for side in ("input", "output")
    )
    # the first input of samples, and the same as 16-bit numbers; lengths and the like have other types
    audio = [
        *[name for name, kind in inputs.items() if kind == "TYPE_FP32"][:1],
        *[name for name, kind in inputs.items() if kind == "TYPE_INT16"],
    ]
    rate = _number(parameters.get("sample_rate"))
    idle_us = _number(str(config.get("sequence_batching", {}).get("max_sequence_idle_microseconds", "")))
    return ModelFacts(
        name=name,
        inputs=inputs,
        outputs=outputs,
        sample_rate=round(rate) if rate and audio else None,
        audio_inputs=tuple(audio),
        max_queued_s=_number(parameters.get("max_queued_s")),
        decoupled=bool(config.get("model_transaction_policy", {}).get("decoupled")),
        idle_s=None if idle_us is None else idle_us / 1e6,
    )


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if number > 0 else None
