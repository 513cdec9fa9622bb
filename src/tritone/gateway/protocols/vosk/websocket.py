"""Vosk's protocol: what clients of vosk-server send to ws://HOST:2700, each message answered with one.

    {"config": {"sample_rate": 16000}}  int16 samples  ...  {"eof": 1}
        ->  {"partial": "one two"}  ...  {"result": [{"word": "one", "start": 0.1, ...}], "text": "one"}

Source: alphacep/vosk-server, websocket/asr_server.py and the clients beside it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

from tritone.audio.live import PlainSamples
from tritone.audio.waveform import Samples
from tritone.errors import InputError
from tritone.gateway.ask import Ask, Event
from tritone.gateway.conversation import After, SocketConversation
from tritone.gateway.live import Live
from tritone.gateway.refusal import ADDRESS, ErrorAnswer
from tritone.gateway.sockets import Socket, read_json
from tritone.paths import without_paths
from tritone.search.hotwords import FOREIGN
from tritone.transcript import Span, Transcript, joined, mean_confidence, rounded

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

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


class VoskConversation(SocketConversation):
    """One conversation. Phrases that the model cannot spell are left out, as vosk-server does.

    The model says so with its first answer, so the audio until then is kept, and recognised again without them.
    """

    protocol, path = "vosk", "/vosk"

    def __init__(self, gateway: "Gateway", socket: Socket) -> None:
        super().__init__(gateway, socket)
        self._config = Config()
        self._partial = ""
        self._kept: list[Samples] | None = []
        self._warning: dict[str, str] = {}  # about phrases that are left out, for the next message

    @staticmethod
    def complaint(answer: ErrorAnswer) -> Mapping[str, Any]:
        return {"error": answer.message, "code": answer.code}

    async def begin(self) -> None:
        query = self.socket.query
        self._configure({name: query[name] for name in ("sample_rate", "model") if name in query})

    def _configure(self, config: Any) -> None:
        self._config = self._config.changed(config)
        self.audio = PlainSamples("<i2", self._config.sample_rate)

    async def ask(self) -> Ask:
        model = await self.speech.live_model(self._config.model)
        return replace(self._config.ask(has_beam=model.has_beam), turns=self.speech.turns)

    async def command(self, text: str) -> None:
        fields = read_json(text)
        if "config" in fields:
            if self.live is not None:
                raise InputError('"config" comes before the audio; for another one, open another connection')
            self._configure(fields["config"])
        elif fields.get("eof"):
            await self.finish()
        elif fields.get("reset"):
            await self.commit()
        else:
            raise InputError(f'expected audio, {{"config": {{}}}}, {{"eof": 1}}, {{"reset": 1}}; got {text[:80]}')

    async def recognise(self, samples: Samples) -> list[Event]:
        events = await super().recognise(samples)
        if self.live is not None and self.live.received_s > KEPT_S:
            self._kept = None
        elif self._kept is not None:
            self._kept.append(samples)
        return events

    async def of_live(self, asked: Act) -> list[Event]:
        answered = asked
        while True:
            try:
                return await super().of_live(answered)
            except InputError as error:
                await self._leave_out(error)
                answered = partial(_again, self._kept or (), asked)

    async def _leave_out(self, error: InputError) -> None:
        """Open the stream once more without what an error is about; raises the error if that is no phrase."""
        found = FOREIGN.search(str(error))
        left = self._config if found is None else self._config.without(found[1])
        if left.phrase_list == self._config.phrase_list or self._kept is None or self.live is None:
            raise error
        self._config = left
        if not self._warning:
            reason = without_paths(ADDRESS.sub("", str(error)))
            self._warning = {"warning": f"phrases are left out: {reason}"}
        await self.leave()
        await self.open()

    def messages(self, events: Sequence[Event], after: After) -> Iterator[Mapping[str, Any]]:
        finals = [each.transcript for each in events if each.kind == "final" and each.transcript is not None]
        for event in events:
            if event.transcript is not None:
                self._partial = event.transcript.text if event.kind == "partial" else ""
        if after != "audio":
            self._partial = ""
            yield _result(finals, self._config)
            return
        yield {**(_result(finals, self._config) if finals else {"partial": self._partial}), **self._warning}
        self._warning = {}


routes = VoskConversation.routes


async def _again(kept: Sequence[Samples], then: Act, live: Live) -> list[Event]:
    events = [event for samples in kept for event in await live.accept(samples)]
    return events + await then(live)


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
