"""A server that speaks OpenAI's API, as a model of the gateway.

    upstream.infos                                   ->  what the gateway knows of its models
    await upstream.transcribe(samples, 16000, {...})  ->  Transcript
    await upstream.guarded(work)                      ->  what work returns, counted by the circuit and the metrics

A request is sent again where nothing was lost: nobody took the connection, or the server refused (429, 503). The
server's key is in no message: of an error that quotes it, status and code go on.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tritone.audio.inputs import load_samples
from tritone.audio.wav import PCM, wav_file
from tritone.audio.waveform import Samples
from tritone.client.failure import seconds_of
from tritone.client.models import ModelInfo
from tritone.client.retries import Retries, with_attempts
from tritone.client.tls import TlsFiles
from tritone.errors import (
    InputError,
    OperatorError,
    ServerAnswerError,
    ServerBusyError,
    ServerTimeoutError,
    ServerUnreachableError,
    StreamLostError,
    TritoneError,
)
from tritone.gateway.refusal import GatewayRefusal
from tritone.gateway.upstreams.answers import code_of, message_of, read_transcript, shortened
from tritone.gateway.upstreams.circuit import STATES, Circuit, State
from tritone.gateway.upstreams.events import TextEvents
from tritone.gateway.upstreams.options import Times, UpstreamOptions
from tritone.gateway.upstreams.quoting import quotes
from tritone.net.http_client import HttpAnswer, HttpConnections
from tritone.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from tritone.gateway.metrics import Metrics

SAMPLE_RATE = 16000  # Hz, of what is sent to `/audio/transcriptions`: what speech models hear
MAX_ANSWER_BYTES = 8 << 20
CONNECT_S = 10.0
IDLE_S = 2.0  # of a connection: vLLM closes one after 5 s, and a request that meets this is lost
STREAMING = "-streaming"  # after the name of a model that has a Realtime API, too
LARGE_BYTES = 256 << 10  # of an answer that is read beside the event loop
KEYS = 4  # a file may have another one while requests with the last ones are under way
HIDDEN = "its message is not shown, for there may be parts of the key in it"
LIMITED, REFUSING = 429, 503
FAILURES = (ServerUnreachableError, ServerTimeoutError, ServerAnswerError)  # besides a 503
OUTCOMES: Mapping[type[BaseException], str] = {
    StreamLostError: "stream_lost",
    ServerUnreachableError: "unreachable",
    ServerTimeoutError: "timeout",
    ServerAnswerError: "bad_answer",
    ServerBusyError: "busy",
    InputError: "refused",
    OperatorError: "misconfigured",
    asyncio.CancelledError: "left",
}

Answer = TypeVar("Answer")


class LimitedError(ServerBusyError):
    """The server is well, and takes no more from us for a while (429)."""


class Upstream:
    """One upstream; its connections are of one event loop."""

    def __init__(self, options: UpstreamOptions, metrics: "Metrics") -> None:
        self.options = options
        self.circuit = Circuit(options.failures, options.rest_s, on_state=self._show)
        self._metrics = metrics
        self._retries = Retries(options.retries)
        self._turns = asyncio.Semaphore(options.max_requests)
        parts = urlsplit(options.url)
        tls = parts.scheme == "https"
        self.tls = TlsFiles(ca=str(options.ca) if options.ca else None).context() if tls else None
        self._path = parts.path.rstrip("/")
        self._connections = HttpConnections(
            parts.hostname or "",
            parts.port or (443 if tls else 80),
            self.tls,
            connect_s=min(CONNECT_S, options.timeout_s),
            max_bytes=MAX_ANSWER_BYTES,
            max_idle_s=IDLE_S,
        )
        self._keys: deque[str] = deque(maxlen=KEYS)  # that were sent, the last one at the end
        self._num_streams = 0
        self._leaving: set[asyncio.Future[None]] = set()
        self._show("closed")

    @property
    def infos(self) -> list[ModelInfo]:
        """Its models: one for recordings, one for streams, or both."""
        own, found = self.options, []
        if own.transcriptions:
            found.append(
                ModelInfo(
                    name=own.name,
                    kind="offline",
                    sample_rate=SAMPLE_RATE,
                    max_audio_s=own.max_audio_s,
                    has_details=own.times == "words",
                    decodes=True,
                    has_prompt=True,
                    has_search=True,
                    has_word_times=own.times == "words",
                    translates=own.translates,
                    languages=own.languages,
                )
            )
        if own.realtime != "none":
            name = own.name + STREAMING if own.transcriptions else own.name
            takes = own.realtime == "openai"  # a session of vLLM takes a model and nothing else
            found.append(
                ModelInfo(
                    name=name,
                    kind="streaming",
                    sample_rate=own.audio_rate,
                    decodes=takes,
                    has_prompt=takes,
                    has_search=takes,
                    languages=own.languages if takes else (),
                )
            )
        return found

    @property
    def model(self) -> str:
        """As the server calls it."""
        return self.options.model or self.options.name

    def headers(self, more: Mapping[str, str]) -> dict[str, str]:
        """Those of a request; `more` are of its caller's trace and id."""
        try:
            key = self.options.read_key()
        except ValueError as error:
            raise OperatorError(str(error)) from error
        if key and key not in self._keys:
            self._keys.append(key)
        return {**more, **({"authorization": f"Bearer {key}"} if key else {})}

    async def transcribe(
        self,
        samples: Samples,
        sample_rate: int,
        search: Mapping[str, Any],
        *,
        times: bool = True,
        on_text: Callable[[str], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Transcript:
        """The transcript of samples that fit into one request.

        Args:
            samples: (samples,) at `sample_rate` Hz.
            search: as of `request_fields`.
            times: whether those that the server gives are wanted.
            on_text: called with the text so far while it is written, by a server that sends events; without times then.
            headers: of the caller's trace and id.

        Raises:
            InputError: the server has no meaning for what is asked, or refused it.
            RetryError: it does not answer, not in time, or has no room.
            OperatorError: it does not know us or the model, or its answer is none.
        """
        translates = search.get("task") == "translate"
        if translates and not self.options.translates:
            raise InputError(f"model '{self.options.name}' does not translate")
        if on_text is not None and not self.options.events:
            on_text = None
        given: Times = self.options.times if times and on_text is None else "none"
        if translates and given == "words":
            given = "segments"  # OpenAI's translations have no times of words
        fields = [("model", self.model), *request_fields(search, self.options)]
        fields.append(("response_format", "json" if given == "none" else "verbose_json"))
        if not translates and given != "none":
            fields += [("timestamp_granularities[]", each.removesuffix("s")) for each in ("segments", given)]
            fields = list(dict.fromkeys(fields))
        if on_text is not None:
            fields.append(("stream", "true"))
        pcm = await asyncio.to_thread(load_samples, samples, sample_rate, SAMPLE_RATE, pcm=True)
        wav = wav_file(pcm.astype("<i2", copy=False).tobytes(), tag=PCM, width=2, sample_rate=SAMPLE_RATE)
        kind, body = form(fields, wav)
        path = f"{self._path}/audio/{'translations' if translates else 'transcriptions'}"
        sent = {**self.headers(headers or {}), "content-type": kind, "accept": "application/json"}
        if on_text is not None:
            sent["accept"] = "text/event-stream, application/json"

        async def ask(timeout_s: float) -> Transcript:
            if on_text is not None:
                events = TextEvents(on_text, self.clean)
                await self._request(path, sent, body, timeout_s, events.feed)
                return events.transcript(pcm.size / SAMPLE_RATE)
            answer = await self._request(path, sent, body, timeout_s)
            reading = (answer.body, given, pcm.size / SAMPLE_RATE)
            is_large = len(answer.body) > LARGE_BYTES
            return await asyncio.to_thread(read_transcript, *reading) if is_large else read_transcript(*reading)

        return await self.guarded(ask)

    async def guarded(self, work: Callable[[float], Awaitable[Answer]], *, settles: bool = True) -> Answer:
        """What `work` makes of the seconds that are left for it, when it is its turn; again where nothing was lost.

        Args:
            settles: whether its end shows that the server is well; that of a connection for a stream does not.

        Raises:
            GatewayRefusal: the server failed again and again, and is left alone for a while.
            TritoneError: as `work`; a server that answers nothing in time is a `ServerTimeoutError`.
        """
        own, deadline, attempts = self.options, time.monotonic() + self.options.timeout_s, 0
        while True:
            attempts += 1
            try:
                async with self._turn(deadline), self._counted(settles):
                    return await work(max(0.001, deadline - time.monotonic()))
            except (InputError, GatewayRefusal):
                raise
            except TritoneError as error:
                wait_s = self._retries.wait_s(error, attempts, deadline)
                if wait_s is None:
                    raise with_attempts(self._named(error), attempts) from error.__cause__
                self._metrics.upstream_retries.labels(own.name).inc()
                await asyncio.sleep(wait_s)

    def explain(self, error: BaseException, timeout_s: float) -> TritoneError:
        """What a library raised on the way to the server, by what can be done about it."""
        if isinstance(error, TritoneError):
            return error
        if isinstance(error, TimeoutError):
            return ServerTimeoutError(f"no answer within {timeout_s:.3g} s")
        what = self.clean(str(error) or type(error).__name__)
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            # It may have worked on the request: what it made is lost, and asking again would have it do so twice.
            return ServerAnswerError(f"it broke the connection, or what came is no answer: {what}")
        return ServerUnreachableError(f"no connection: {what}")

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> TritoneError:
        """The error of an answer that is no success."""
        message = self.clean(message_of(body), code_of(body)) or "no message"
        if status in (LIMITED, REFUSING):
            kind = LimitedError if status == LIMITED else ServerBusyError
            busy = kind(f"it has no room now ({status}): {message}")
            busy.retry_after_s = seconds_of(headers.get("retry-after"))
            return busy
        if status in (400, 413, 415, 422):
            return InputError(f"model '{self.options.name}': its server refused the request ({status}): {message}")
        if status in (401, 403, 404, 405):
            return OperatorError(f"it refused ({status}), check url, model and key of the upstream: {message}")
        if 300 <= status < 400:
            return OperatorError(f"it is elsewhere ({status}); say that url of the upstream")
        return ServerAnswerError(f"it failed ({status}): {message}")

    def clean(self, message: str, code: str = "") -> str:
        """A message of the server or of a library, as one line that is not too long.

        Of one that quotes the server's key there is the `code` for programs alone.
        """
        if not any(quotes(message, key) for key in self._keys):
            return shortened(message)
        return HIDDEN + (f" (code {code})" if code and not any(quotes(code, key) for key in self._keys) else "")

    def failed(self, error: TritoneError) -> TritoneError:
        """Count what ended a stream, and name the server in it."""
        self._metrics.upstream_requests.labels(self.options.name, _outcome(error)).inc()
        if isinstance(error, InputError):
            return error
        self.circuit.failed()
        return self._named(error)

    def hold_stream(self) -> None:
        """Take one of the streams that the server may have; raises `GatewayRefusal` if none is left."""
        if self._num_streams >= self.options.max_streams:
            message = f"{self._num_streams} streams are open to the server of model '{self.options.name}', the most"
            raise GatewayRefusal(503, f"{message} there may be; try again later", 1.0)
        self._num_streams += 1
        self._metrics.upstream_streams.labels(self.options.name).inc()

    def leave_stream(self, goodbye: "Coroutine[Any, Any, None] | None") -> None:
        """Give a stream back; `goodbye` ends its connection, for which nobody waits."""
        self._num_streams -= 1
        self._metrics.upstream_streams.labels(self.options.name).dec()
        if goodbye is not None:
            task = asyncio.ensure_future(goodbye)
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()
        if self._leaving:
            await asyncio.wait(set(self._leaving))

    async def _request(
        self,
        path: str,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        timeout_s: float,
        on_part: Callable[[bytes], None] | None = None,
    ) -> HttpAnswer:
        try:
            answer = await self._connections.request("POST", path, headers, *body, timeout_s=timeout_s, on_part=on_part)
        except OSError as error:
            raise self.explain(error, timeout_s) from error
        if answer.status != 200:
            raise self.refusal(answer.status, answer.headers, answer.body)
        return answer

    @asynccontextmanager
    async def _turn(self, deadline: float) -> "AsyncIterator[None]":
        """One of the requests that the server may have at once."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._turns.acquire()
        except TimeoutError as error:
            raise ServerBusyError(
                f"its {self.options.max_requests} requests are under way, none of which ended within "
                f"{self.options.timeout_s:g} s"
            ) from error
        try:
            yield
        finally:
            self._turns.release()

    @asynccontextmanager
    async def _counted(self, settles: bool) -> "AsyncIterator[None]":
        """Tell the circuit and the metrics how it ended."""
        name = self.options.name
        if wait_s := self.circuit.enter():
            self._metrics.upstream_requests.labels(name, "circuit_open").inc()
            message = f"the server of model '{name}' failed again and again; try again in {max(1, round(wait_s))} s"
            raise GatewayRefusal(503, message, wait_s, code="upstream_down")
        began, outcome = time.monotonic(), "done"
        try:
            yield
        except BaseException as error:
            outcome = _outcome(error)
            is_busy = isinstance(error, ServerBusyError) and not isinstance(error, LimitedError)
            if is_busy or isinstance(error, FAILURES):
                self.circuit.failed()
            elif isinstance(error, TritoneError):
                self.circuit.succeeded()
            else:
                self.circuit.left()
            raise
        else:
            (self.circuit.succeeded if settles else self.circuit.left)()
        finally:
            self._metrics.upstream_requests.labels(name, outcome).inc()
            self._metrics.upstream_seconds.labels(name).observe(time.monotonic() - began)

    def _named(self, error: TritoneError) -> TritoneError:
        """The error, saying of whom it is."""
        return error.saying(f"upstream '{self.options.name}' at {self.options.url}: {self.clean(str(error))}")

    def _show(self, state: State) -> None:
        for each in STATES:
            self._metrics.upstream_circuit.labels(self.options.name, each).set(each == state)


def _outcome(error: BaseException) -> str:
    return next((word for kind, word in OUTCOMES.items() if isinstance(error, kind)), "failed")


def request_fields(search: Mapping[str, Any], options: UpstreamOptions) -> list[tuple[str, str]]:
    """The fields of a form for request parameters of a model that is given a prompt.

    Args:
        search: `language`, `prompt`, `temperature`, `task` and `word_times`, as of Whisper models.

    Raises:
        InputError: there is another one, or the server gives no times of words.
    """
    named = {"language", "prompt", "temperature"}
    if unknown := sorted(set(search) - named - {"task", "word_times"}):
        raise InputError(
            f"model '{options.name}' is on a server of others, which takes {', '.join(sorted(named))}; it takes no "
            f"{', '.join(unknown)}"
        )
    translates = search.get("task") == "translate"  # OpenAI's translations have no times of words
    if str(search.get("word_times")).lower() in ("true", "1") and (translates or options.times != "words"):
        raise InputError(f"model '{options.name}' gives no times of words; ask for those of segments, or for none")
    return [(name, str(search[name])) for name in sorted(named & set(search)) if search[name] not in ("", None)]


def form(fields: Sequence[tuple[str, str]], wav: bytes) -> tuple[str, tuple[bytes, ...]]:
    """A form with fields and a file.

    Returns:
        Its content type, and the parts of its body.
    """
    boundary = secrets.token_hex(16)
    head = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields
    )
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="audio.wav"\r\n'
        "Content-Type: audio/wav\r\n\r\n"
    )
    return f"multipart/form-data; boundary={boundary}", (head.encode(), wav, f"\r\n--{boundary}--\r\n".encode())
