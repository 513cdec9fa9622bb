"""Vosk's protocol: what clients of vosk-server send to ws://HOST:2700, each message answered with one.

    {"config": {"sample_rate": 16000}}  int16 samples  ...  {"eof": 1}
        ->  {"partial": "one two"}  ...  {"result": [{"word": "one", "start": 0.1, ...}], "text": "one"}

Source: alphacep/vosk-server, websocket/asr_server.py and the clients beside it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.routing import BaseRoute

from tritone.audio.live import SampleStream
from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.live import Live
from tritone.gateway.refusal import ADDRESS, ErrorAnswer
from tritone.gateway.sockets import Socket, conversations, read_json
from tritone.paths import without_paths
from tritone.search.hotwords import FOREIGN
from tritone.transcript import Span, Transcript, joined, mean_confidence, rounded

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

PROTOCOL = "vosk"
DEFAULT_RATE = 8000  # Hz, as vosk-server has it where no other is given
UNKNOWN = "[unk]"  # in a list of phrases: other words are possible too, as they always are here
KEPT_S = 2.0  # of audio that is recognised again without phrases that no token writes
PHRASE_WEIGHT = 3.0  # of a phrase list, natural-log units: a preference that the audio can still overrule


Act = Callable[[Live], Awaitable[list[Event]]]


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a client may configure, with the defaults of vosk-server."""

    sample_rate: int = DEFAULT_RATE
    words: bool = True
    max_alternatives: int = 0
    phrase_list: tuple[str, ...] = ()
    model: str = ""

    def changed(self, config: Any) -> "Config":
        """This configuration with what a client sends; `InputError` names what is unknown or unfit."""
        if not isinstance(config, dict) or (set(config) - set(READERS)):
            raise InputError(f'"config" is an object that may have {", ".join(READERS)}; got {str(config)[:200]}')
        try:
            return replace(self, **{name: READERS[name](value) for name, value in config.items()})
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f'"config" has a value that cannot be used: {error}') from error

    def without(self, character: str) -> "Config":
        """This configuration without the phrases that have a character."""
        phrases = [each for each in self.phrase_list if character.casefold() not in each.casefold()]
        return replace(self, phrase_list=tuple(phrases))

    def ask(self, *, has_beam: bool) -> Ask:
        """What is asked of a model, which has a beam or searches greedily."""
        search: dict[str, Any] = {}
        if self.phrase_list:
            search["hotwords"] = {phrase: PHRASE_WEIGHT for phrase in self.phrase_list}
        if self.max_alternatives > 1 and has_beam:  # it is the most there may be, and greedy search has one
            search["nbest"] = self.max_alternatives
        return Ask(model=self.model, search=search, words="wanted" if self.words or self.max_alternatives else "none")


def _phrases(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"phrase_list must be a list of texts, got {str(value)[:80]}")
    return tuple(each for each in value if each != UNKNOWN)


READERS: Mapping[str, Any] = {
    "sample_rate": lambda value: int(float(value)),
    "words": bool,
    "max_alternatives": int,
    "phrase_list": _phrases,
    "model": str,
}


def routes(gateway: "Gateway", path: str = "/vosk") -> list[BaseRoute]:
    """The protocol at a path."""
    return [conversations(gateway, path, PROTOCOL, _talk, _complaint)]


def _complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
    return {"error": answer.message, "code": answer.code}


async def _talk(gateway: "Gateway", socket: Socket) -> None:
    config = Config().changed({name: socket.query[name] for name in ("sample_rate", "model") if name in socket.query})
    live: _Listening | None = None
    samples = SampleStream("<i2")
    partial_text = ""
    async with AsyncExitStack() as stack:
        while True:
            message = await socket.receive()
            if isinstance(message, str):
                fields = read_json(message)
                is_last = bool(fields.get("eof"))
                if "config" in fields:
                    if live is not None:
                        raise InputError('"config" comes before the audio; for another one, open another connection')
                    config = config.changed(fields["config"])
                    continue
                if not is_last and not fields.get("reset"):
                    raise InputError(
                        f'expected audio, {{"config": {{}}}}, {{"eof": 1}}, {{"reset": 1}}; got {message[:80]}'
                    )
                events = [] if live is None else await (live.finish() if is_last else live.commit())
                await socket.send(_result(_finals(events), config))
                if is_last:
                    return
                partial_text = ""
                continue
            if live is None:
                live = await stack.enter_async_context(_Listening(gateway, socket, config))
            events = await live.accept(samples.push(message))
            for event in events:
                if event.transcript is not None:
                    partial_text = event.transcript.text if event.kind == "partial" else ""
            finals = _finals(events)
            await socket.send({**(_result(finals, config) if finals else {"partial": partial_text}), **live.warning()})


