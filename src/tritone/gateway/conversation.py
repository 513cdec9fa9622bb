"""A conversation with one client about a live stream: all that protocols have in common.

    class Talk(SocketConversation):
        protocol, path = "vosk", "/vosk"
        async def ask(self) -> Ask: ...                           what is asked of the models
        async def command(self, text: str) -> None: ...           a message of text: commit, finish, or an error
        def messages(self, events, after) -> Iterable[...]: ...   what events become
        def complaint(answer) -> Mapping[str, Any]: ...           how an error is worded

The first samples open the stream on the server, or the protocol does, where it says at once what cannot be; the end of
the conversation, in whatever way, frees it.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tritone.audio.live import LiveAudio, PlainSamples
from tritone.audio.waveform import Samples
from tritone.gateway.ask import Ask, Event
from tritone.gateway.callers import Caller
from tritone.gateway.live import Live
from tritone.gateway.refusal import ErrorAnswer
from tritone.gateway.sockets import RouteOfSubprotocol, Socket, agreed, attend

if TYPE_CHECKING:
    from tritone.gateway.gateway import Gateway

SAMPLE_RATE = 16000  # Hz, of protocols that name none
AnyMessage = TypeVar("AnyMessage")
After = Literal["audio", "commit", "finish"]
"""What it was that events came of."""


class Conversation(ABC, Generic[AnyMessage]):
    """One client, and the live stream that it sends.

    `audio`: decodes what it sends, at first 16-bit samples. `live`: the stream; None until it is open. `is_over`:
    whether the client has had all.
    """

    def __init__(self, gateway: "Gateway", caller: Caller) -> None:
        self.gateway, self.speech, self.caller = gateway, gateway.speech, caller
        self.audio: LiveAudio = PlainSamples("<i2", SAMPLE_RATE)
        self.live: Live | None = None
        self.is_over = False

    async def hold(self) -> None:
        """Take one message after the other until it is over."""
        try:
            await self.begin()
            while not self.is_over:
                await self.take(await self.receive())
        finally:
            await self.close()

    async def begin(self) -> None:  # many protocols have nothing to say before audio
        """What comes before the messages that `take` takes."""

    @abstractmethod
    async def receive(self) -> AnyMessage:
        """The next message."""

    @abstractmethod
    async def take(self, message: AnyMessage) -> None:
        """Act on a message."""

    @abstractmethod
    async def ask(self) -> Ask:
        """What is asked of the models."""

    @abstractmethod
    async def send_events(self, events: Sequence[Event], after: After) -> None:
        """Send what became of audio, of a commit, or of the end."""

    async def open(self) -> Live:
        """The live stream, which is opened if it is not open yet."""
        if self.live is None:
            self.live = await self.speech.open(await self.ask(), self.audio.rate, self.caller)
        return self.live

    async def take_audio(self, data: bytes) -> None:
        """Take some bytes of audio."""
        await self.send_events(await self.recognise(await self.audio.push(data)), "audio")

    async def commit(self) -> None:
        """End the segment under way; the stream goes on."""
        await self.send_events(await self.of_live(lambda live: live.commit()), "commit")

    async def finish(self) -> None:
        """End the stream, and with it the conversation."""
        if self.live is not None and (rest := await self.audio.finish()).size:
            await self.send_events(await self.recognise(rest), "audio")
        await self.send_events(await self.of_live(lambda live: live.finish()), "finish")
        self.is_over = True

    async def recognise(self, samples: Samples) -> list[Event]:
        """What happened by now; the first samples open the stream."""
        if not samples.size:
            return []
        await self.open()
        return await self.of_live(lambda live: live.accept(samples))

    async def of_live(self, asked: Callable[[Live], Awaitable[list[Event]]]) -> list[Event]:
        """The events of the stream; none while there is none."""
        return [] if self.live is None else await asked(self.live)

    async def leave(self) -> None:
        """Free the stream; the next samples open another one."""
        live, self.live = self.live, None
        if live is not None:
            await live.close()

    async def close(self) -> None:
        """Free the stream, and what decodes its audio."""
        self.audio.close()
        await self.leave()


class SocketConversation(Conversation[str | bytes]):
    """One over a WebSocket, whose binary messages are audio.

    `protocol`: its name, for metrics. `path`: where it is. `subprotocol`: what its clients offer beside their keys.
    `prefix`: of another one that its clients offer, where others share the path.
    """

    protocol: ClassVar[str]
    path: ClassVar[str]
    subprotocol: ClassVar[str] = ""
    prefix: ClassVar[str] = ""

    def __init__(self, gateway: "Gateway", socket: Socket) -> None:
        super().__init__(gateway, socket.caller)
        self.socket = socket

    async def receive(self) -> str | bytes:
        return await self.socket.receive()

    @classmethod
    def routes(cls, gateway: "Gateway") -> list[BaseRoute]:
        """The route on which clients of the protocol are let in, talked with, and left."""

        async def answer(websocket: WebSocket) -> None:
            caller = await gateway.admit(websocket.headers, websocket.query_params, protocol=cls.protocol)
            with suppress(WebSocketDisconnect, RuntimeError):  # starlette's words for a client that is gone
                await websocket.accept(subprotocol=agreed(websocket, cls.subprotocol))
                socket = Socket(websocket, caller)
                await attend(websocket, socket, cls(gateway, socket).hold(), cls.complaint)

        return [RouteOfSubprotocol(cls.path, answer, cls.prefix) if cls.prefix else WebSocketRoute(cls.path, answer)]

    @staticmethod
    @abstractmethod
    def complaint(answer: ErrorAnswer) -> Mapping[str, Any] | str:
        """An error as the protocol words it; the message goes before the end of the connection."""

    async def take(self, message: str | bytes) -> None:
        await (self.take_audio(message) if isinstance(message, bytes) else self.command(message))

    @abstractmethod
    async def command(self, text: str) -> None:
        """Act on a message of text; raises `InputError` if it is none of the protocol's."""

    async def send_events(self, events: Sequence[Event], after: After) -> None:
        for message in self.messages(events, after):
            await self.socket.send(message)

    def messages(self, events: Sequence[Event], after: After) -> Iterable[Mapping[str, Any] | str]:
        """What events become."""
        return ()
