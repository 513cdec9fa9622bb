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
import logging
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tritone.audio.live import SampleStream
from tritone.errors import AudioFormatError, InputError, ServerSetupError
from tritone.gateway.announced_audio import MAX_CHANNELS
from tritone.gateway.ask import KEYWORD_WEIGHT, Ask, favoured, language_parameters
from tritone.gateway.live import Live
from tritone.gateway.protocols.wyoming.options import WyomingOptions
from tritone.gateway.protocols.wyoming.speech import Speaker, programs
from tritone.gateway.refusal import GatewayRefusal, answer_to
from tritone.gateway.sockets import GOODBYE_S, MAX_TEXT, UNREAD_S, as_json, read_json
from tritone.gateway.visit import VISIT, Visit
from tritone.gateway.visits import LEFT, left
from tritone.transcript import joined

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

LOG = logging.getLogger("tritone.gateway")
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
        visit, started = Visit(status=200), time.monotonic()
        token = VISIT.set(visit)
        client = _Client(self._gateway, reader, writer)
        try:
            limits = self._gateway.options.limits
            if len(self._open) > limits.max_requests + limits.max_streams + SPARE:
                raise GatewayRefusal(503, f"{len(self._open)} connections are open here, the most there may be", 1.0)
            with self._gateway.traces.span(PROTOCOL, {}):
                await client.converse()
        except (ConnectionError, asyncio.CancelledError):
            visit.status = LEFT
        except Exception as error:
            answer = answer_to(error)
            visit.status = answer.status
            with suppress(ConnectionError, TimeoutError):
                await client.send("error", text=answer.message, code=answer.code)
                # A connection that is closed while its client sends is reset, and what was sent to it is lost.
                async with asyncio.timeout(GOODBYE_S):
                    while await reader.read(MAX_TEXT):
                        pass
        finally:
            VISIT.reset(token)
            self._open.discard(task)
            writer.close()
            peer = writer.get_extra_info("peername") or ("",)
            took_s = time.monotonic() - started
            left(self._gateway, visit, client=peer[0], method="TCP", path="", took_s=took_s, timed=False)