class _Listening:
    """A live stream whose phrases are those that the model can spell: others are left out, as vosk-server does.

    The model says so with its first answer, so the audio until then is kept, and recognised again without them.
    """

    def __init__(self, gateway: "Gateway", socket: Socket, config: Config) -> None:
        self._gateway = gateway
        self._socket = socket
        self._config = config
        self._live: Live | None = None
        self._kept: list[Any] = []
        self._warning = ""

    async def __aenter__(self) -> "_Listening":
        self._live = await self._opened()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._live is not None:
            await self._live.close()

    async def accept(self, samples: Any) -> list[Event]:
        """As of `Live`."""
        if self._live is None or self._live.received_s > KEPT_S:
            self._kept.clear()
        else:
            self._kept.append(samples)
        return await self._answered(lambda live: live.accept(samples), is_audio=True)

    async def commit(self) -> list[Event]:
        return await self._answered(lambda live: live.commit())

    async def finish(self) -> list[Event]:
        return await self._answered(lambda live: live.finish())

    def warning(self) -> Mapping[str, str]:
        """A field for the next message about phrases that are left out, once; none if there are none."""
        before_it, self._warning = self._warning, ""
        return {"warning": before_it} if before_it else {}

    async def _opened(self) -> Live:
        model = await self._gateway.speech.live_model(self._config.model)
        ask = replace(self._config.ask(has_beam=model.has_beam), turns=self._gateway.speech.turns)
        return await self._gateway.speech.open(ask, self._config.sample_rate, self._socket.caller)

    async def _answered(self, asked: Act, *, is_audio: bool = False) -> list[Event]:
        ask = asked
        while True:
            assert self._live is not None
            try:
                return await ask(self._live)
            except InputError as error:
                found = FOREIGN.search(str(error))
                left = self._config if found is None else self._config.without(found[1])
                if left.phrase_list == self._config.phrase_list or not self._kept:
                    raise
                self._config = left
                reason = without_paths(ADDRESS.sub("", str(error)))
                self._warning = self._warning or f"phrases are left out: {reason}"
                await self._live.close()
                self._live = await self._opened()
                ask = partial(_again, np.concatenate(self._kept), None if is_audio else asked)


async def _again(kept: Any, then: Act | None, live: Live) -> list[Event]:
    events = await live.accept(kept)
    return events if then is None else events + await then(live)


def _finals(events: Sequence[Event]) -> list[Transcript]:
    return [each.transcript for each in events if each.kind == "final" and each.transcript is not None]


def _result(finals: Sequence[Transcript], config: Config) -> Mapping[str, Any]:
    """What was said since the last result: of several utterances that ended with one message, as of one."""
    if config.max_alternatives and len(finals) == 1:
        (final,) = finals
        readings = final.alternatives[: config.max_alternatives] or (final,)
        return {
            "alternatives": [
                {"confidence": each.confidence, "result": _words(each.words), "text": each.text} for each in readings
            ]
        }
    words = [word for final in finals for word in final.words]
    text = reduce(joined, (final.text for final in finals), "")
    if config.max_alternatives:
        return {"alternatives": [{"confidence": mean_confidence(words), "result": _words(words), "text": text}]}
    return {"result": _words(words), "text": text} if config.words and words else {"text": text}


def _words(words: Sequence[Span]) -> list[dict[str, Any]]:
    return [
        {
            "conf": rounded(each.confidence, 6),
            "end": round(each.end_s, 3),
            "start": round(each.start_s, 3),
            "word": each.text,
        }
        for each in words
    ]
