"""Wyoming, the protocol of Home Assistant's voice services: events as lines of JSON over TCP, on a port of its own.

    {"type": "transcribe"}  {"type": "audio-start", ...}  {"type": "audio-chunk", ...} samples  ...
    {"type": "audio-stop"}
        ->  {"type": "transcript-start"}  {"type": "transcript-chunk", "data": {"text": "one"}}  ...
            {"type": "transcript", "data": {"text": "one two"}}  {"type": "transcript-stop"}

Where a classifier decides on turns, `voice-started` and `voice-stopped` tell where they begin and end. Texts are spoken
by `speech.py`.

The protocol knows no keys: where keys are needed, its clients are those that `anybody:` admits.

Source: rhasspy/wyoming 1.10.2, event.py, asr.py, vad.py, audio.py and info.py.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tritone.audio.live import PlainSamples
from tritone.errors import AudioFormatError, InputError, ServerSetupError
from tritone.gateway.announced_audio import MAX_CHANNELS
from tritone.gateway.ask import KEYWORD_WEIGHT, Ask, favoured, language_parameters
from tritone.gateway.ask import Event as SpeechEvent
from tritone.gateway.callers import Caller
from tritone.gateway.conversation import After, Conversation
from tritone.gateway.protocols.wyoming.options import WyomingOptions
from tritone.gateway.protocols.wyoming.speech import Speaker, programs
from tritone.gateway.refusal import GatewayRefusal, answer_to
from tritone.gateway.sockets import GOODBYE_S, MAX_TEXT, UNREAD_S, as_json, read_json
from tritone.gateway.visit import Visit
from tritone.gateway.visits import LEFT, visiting
from tritone.transcript import joined

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

PROTOCOL = "wyoming"
WIDTH = 2  # bytes of a sample
SPARE = 64  # connections beyond those of the limits
NAME = "tritone"
VOICE = {"speech_started": "voice-started", "speech_stopped": "voice-stopped"}
HOME = {"name": "Tritone", "url": ""}


@dataclass(frozen=True)
class Event:
    """One event: its type, the values of it, and bytes such as samples."""

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""


async def read_event(reader: asyncio.StreamReader, max_payload: int) -> Event | None:
    """The next event; None where the client has ended.

    Raises:
        InputError: it is none, or larger than it may be.
    """
    try:
        line = await reader.readline()
    except ValueError as error:  # longer than the reader's limit
        raise InputError(f"the line of an event may have {MAX_TEXT:,} bytes") from error
    if not line.endswith(b"\n"):
        return None
    found = read_json(line.decode(errors="replace"))
    kind, data = found.get("type"), found.get("data") or {}
    if not isinstance(kind, str) or not isinstance(data, dict):
        raise InputError('an event is an object with "type", and perhaps "data"')
    try:
        if size := _size(found, "data_length", MAX_TEXT):
            data = {**data, **read_json((await reader.readexactly(size)).decode(errors="replace"))}
        payload = b""
        if size := _size(found, "payload_length", max_payload):
            payload = await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
    return Event(kind, data, payload)


def _size(found: Mapping[str, Any], name: str, most: int) -> int:
    size = found.get(name) or 0
    if type(size) is not int or not 0 <= size <= most:
        raise InputError(f"{name} must be a whole number up to {most:,}, got {str(size)[:80]}")
    return size


class WyomingServer:
    """A server in the running event loop. `port`: where it listens."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, address: str) -> None:
        """Listen on an address, host:port; port 0 is any that is free.

        Raises:
            ServerSetupError: the address cannot be listened on.
        """
        host, _, port = address.rpartition(":")
        certificates = self._gateway.certificates
        context = None if certificates is None else certificates.context
        try:
            self._server = await asyncio.start_server(
                self._accepted, host.strip("[]"), int(port), limit=MAX_TEXT, ssl=context
            )
        except OSError as error:
            raise ServerSetupError(
                f"the gateway cannot listen on {address} for Wyoming's clients: {error.strerror or error}. Choose "
                "another with --wyoming-port or --host."
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, grace_s: float) -> None:
        """Take no new connections, and end those that are still open after `grace_s` seconds."""
        if self._server is not None:
            self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_s)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        visit, client = Visit(status=200), (writer.get_extra_info("peername") or ("",))[0]
        try:
            with visiting(self._gateway, visit, client=client, method="TCP", path="", timed=False):
                await self._visited(visit, reader, writer)
        finally:
            self._open.discard(task)
            writer.close()

    async def _visited(self, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            limits = self._gateway.options.limits
            if len(self._open) > limits.max_requests + limits.max_streams + SPARE:
                raise GatewayRefusal(503, f"{len(self._open)} connections are open here, the most there may be", 1.0)
            with self._gateway.traces.span(PROTOCOL, {}):
                caller = await self._gateway.admit({}, {}, protocol=PROTOCOL)
                await WyomingConversation(self._gateway, caller, reader, writer).hold()
        except (ConnectionError, asyncio.CancelledError):
            visit.status = LEFT
        except Exception as error:
            answer = answer_to(error)
            visit.status = answer.status
            with suppress(ConnectionError, TimeoutError):
                await send_event(writer, "error", text=answer.message, code=answer.code)
                # A connection that is closed while its client sends is reset, and what was sent to it is lost.
                async with asyncio.timeout(GOODBYE_S):
                    while await reader.read(MAX_TEXT):
                        pass


class WyomingConversation(Conversation[Event | None]):
    """The conversation with one client, in which streams and texts come one after the other."""

    def __init__(
        self, gateway: "Gateway", caller: Caller, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(gateway, caller)
        self._reader = reader
        self.send = partial(send_event, writer)
        self._speaker = Speaker(self.speech.voices, caller, self.send)
        self._asked: Mapping[str, Any] = {}  # of the last `transcribe`
        self._text = ""  # of the stream, as it was sent

    async def receive(self) -> Event | None:
        limits = self.gateway.options.limits
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.idle_s):
                return await read_event(self._reader, limits.max_message_bytes)
        return None

    async def take(self, message: Event | None) -> None:
        match message:
            case None:
                self.is_over = True
            case Event("describe"):
                await self.send("info", **await self._info())
            case Event("ping"):
                await self.send("pong", text=message.data.get("text"))
            case Event("transcribe"):
                self._asked = message.data
            case Event("audio-start"):
                await self.leave()
                self._begin(message)
            case Event("audio-chunk"):
                if self.live is None:
                    self._begin(message)
                    await self.open()
                    await self.send("transcript-start")
                await self.take_audio(message.payload)
            case Event("audio-stop"):
                await self.finish()
            case Event("synthesize" | "synthesize-start" | "synthesize-chunk" | "synthesize-stop"):
                await self._speaker.take(message.type, message.data)

    def _begin(self, event: Event) -> None:
        """Take the format of the audio that comes."""
        rate, width, channels = (event.data.get(name) for name in ("rate", "width", "channels"))
        if width != WIDTH or type(rate) is not int or type(channels) is not int:
            raise AudioFormatError(
                f"audio must have a rate, channels and a width of {WIDTH} bytes, got {str(event.data)[:120]}"
            )
        if not 1 <= channels <= MAX_CHANNELS:
            raise AudioFormatError(f"audio may have {MAX_CHANNELS} channels, got {channels}")
        self.audio, self._text = PlainSamples(("<i2", (channels,)), rate), ""

    async def ask(self) -> Ask:
        """What the client asks of the model that it names, or of the gateway's own."""
        name = self._asked.get("name") or ""
        language = self._asked.get("language") or ""
        lists = [self._asked.get(each) or [] for each in ("transcript_names", "transcript_terms")]
        terms = [term for each in lists if isinstance(each, list) for term in each]
        texts = (name, language, *terms)
        if not all(isinstance(each, list) for each in lists) or not all(isinstance(each, str) for each in texts):
            raise InputError("name and language of `transcribe` must be texts, names and terms lists of texts")
        try:
            info = await self.speech.live_model(name)
        except GatewayRefusal:
            if name:
                raise
            info = await self.speech.model("", "offline")  # which writes the utterance at its end
        search = {**language_parameters(info, language), **favoured(info, dict.fromkeys(terms, KEYWORD_WEIGHT))}
        return Ask(model=info.name, search=search, details=False, turns=self.speech.turns)

    async def send_events(self, events: Sequence[SpeechEvent], after: After) -> None:
        """Send the final texts among events as pieces of the whole one, and the whole one at the end."""
        known: dict[str, Any] = {}
        for event in events:
            if event.kind in VOICE and self.speech.turns is not None:
                await self.send(VOICE[event.kind], timestamp=round(1000 * event.time_s))
            if event.kind != "final" or event.transcript is None or not event.transcript.text:
                continue
            known = {"language": event.transcript.language} if event.transcript.language else {}
            longer = joined(self._text, event.transcript.text)
            await self.send("transcript-chunk", text=longer[len(self._text) :])
            self._text = longer
        if after == "finish":
            await self.send("transcript", text=self._text, **known)
            await self.send("transcript-stop")

    async def finish(self) -> None:
        """End the stream; the conversation goes on."""
        if self.live is None:
            await self.send("transcript-start")
        await self.send_events(await self.of_live(lambda live: live.finish()), "finish")
        await self.leave()

    async def _info(self) -> Mapping[str, Any]:
        """What is served, as `describe` asks."""
        offered = self.gateway.options.of(PROTOCOL, WyomingOptions).wyoming_languages
        languages = [each.strip() for each in offered.split(",") if each.strip()]
        about = {"attribution": HOME, "installed": True, "version": None}
        models = [
            {
                "name": each.name,
                "languages": list(each.languages) or languages,
                "description": f"{each.name} ({each.kind})",
                **about,
            }
            for each in await self.speech.models()
        ]
        program = {
            "name": NAME,
            "description": "Speech recognition by Tritone",
            "models": models,
            "supports_transcript_streaming": True,
            **about,
        }
        speaking = await programs(self.speech.voices, NAME, about)
        return {"asr": [program], **({"tts": speaking} if speaking else {})}


async def send_event(writer: asyncio.StreamWriter, kind: str, payload: bytes = b"", **data: Any) -> None:
    """Send an event; waits for a client that reads slowly.

    Raises:
        ConnectionError: the client is gone.
        TimeoutError: it does not read.
    """
    values = as_json(data).encode() if data else b""
    sizes = {"data_length": len(values), "payload_length": len(payload)}
    head = {"type": kind, "version": "1.0.0", **{name: size for name, size in sizes.items() if size}}
    writer.write(as_json(head).encode() + b"\n" + values + payload)
    async with asyncio.timeout(UNREAD_S):
        await writer.drain()


async def serve(gateway: "Gateway", address: str) -> WyomingServer:
    """Listen on an address, host:port; raises `ServerSetupError` if that is not possible."""
    server = WyomingServer(gateway)
    await server.start(address)
    return server
