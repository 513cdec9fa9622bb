"""What the proxy must know about models, read from Triton and kept for some seconds.

A model may be loaded again with another configuration at any time, so nothing is kept for long.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from tritone.net.refusal import UNKNOWN, RefusedError
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

    async def facts(self, model: str) -> ModelFacts:
        """Raises `RefusedError` if Triton does not know the model, or does not answer."""
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
        if answer.status != 200:
            raise RefusedError(UNKNOWN, outward(answer.error or f"model '{model}' is not known"))
        return facts_of(model, json.loads(answer.body))


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