class _Client:
    """The conversation with one client."""

    def __init__(self, gateway: "Gateway", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._gateway = gateway
        self._reader = reader
        self._writer = writer
        self._asked: Mapping[str, Any] = {}  # of the last `transcribe`
        self._rate = 0  # of the audio under way, in Hz
        self._samples = SampleStream("<i2")
        self._live: Live | None = None
        self._text = ""

    async def converse(self) -> None:
        """Answer events until the client ends."""
        limits = self._gateway.options.limits
        caller = await self._gateway.admit({}, {}, protocol=PROTOCOL)
        speaker = Speaker(self._gateway.speech.voices, caller, self.send)
        async with AsyncExitStack() as stack:
            while True:
                try:
                    coming = read_event(self._reader, limits.max_message_bytes)
                    event = await asyncio.wait_for(coming, limits.idle_s)
                except TimeoutError:
                    return
                match event:
                    case None:
                        return
                    case Event("describe"):
                        await self.send("info", **await self._info())
                    case Event("ping"):
                        await self.send("pong", text=event.data.get("text"))
                    case Event("transcribe"):
                        self._asked = event.data
                    case Event("audio-start"):
                        await stack.aclose()
                        self._begin(event)
                    case Event("audio-chunk"):
                        if self._live is None:
                            self._begin(event)
                            ask = await self._ask()
                            opened = await self._gateway.speech.open(ask, self._rate, caller)
                            self._live = await stack.enter_async_context(opened)
                            await self.send("transcript-start")
                        await self._write(await self._live.accept(self._samples.push(event.payload)))
                    case Event("audio-stop"):
                        await self._finish()
                        await stack.aclose()
                    case Event("synthesize" | "synthesize-start" | "synthesize-chunk" | "synthesize-stop"):
                        await speaker.take(event.type, event.data)

    def _begin(self, event: Event) -> None:
        """Take the format of the audio that comes."""
        rate, width, channels = (event.data.get(name) for name in ("rate", "width", "channels"))
        if width != WIDTH or type(rate) is not int or type(channels) is not int:
            raise AudioFormatError(
                f"audio must have a rate, channels and a width of {WIDTH} bytes, got {str(event.data)[:120]}"
            )
        if not 1 <= channels <= MAX_CHANNELS:
            raise AudioFormatError(f"audio may have {MAX_CHANNELS} channels, got {channels}")
        self._rate, self._live, self._text = rate, None, ""
        self._samples = SampleStream(("<i2", (channels,)))

    async def _ask(self) -> Ask:
        """What the client asks of the model that it names, or of the gateway's own."""
        name = self._asked.get("name") or ""
        language = self._asked.get("language") or ""
        lists = [self._asked.get(each) or [] for each in ("transcript_names", "transcript_terms")]
        terms = [term for each in lists if isinstance(each, list) for term in each]
        texts = (name, language, *terms)
        if not all(isinstance(each, list) for each in lists) or not all(isinstance(each, str) for each in texts):
            raise InputError("name and language of `transcribe` must be texts, names and terms lists of texts")
        try:
            info = await self._gateway.speech.live_model(name)
        except GatewayRefusal:
            if name:
                raise
            info = await self._gateway.speech.model("", "offline")  # which writes the utterance at its end
        search = {**language_parameters(info, language), **favoured(info, dict.fromkeys(terms, KEYWORD_WEIGHT))}
        return Ask(model=info.name, search=search, details=False, turns=self._gateway.speech.turns)

    async def _write(self, events: Any) -> str:
        """Send the final texts among events as pieces of the whole one; returns the language, if one is known."""
        language = ""
        for event in events:
            if event.kind in VOICE and self._gateway.speech.turns is not None:
                await self.send(VOICE[event.kind], timestamp=round(1000 * event.time_s))
            if event.kind != "final" or event.transcript is None or not event.transcript.text:
                continue
            language = event.transcript.language
            longer = joined(self._text, event.transcript.text)
            await self.send("transcript-chunk", text=longer[len(self._text) :])
            self._text = longer
        return language

    async def _finish(self) -> None:
        language = "" if self._live is None else await self._write(await self._live.finish())
        if self._live is None:
            await self.send("transcript-start")
        self._live = None
        known: dict[str, Any] = {"language": language} if language else {}
        await self.send("transcript", text=self._text, **known)
        await self.send("transcript-stop")

    async def _info(self) -> Mapping[str, Any]:
        """What is served, as `describe` asks."""
        offered = self._gateway.options.of(PROTOCOL, WyomingOptions).wyoming_languages
        languages = [each.strip() for each in offered.split(",") if each.strip()]
        about = {"attribution": HOME, "installed": True, "version": None}
        models = [
            {
                "name": each.name,
                "languages": list(each.languages) or languages,
                "description": f"{each.name} ({each.kind})",
                **about,
            }
            for each in await self._gateway.speech.models()
        ]
        program = {
            "name": NAME,
            "description": "Speech recognition by Tritone",
            "models": models,
            "supports_transcript_streaming": True,
            **about,
        }
        speaking = await programs(self._gateway.speech.voices, NAME, about)
        return {"asr": [program], **({"tts": speaking} if speaking else {})}

    async def send(self, kind: str, payload: bytes = b"", **data: Any) -> None:
        """Send an event; waits for a client that reads slowly.

        Raises:
            ConnectionError: the client is gone.
            TimeoutError: it does not read.
        """
        values = as_json(data).encode() if data else b""
        sizes = {"data_length": len(values), "payload_length": len(payload)}
        head = {"type": kind, "version": "1.0.0", **{name: size for name, size in sizes.items() if size}}
        self._writer.write(as_json(head).encode() + b"\n" + values + payload)
        await asyncio.wait_for(self._writer.drain(), UNREAD_S)


async def serve(gateway: "Gateway", address: str) -> WyomingServer:
    """Listen on an address, host:port; raises `ServerSetupError` if that is not possible."""
    server = WyomingServer(gateway)
    await server.start(address)
    return server
