"""Riva's services: speech recognition and synthesis, three calls each, and the health of gRPC servers.

bytes of a request  ->  Ask, audio or a text  ->  the gateway's Speech  ->  bytes of responses
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from tritone.errors import AudioFormatError, InputError
from tritone.gateway.announced_audio import recording
from tritone.gateway.ask import Ask
from tritone.gateway.protocols.riva import messages
from tritone.gateway.protocols.riva.calls import Calls, Context, headers_of
from tritone.gateway.protocols.riva.config import asked, audio_format
from tritone.gateway.protocols.riva.messages import HEALTH, SERVICE, SYNTHESIS, read
from tritone.gateway.protocols.riva.recognition import Recognition, results_of
from tritone.gateway.protocols.riva.synthesis import MAX_MESSAGE, speech_of, voices_of, whole
from tritone.gateway.refusal import GatewayRefusal
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from tritone.gateway.callers import Caller
    from tritone.gateway.gateway import Gateway

PROTOCOL = "riva"
COMPRESSED = (b"\x1f\x8b", b"\x78")  # gzip and deflate; no message of this service begins so
WATCH_S = 5.0  # between two looks at the health, for those who watch it
HEALTH_S = 1.0  # for which an answer about it holds


class RivaService(grpc.GenericRpcHandler):
    """Answers the calls of Riva's clients. Messages are read here, since gRPC's own errors about them are vague."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._limits = gateway.options.limits
        self._calls = Calls(gateway)
        self._in_flight = 0  # recordings
        self._looked_at, self._why_not_ready = float("-inf"), "nobody has asked yet"

    def service(self, handler_call_details: Any) -> Any:
        """gRPC's interface: who handles a call; None for calls that there are not."""
        name = handler_call_details.method
        calls = self._calls
        # With one message on either side. As streams of requests they ask for a key before the message is read.
        unary: dict[str, Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]] = {
            f"/{SERVICE}/Recognize": self.recognize,
            f"/{SERVICE}/GetRivaSpeechRecognitionConfig": self.list_models,
            f"/{SYNTHESIS}/Synthesize": self.synthesize,
            f"/{SYNTHESIS}/GetRivaSynthesisConfig": self.list_voices,
            f"/{HEALTH}/Check": self.check_health,
        }
        if name in unary:
            return grpc.stream_unary_rpc_method_handler(calls.visit(name, unary[name]))
        if name == f"/{SERVICE}/StreamingRecognize":
            return grpc.stream_stream_rpc_method_handler(calls.visit(name, self.streaming_recognize, is_unary=False))
        if name == f"/{SYNTHESIS}/SynthesizeOnline":
            return grpc.stream_stream_rpc_method_handler(calls.visit(name, self.synthesize_online, is_unary=False))
        if name == f"/{HEALTH}/Watch":
            return grpc.unary_stream_rpc_method_handler(calls.visit(name, self.watch_health))
        return None

    async def recognize(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Transcribe a whole recording, of any length."""
        caller = await self._admit(context)
        self._check_place()
        request = read(messages.RecognizeRequest, await self._only(requests))
        wanted = asked(request.config, streams=False)
        audio = recording(audio_format(request.config), request.audio)
        info = await self._gateway.speech.model(wanted.ask.model, "offline")
        ask = wanted.fitted(info, request.config.language_code)
        try:
            found = await self._in_time(self._transcripts(audio, ask, caller))
        except AudioFormatError as error:
            if request.config.encoding:
                raise
            raise error.saying(f"{error} Of samples without a header name encoding and sample_rate_hertz.") from error
        response = messages.RecognizeResponse()
        if request.HasField("id"):
            response.id.value = request.id.value
        results = results_of(request.config)
        for channel, each in enumerate(found, start=1):
            results.fill(response.results.add(), each, each.audio_s, is_final=True, channel=channel)
        return _bytes(response)

    async def _transcripts(self, audio: bytes, ask: Ask, caller: "Caller") -> list[Transcript]:
        """The transcript of a recording, or those of its channels where each is asked for."""
        if ask.each_channel:
            return await self._gateway.speech.channels(audio, ask, caller)
        return [await self._gateway.speech.transcribe(audio, ask, caller)]

    async def streaming_recognize(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Recognise audio while it comes; leaving the call, in whatever way, frees its stream."""
        caller = await self._admit(context)

        async def request() -> Any:
            if (message := await self._next(requests, self._limits.idle_s)) is None:
                return None
            if len(message) > self._limits.max_message_bytes:
                raise GatewayRefusal(
                    413,
                    f"a message has {len(message)} bytes, {self._limits.max_message_bytes} are allowed; send the "
                    "audio in smaller ones",
                )
            return read(messages.StreamingRecognizeRequest, _plain(message))

        await _Call(self._gateway, caller, request, context.write).hold()

    async def list_models(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """The served models, by the names that requests may use."""
        await self._admit(context)
        wanted = read(messages.ConfigRequest, await self._only(requests)).model_name
        response = messages.ConfigResponse()
        for info in await self._gateway.speech.models():
            if wanted in ("", info.name):
                streams = info.kind == "streaming"
                entry = response.model_config.add(model_name=info.name)
                entry.parameters.update(
                    type="online" if streams else "offline", streaming=str(streams), sample_rate=str(info.sample_rate)
                )
        if wanted and not response.model_config:
            raise GatewayRefusal(404, f"there is no ready model {wanted[:200]!r}", code="model_not_found")
        return _bytes(response)

    async def synthesize(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Speak a text, as a whole."""
        caller = await self._admit(context)
        request = _to_speak(await self._only(requests))
        async with self._place(), aclosing(speech_of(self._gateway, request, caller)) as parts:
            return _bytes(whole(request, [part async for part in parts]))

    async def synthesize_online(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Speak texts one after the other, and send each sentence as soon as it is there."""
        caller = await self._admit(context)
        num_texts = 0
        while (message := await self._next(requests, self._limits.idle_s)) is not None:
            num_texts += 1
            request = _to_speak(_plain(message))
            async with self._place(), aclosing(speech_of(self._gateway, request, caller)) as parts:
                async for part in parts:
                    await context.write(_bytes(part))
        if not num_texts:
            raise InputError("the call ended without a message; each has a text")

    async def list_voices(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """The served voices."""
        await self._admit(context)
        wanted = read(messages.SynthesisConfigRequest, await self._only(requests)).model_name
        return _bytes(await voices_of(self._gateway, wanted))

    async def check_health(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Whether requests can be answered now; needs no key."""
        _require_service(read(messages.HealthCheckRequest, await self._only(requests)).service)
        return await self._health()

    async def watch_health(self, message: bytes, context: Context) -> None:
        """The health now and whenever it changes, until the client leaves."""
        _require_service(read(messages.HealthCheckRequest, _plain(message)).service)
        before = b""
        while True:
            if (now := await self._health()) != before:
                await context.write(now)
                before = now
            await asyncio.sleep(WATCH_S)

    async def _health(self) -> bytes:
        """As it was a moment ago, however many ask."""
        if time.monotonic() - self._looked_at > HEALTH_S:
            self._why_not_ready = await self._gateway.why_not_ready()
            self._looked_at = time.monotonic()
        status = messages.NOT_SERVING if self._why_not_ready else messages.SERVING
        return _bytes(messages.HealthCheckResponse(status=status))

    async def _admit(self, context: Context) -> "Caller":
        return await self._gateway.admit(headers_of(context), {}, protocol=PROTOCOL)

    async def _in_time(self, answer: Awaitable[list[Transcript]]) -> list[Transcript]:
        async with self._place():
            return await answer

    def _check_place(self) -> None:
        if self._in_flight >= self._limits.max_requests:
            raise GatewayRefusal(503, f"{self._in_flight} requests are in flight here, the most there may be", 1.0)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        """Around the work for a request: one of so many, which has so much time."""
        self._check_place()
        limit = self._limits.request_s
        self._in_flight += 1
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError as error:
            raise GatewayRefusal(408, f"the request took more than {limit:g} s, the longest time") from error
        finally:
            self._in_flight -= 1

    async def _only(self, requests: AsyncIterator[bytes]) -> bytes:
        """The message of a call that has one."""
        message = await self._next(requests, self._limits.request_s)
        if message is None:
            raise InputError("the call has no message")
        return _plain(message)

    async def _next(self, requests: AsyncIterator[bytes], limit_s: float) -> bytes | None:
        """The next message of a call, None at its end."""
        try:
            async with asyncio.timeout(limit_s):
                return await anext(requests, None)
        except TimeoutError as error:
            message = f"nothing came for {limit_s:g} s, so the call was ended; make another one"
            raise GatewayRefusal(408, message) from error


class _Call(Recognition[Any]):
    """One call of StreamingRecognize.

    Args:
        requests: its messages, None at the end.
        write: sends a message.
    """

    def __init__(
        self,
        gateway: "Gateway",
        caller: "Caller",
        requests: Callable[[], Awaitable[Any]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        super().__init__(gateway, caller)
        self._requests, self._send = requests, write

    async def receive(self) -> Any:
        return await self._requests()

    async def begin(self) -> None:
        if (first := await self.receive()) is None:
            raise InputError("the call ended without a message; the first one has streaming_config")
        if first.WhichOneof("streaming_request") != "streaming_config":
            raise InputError("the first message of a stream must have streaming_config, and no audio")
        self._id = first.id.value if first.HasField("id") else None
        self.configure(first.streaming_config.config, interim=first.streaming_config.interim_results)

    async def take(self, message: Any) -> None:
        if message is None:
            await self.finish()
        elif message.WhichOneof("streaming_request") == "streaming_config":
            raise InputError("streaming_config comes once, in the first message; open another stream for another one")
        else:
            await self.take_with(message.audio_content, dict(message.runtime_config))

    async def write(self, response: Any) -> None:
        if self._id is not None:
            response.id.value = self._id
        await self._send(_bytes(response))


def _require_service(name: str) -> None:
    if name not in ("", SERVICE, SYNTHESIS):
        raise GatewayRefusal(404, f"there is no service {name[:200]!r} here; there are {SERVICE} and {SYNTHESIS}")


def _plain(message: bytes) -> bytes:
    """A message that is not compressed: unpacking is switched off, since gRPC's knows no limit."""
    if message.startswith(COMPRESSED):
        raise InputError(
            "compressed messages are not read here, for audio is hardly smaller then; send them as they are"
        )
    return message


def _to_speak(message: bytes) -> Any:
    if len(message) > MAX_MESSAGE:
        raise GatewayRefusal(413, f"a request for speech may have {MAX_MESSAGE} bytes, this one has {len(message)}")
    return read(messages.SynthesizeSpeechRequest, message)


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
