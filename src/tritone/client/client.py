"""The Triton client: audio in, transcripts, speaker embeddings or speech segments out; or any model's inputs and
outputs; gRPC or HTTP.

with Client("localhost:8001") as client:
    for result in client.transcribe(["a.flac", "b.wav"]):
        print(result.source, result.text)
    for result in client.embed(["a.flac", "b.wav"]):
        print(result.source, result.embedding)
    for result in client.detect(["a.flac", "b.wav"]):
        print(result.source, result.segments)
    for result in client.infer([{"INPUT": array}], model="any"):
        print(result.get()["OUTPUT"])
"""

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity
from tritone.audio.inputs import AudioInput, all_or_one, is_single, source_of
from tritone.audio.spoken import Spoken, joined
from tritone.audio.waveform import Waveform
from tritone.client.control import ModelControl
from tritone.client.defaults import DEFAULT_CHUNK_MS, DEFAULT_CONCURRENCY, DEFAULT_RETRIES, DEFAULT_TIMEOUT_S
from tritone.client.device_array import is_on_gpu
from tritone.client.endpoint import Endpoint
from tritone.client.models import Kind, ModelInfo, choose
from tritone.client.parameters import Parameter, Search, request_parameters
from tritone.client.replies import (
    ActivityReply,
    EmbeddingReply,
    FramesReply,
    Reply,
    SpokenReply,
    TensorReply,
    TextReply,
)
from tritone.client.requests import LOST_AFTER_S, Asked, ModelInput, Requests
from tritone.client.retries import Retries, RetryingTransport
from tritone.client.segmenter import ServedSegmenter
from tritone.client.stream import (
    DEFAULT_RESUME_S,
    ActivityStream,
    ClientStream,
    new_sequence_id,
)
from tritone.client.transport import TO_SPEAK, WAVEFORM, Call, Transport, connect
from tritone.errors import InputError, ServerBusyError, TritoneError
from tritone.keys import find_key
from tritone.longform import BlockActivity, LongForm, OpenActivity
from tritone.longform.longform import read
from tritone.net.routing import new_stream_key
from tritone.result import ActivityResult, AnyResult, EmbeddingResult, FramesResult, Result, TranscriptResult

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tritone.client.shared_memory import SharedMemoryTransport

UNLOADED = "unloaded"  # the reason in Triton's index of a model that did not fail
TIMED_CHARS = 1000  # of a text to speak: about a minute of speech, for which there is the limit of one request
GOODBYE_S = 5.0  # for the end of a sequence that nobody wants any more


class SendOptions(TypedDict, total=False):
    """How inputs are sent."""

    concurrency: int  # requests in flight, at least 1 (8 if not given)
    sample_rate: int | None  # of arrays, in Hz; None says they have the model's rate already


class TranscribeRequest(SendOptions, total=False):
    """How inputs are transcribed, by a server or in this process.

    `search` chooses how to search, by the names of the wire contract: `{"search": "rescoring", "nbest": 5}`; the model
    decides what it does not name. More than one reading (`nbest`) brings details with it.
    """

    details: bool  # whether to return tokens, words, times and confidences too
    search: Search | None
    vad: str | None  # of long recordings, see `Client.transcribe`


class EmbedRequest(SendOptions, total=False):
    """How inputs are embedded; None leaves it to the model."""

    window_s: float | None  # longer audio is embedded in windows of so many seconds, and their mean returned; 0: whole
    shift_s: float | None  # from one window to the next, in seconds; 0 is `window_s`


class DetectRequest(SendOptions, total=False):
    """How speech is found in inputs.

    `options`: by the names of the wire contract, `{"threshold": 0.6}`; the model decides what they do not name.
    """

    options: Mapping[str, Any] | None
    probabilities: bool  # whether to return the probability of speech in each frame, too


class Client:
    """A connection to one Triton server. Thread-safe; close it, or use it in a `with` statement.

    Args:
        url: "host:port" (gRPC), "grpc://host:port" or "http://host:port"; "grpcs://" and "https://" use TLS.
        protocol: "grpc" or "http" for a URL without a scheme.
        timeout_s: how long one request may take, queueing and further attempts included, in seconds. It is sent along,
            so that the server need not compute what nobody waits for.
        retries: how often a request is sent again that the server could not take: it was busy, or could not be
            reached. Waits grow from about 0.25 s, and are no shorter than the server asks for. 0 by default: the caller
            may send again itself, and a busy server should not get more work unasked. Of a stream only the first chunk
            is sent again, unless it is opened with `resume`.
        ca, certificate, private_key: PEM files for TLS: the authorities to trust in place of the system's, and the
            client's own certificate and its key for mutual TLS.
        key: what opens a server's restricted functions; ordinary requests need none. With `shared_memory`, the key of
            a server of this user on this machine is found if none is given.
        pcm: whether audio is sent as 16-bit samples, half the bytes, where the model takes them. None does it where
            nothing is lost: files and arrays of 16 bits at the model's rate. False never does it. True does it with all
            audio, which is rounded, and wants a model that takes it.
        shared_memory: "system", for a server on this machine: audio is copied to memory that it reads, and not sent
            through a connection. "cuda" or "cuda:N": the same in the memory of a GPU, also for arrays that are on one.

    Raises:
        ValueError: the URL or a file cannot be used. Nothing is sent before the first call of a method.
    """

    def __init__(
        self,
        url: str,
        *,
        protocol: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int = DEFAULT_RETRIES,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        private_key: str | Path | None = None,
        key: str | None = None,
        pcm: bool | None = None,
        shared_memory: str | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        self.endpoint = Endpoint.parse(url, protocol, ca=ca, certificate=certificate, private_key=private_key, key=key)
        self.timeout_s = timeout_s
        self._retries = Retries(retries)
        self._pcm = pcm
        self.shared_memory = shared_memory
        self._shared: SharedMemoryTransport | None = None
        transport = connect(self.endpoint) if shared_memory is None else self._share(shared_memory)
        self._transport: Transport = RetryingTransport(transport, self._retries) if retries else transport
        self._chosen: dict[tuple[str | None, Kind | None], ModelInfo] = {}
        self._seen: dict[str, ModelInfo] = {}  # as they were last

    def _share(self, memory: str) -> Transport:
        from tritone.client.shared_memory import SharedMemoryTransport  # not every system has it

        endpoint = self.endpoint
        if endpoint.key is None and endpoint.is_loopback:
            self.endpoint = endpoint = replace(endpoint, key=find_key(endpoint.port))
        self._shared = SharedMemoryTransport(connect(endpoint), endpoint, memory)
        return self._shared

    def pcm_of(self, model: ModelInfo) -> bool | None:
        """How a model's audio is sent, as of `audio.inputs.load_samples`; raises `InputError` if it cannot be."""
        if self._pcm and not model.has_pcm:
            raise InputError(
                f"{self.endpoint}: model '{model.name}' takes no 16-bit audio. Leave pcm (--pcm) out, or build its "
                "repository again with this version of Tritone."
            )
        return self._pcm if model.has_pcm else False

    @property
    def control(self) -> ModelControl:
        """The server's models as its operator sees them: their states and counters, loading and unloading."""
        return ModelControl(self._transport, self.endpoint, self.timeout_s)

    def models(self) -> list[ModelInfo]:
        """The ready models, by name.

        Raises:
            RetryError: the server cannot be reached or does not answer in time.
        """
        self._chosen.clear()
        return self._described(self._ready_names())

    def model(self, name: str | None = None, *, kind: Kind | None = "offline") -> ModelInfo:
        """The ready model of that name, or the only ready one of that kind (None: of any).

        It is remembered until `models()` is called.

        Raises:
            InputError: no such model, or several would do; the message lists what there is.
            RetryError: the server has it and it is not ready now, or the server cannot be reached or does not answer
                in time.
        """
        if (name, kind) not in self._chosen:
            try:
                found = self._found(name, kind)
            except InputError:
                # Those that are not ready are not listed. Of a kind they are known if they were ready before.
                known = [each.name for each in self._seen.values() if kind in (None, each.kind)]
                for each in known if name is None else [name]:
                    self._require_absent(each)
                found = self._found(name, kind)  # it may be ready by now
            self._chosen[name, kind] = found
        return self._chosen[name, kind]

    def _found(self, name: str | None, kind: Kind | None) -> ModelInfo:
        ready = self._ready_names()
        # A server may have hundreds of models: only those that matter are asked for.
        models = self._described([name] if name in ready else ready)
        if models and models[0].name == name and kind not in (None, models[0].kind):
            models = self._described(ready)  # the message tells which would do
        missing = "" if name is None or name in ready else self._reason(name)
        return choose(models, name, kind, self.endpoint, missing)

    @overload
    def transcribe(  # type: ignore[overload-overlap]  # a path is an iterable of letters, too
        self, inputs: AudioInput, model: str | None = None, **options: "Unpack[TranscribeRequest]"
    ) -> TranscriptResult: ...

    @overload
    def transcribe(
        self, inputs: Iterable[AudioInput], model: str | None = None, **options: "Unpack[TranscribeRequest]"
    ) -> list[TranscriptResult]: ...

    def transcribe(
        self, inputs: Any, model: str | None = None, **options: "Unpack[TranscribeRequest]"
    ) -> TranscriptResult | list[TranscriptResult]:
        """Transcribe files or waveforms with an offline model.

        An input that fails keeps its error in its own result and does not disturb the others. Recordings that are
        longer than the model takes at once are cut into pieces, whose texts are joined
        (docs/applications/long-audio.md): at pauses that the model `vad` of the server finds; None takes the only one
        for voice activity if there is one, "" none.

        Args:
            inputs: paths (audio or video of any format and sample rate, channels are averaged) and arrays:
                (samples,) or (samples, channels), floating point in [-1, 1] or int16. Or a single one.
            model: which model; None takes the only offline one there is.
            options: see `TranscribeRequest`.

        Returns:
            The results, in the order of the inputs. Of a single input its result, whose error is raised.

        Raises:
            InputError: no such model, or it is too old for `search`.
            RetryError: the server cannot be reached before anything was sent.
            ValueError: `concurrency` is below 1, or `search` cannot be sent.
        """
        return all_or_one(inputs, lambda each: self.transcribe_iter(each, model, **options))

    def transcribe_iter(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        details: bool = False,
        search: Search | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
        vad: str | None = None,
    ) -> Iterator[TranscriptResult]:
        """Like `transcribe`, but yields each result as it completes; `result.index` tells which input it belongs to.

        Inputs are read only when there is room for them, so `inputs` may be a generator of any length. Leaving the
        loop early abandons the requests in flight.
        """
        info = self.model(model, kind="offline")
        ask = Asked.of(info, details, search, self.endpoint)
        longest_s = info.max_audio_s
        long_form = LongForm(
            info.sample_rate,
            lambda: math.inf if longest_s is None else longest_s,
            details=ask.details,
            activity=lambda: self._activity(vad, info.sample_rate),
            context=info.has_words and (ask.details or not info.has_word_times),
        )
        _check_inputs(inputs)
        opened = partial(
            read, sample_rate=sample_rate, wanted=info.sample_rate, longest_s=longest_s, pcm=self.pcm_of(info)
        )

        def recordings() -> Generator[Result[Any], None, None]:
            for index, item in enumerate(inputs):
                if isinstance(item, Result):
                    yield item
                    continue
                found: Any = item
                error: TritoneError | None = None
                if not isinstance(item, Mapping) and not is_on_gpu(item):
                    try:
                        found = opened(item)
                    except TritoneError as failure:
                        error = failure
                yield Result(index=index, source=source_of(item, index), value=None if error else found, error=error)

        with_context = TextReply(True) if info.has_details else None
        cut = long_form.cut(recordings())
        results = self._run(
            cut,
            info,
            TextReply(ask.details),
            TranscriptResult,
            ask.parameters,
            concurrency,
            sample_rate,
            context_reply=with_context,
        )
        return long_form.join(results, cut)

    @overload
    def embed(  # type: ignore[overload-overlap]
        self, inputs: AudioInput, model: str | None = None, **options: "Unpack[EmbedRequest]"
    ) -> EmbeddingResult: ...

    @overload
    def embed(
        self, inputs: Iterable[AudioInput], model: str | None = None, **options: "Unpack[EmbedRequest]"
    ) -> list[EmbeddingResult]: ...

    def embed(
        self, inputs: Any, model: str | None = None, **options: "Unpack[EmbedRequest]"
    ) -> EmbeddingResult | list[EmbeddingResult]:
        """Embed files or waveforms with a speaker model; inputs, results and errors are those of `transcribe`.

        Args:
            model: which model; None takes the only one for embeddings there is.
            options: see `EmbedRequest`.

        Raises:
            InputError: it takes no windows, too.
        """
        return all_or_one(inputs, lambda each: self.embed_iter(each, model, **options))

    def embed_iter(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        window_s: float | None = None,
        shift_s: float | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> Iterator[EmbeddingResult]:
        """Like `embed`, but yields each result as it completes, as `transcribe_iter` does."""
        info = self.model(model, kind="embedding")
        parameters = request_parameters({"window_s": window_s, "shift_s": shift_s})
        info.check_windows(parameters, self.endpoint)
        return self._run(inputs, info, EmbeddingReply(), EmbeddingResult, parameters, concurrency, sample_rate)

    @overload
    def detect(  # type: ignore[overload-overlap]
        self, inputs: AudioInput, model: str | None = None, **options: "Unpack[DetectRequest]"
    ) -> ActivityResult: ...

    @overload
    def detect(
        self, inputs: Iterable[AudioInput], model: str | None = None, **options: "Unpack[DetectRequest]"
    ) -> list[ActivityResult]: ...

    def detect(
        self, inputs: Any, model: str | None = None, **options: "Unpack[DetectRequest]"
    ) -> ActivityResult | list[ActivityResult]:
        """Find the speech in files or waveforms; inputs, results and errors are those of `transcribe`.

        Args:
            model: which model; None takes the only one for voice activity there is.
            options: see `DetectRequest`.
        """
        return all_or_one(inputs, lambda each: self.detect_iter(each, model, **options))

    def detect_iter(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> Iterator[ActivityResult]:
        """Like `detect`, but yields each result as it completes, as `transcribe_iter` does."""
        info, reply = self.model(model, kind="activity"), ActivityReply(probabilities)
        return self._run(inputs, info, reply, ActivityResult, request_parameters(options), concurrency, sample_rate)

    @overload
    def diarize(  # type: ignore[overload-overlap]
        self, inputs: AudioInput, model: str | None = None, **options: "Unpack[DetectRequest]"
    ) -> ActivityResult: ...

    @overload
    def diarize(
        self, inputs: Iterable[AudioInput], model: str | None = None, **options: "Unpack[DetectRequest]"
    ) -> list[ActivityResult]: ...

    def diarize(
        self, inputs: Any, model: str | None = None, **options: "Unpack[DetectRequest]"
    ) -> ActivityResult | list[ActivityResult]:
        """Find who speaks when in files or waveforms, by a model that tells speakers apart itself.

        Segments have speakers, and those of several may overlap. Arguments, results and errors are those of `detect`;
        probabilities are (frames, speakers).
        """
        return all_or_one(inputs, lambda each: self.diarize_iter(each, model, **options))

    def diarize_iter(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> Iterator[ActivityResult]:
        """Like `diarize`, but yields each result as it completes, as `transcribe_iter` does."""
        info, reply = self.model(model, kind="diarization"), ActivityReply(probabilities, speakers=True)
        return self._run(inputs, info, reply, ActivityResult, request_parameters(options), concurrency, sample_rate)

    @overload
    def segment(  # type: ignore[overload-overlap]
        self, inputs: AudioInput, model: str | None = None, **options: "Unpack[SendOptions]"
    ) -> FramesResult: ...

    @overload
    def segment(
        self, inputs: Iterable[AudioInput], model: str | None = None, **options: "Unpack[SendOptions]"
    ) -> list[FramesResult]: ...

    def segment(
        self, inputs: Any, model: str | None = None, **options: "Unpack[SendOptions]"
    ) -> FramesResult | list[FramesResult]:
        """Find who talks in the frames of windows, by a segmentation network; several may talk at once.

        Inputs are files or waveforms of up to a window (10 s of segmentation-3.0), which longer ones are an
        `InputError` for; results are (frames, speakers) of 0 and 1, and speakers are those of the window alone.
        Arguments and errors else are those of `transcribe`. For whole recordings, `Diarizer` takes `segmenter()`.

        Args:
            model: which model; None takes the only one for segmentation there is.
        """
        return all_or_one(inputs, lambda each: self.segment_iter(each, model, **options))

    def segment_iter(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> Iterator[FramesResult]:
        """Like `segment`, but yields each result as it completes, as `transcribe_iter` does."""
        info = self.model(model, kind="segmentation")
        return self._run(inputs, info, FramesReply(), FramesResult, {}, concurrency, sample_rate)

    def segmenter(self, model: str | None = None) -> ServedSegmenter:
        """A served segmentation network, as `Diarizer` takes it.

        Raises:
            TritoneError: there is no such model, or the server cannot be asked.
        """
        return ServedSegmenter(self, self.model(model, kind="segmentation"))

    def speak(self, text: str, model: str | None = None, **options: Any) -> Spoken:
        """Speak a text, as a whole.

        Args:
            text: of up to 16,384 characters; it may take the client's `timeout_s` for each 1,000 that it begins.
            model: which voice; None takes the only one there is.
            options: `speed`, 0.25 to 4, and `speaker`, one of the voice's; the model decides what is not given.

        Raises:
            InputError: no such model; the text is empty or too long, or has nothing that can be spoken; or an option is
                unfit.
            RetryError: the server cannot be reached, or takes no request now.
        """
        return joined(list(self.speak_iter(text, model, **options)))

    def speak_iter(self, text: str, model: str | None = None, **options: Any) -> Generator[Spoken, None, None]:
        """Speak a text, and yield each sentence as soon as it has come; arguments and errors as of `speak`."""
        yield from self._transport.answers(self._speech(self.model(model, kind="synthesis"), text, options))

    def _speech(self, info: ModelInfo, text: str, options: Mapping[str, Any]) -> Call[Spoken]:
        return Call(
            model=info.name,
            tensors=info.tensors({TO_SPEAK: np.array([text.encode(errors="replace")], dtype=object)}),
            timeout_s=self.timeout_s * max(1, math.ceil(len(text) / TIMED_CHARS)),
            reply=SpokenReply(info.sample_rate),
            parameters=request_parameters(options),
        )

    def infer(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        classes: int = 0,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> list[Result[dict[str, npt.NDArray[Any]]]]:
        """Ask any model that the server has, by the inputs and outputs that its configuration names.

        An input that fails keeps its error in its own result and does not disturb the others.

        Args:
            inputs: each a mapping of the model's inputs to arrays of one row, or audio as for `transcribe`, which is
                sent as `WAV`, and `WAV_LENS` where the model takes it.
            model: which model; None takes the only one there is.
            parameters: request parameters, by name.
            outputs: names of the outputs to return; None returns all.
            classes: return so many classes in place of each output, the likeliest first: text "score:index:label" as
                bytes, the label where the model has labels. 0 returns the outputs themselves.
            concurrency, sample_rate: see `SendOptions`.

        Returns:
            The results, in the order of the inputs: arrays by the names of the outputs, without the axis of rows. Text
            comes as bytes.

        Raises:
            InputError: no such model or output, or the model is for streams.
            RetryError: the server cannot be reached before anything was sent.
            ValueError: `concurrency` is below 1, or a parameter cannot be sent.
        """
        results = self.infer_iter(
            inputs,
            model,
            parameters=parameters,
            outputs=outputs,
            classes=classes,
            concurrency=concurrency,
            sample_rate=sample_rate,
        )
        return sorted(results, key=lambda result: result.index)

    def infer_iter(
        self,
        inputs: Iterable[ModelInput],
        model: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        classes: int = 0,
        concurrency: int = DEFAULT_CONCURRENCY,
        sample_rate: int | None = None,
    ) -> Iterator[Result[dict[str, npt.NDArray[Any]]]]:
        """Like `infer`, but yields each result as it completes, as `transcribe_iter` does."""
        info = self.model(model, kind=None)
        if info.is_sequence:
            advice = "Client.stream" if WAVEFORM in info.inputs else "Client.infer_sequence"
            raise InputError(f"{self.endpoint}: model '{info.name}' is for streams; use {advice}")
        if classes < 0:
            raise ValueError(f"classes must be 0 or more, got {classes}")
        reply = self._reply(info, outputs, classes)
        given = request_parameters(parameters)
        return self._run(inputs, info, reply, Result, given, concurrency, sample_rate, classes)

    def infer_stream(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        model: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> Generator[dict[str, npt.NDArray[Any]], None, None]:
        """Send one request, and yield each answer as it comes: many of a generator (a decoupled model), one of others.

        The time limit of the client holds until the last answer. Over gRPC. After a loop that is left early the other
        answers are read in the background and dropped: Triton 2.51 can crash when such a call is cancelled.

        Args:
            inputs: arrays of one row by the names of the model's inputs.
            model, parameters, outputs: as for `infer`.

        Raises:
            InputError: no such model or output, an input does not fit, or the connection is by HTTP.
            RetryError: the server could not take the request.
        """
        yield from self._transport.answers(self._call(self.model(model, kind=None), inputs, parameters, outputs))

    def infer_sequence(
        self,
        inputs: Iterable[Mapping[str, npt.ArrayLike]],
        model: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
    ) -> Generator[dict[str, npt.NDArray[Any]], None, None]:
        """Send one sequence to a model that keeps states for it, and yield the outputs of each request.

        A request is sent when the answer to the one before it has come. Leaving the loop early ends the sequence.

        Args:
            inputs: the requests in their order, each a mapping of the model's inputs to arrays of one row.
            model, parameters, outputs: as for `infer`.

        Raises:
            InputError: no such model or output, or an input does not fit; the sequence is over then.
            RetryError: the server could not take a request, or forgot the sequence.
        """
        info = self.model(model, kind=None)
        if not info.is_sequence:
            raise InputError(f"{self.endpoint}: model '{info.name}' keeps no states; use Client.infer")
        reply, given = self._reply(info, outputs, 0), request_parameters(parameters)
        waiting, started, ended = deque[Mapping[str, npt.ArrayLike]](), False, False
        call = Call(
            model=info.name,
            tensors={},
            timeout_s=self.timeout_s,
            reply=reply,
            sequence_id=new_sequence_id(),
            parameters=given,
            route=new_stream_key(),
        )
        source = iter(inputs)
        try:
            waiting.extend(islice(source, 1))
            while waiting:
                call = replace(call, tensors=info.tensors(waiting.popleft()), start=not started)
                waiting.extend(islice(source, 1))  # only the next one tells whether this is the last
                ended, started = not waiting, True
                yield self._transport.infer(replace(call, end=ended)).result(self.timeout_s + LOST_AFTER_S)
        finally:
            if started and not ended:
                goodbye = replace(call, start=False, end=True, timeout_s=GOODBYE_S, parameters={})
                with suppress(TritoneError, FutureTimeoutError):
                    self._transport.infer(goodbye).result(GOODBYE_S + LOST_AFTER_S)

    def _call(
        self,
        info: ModelInfo,
        inputs: Mapping[str, npt.ArrayLike],
        parameters: Mapping[str, Any] | None,
        outputs: Sequence[str] | None,
        classes: int = 0,
    ) -> Call[dict[str, npt.NDArray[Any]]]:
        """The one request of `infer_stream`, and those of an `AsyncClient`."""
        if info.is_sequence:
            raise InputError(f"{self.endpoint}: model '{info.name}' keeps states; use Client.infer_sequence")
        if classes < 0:
            raise ValueError(f"classes must be 0 or more, got {classes}")
        return Call(
            model=info.name,
            tensors=info.tensors(inputs),
            timeout_s=self.timeout_s,
            reply=self._reply(info, outputs, classes),
            parameters=request_parameters(parameters),
            classes=classes,
        )

    def _reply(self, info: ModelInfo, outputs: Sequence[str] | None, classes: int) -> TensorReply:
        wanted = list(info.outputs) if outputs is None else outputs
        if unknown := [name for name in wanted if name not in info.outputs]:
            raise InputError(
                f"{self.endpoint}: model '{info.name}' has no output {', '.join(unknown)}; it has "
                f"{', '.join(info.outputs)}"
            )
        return TensorReply({name: 1 if classes else len(info.outputs[name].dims) for name in wanted})

    def stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        details: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        search: Search | None = None,
        resume: bool = False,
        resume_s: float = DEFAULT_RESUME_S,
    ) -> ClientStream:
        """Open a stream on a streaming model.

        Args:
            model: which model; None takes the only streaming one there is.
            sample_rate: of the samples that will come, in Hz; None says they have the model's rate already.
            details: also ask for tokens, words, times and confidences with every answer.
            chunk_ms: audio per request, in milliseconds. Shorter pieces are gathered, longer ones cut.
            search: as for `transcribe`; it holds for the whole stream.
            resume: start a stream again that its server lost, and send its audio again from the start, so that no word
                is lost and none comes twice. It is tried again and again for `timeout_s`, also with `retries` 0.
            resume_s: audio that is kept for it, in seconds; a stream that is longer is not started again.

        Raises:
            InputError: no such model, or it is too old for `search`.
            RetryError: the server cannot be reached or does not answer in time.
            ValueError: `search` cannot be sent, or `resume_s` is not positive.
        """
        info = self.model(model, kind="streaming")
        ask = Asked.of(info, details, search, self.endpoint)
        return ClientStream(
            self._transport,
            info,
            details=ask.details,
            parameters=ask.parameters,
            **self.stream_options(info, sample_rate, chunk_ms, resume_s if resume else None),
        )

    def detect_stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        resume: bool = False,
        resume_s: float = DEFAULT_RESUME_S,
    ) -> ActivityStream:
        """Open a stream on a streaming model for voice activity.

        Args:
            model: which model; None takes the only one for voice activity in streams there is.
            sample_rate, chunk_ms, resume, resume_s: as of `stream`, errors too.
            options, probabilities: see `DetectRequest`; they hold for the whole stream.
        """
        info = self.model(model, kind="activity-streaming")
        return ActivityStream(
            self._transport,
            info,
            probabilities=probabilities,
            parameters=request_parameters(options),
            **self.stream_options(info, sample_rate, chunk_ms, resume_s if resume else None),
        )

    def diarize_stream(
        self,
        model: str | None = None,
        *,
        sample_rate: int | None = None,
        options: Mapping[str, Any] | None = None,
        probabilities: bool = False,
        chunk_ms: float = DEFAULT_CHUNK_MS,
        resume: bool = False,
        resume_s: float = DEFAULT_RESUME_S,
    ) -> ActivityStream:
        """Open a stream on a streaming model that tells speakers apart; arguments and errors as of `detect_stream`.

        Answers also have the turns under way, `speaking`, and the time up to which all is known, `known_s`.
        """
        info = self.model(model, kind="diarization-streaming")
        return ActivityStream(
            self._transport,
            info,
            probabilities=probabilities,
            speakers=True,
            parameters=request_parameters(options),
            **self.stream_options(info, sample_rate, chunk_ms, resume_s if resume else None),
        )

    def stream_options(
        self, model: ModelInfo, sample_rate: int | None, chunk_ms: float, resume_s: float | None
    ) -> dict[str, Any]:
        """What every stream is opened with, those of an `AsyncClient` too; see `StreamSteps`."""
        return {
            "sample_rate": sample_rate,
            "chunk_ms": chunk_ms,
            "timeout_s": self.timeout_s,
            "retries": self._retries,
            "pcm": self._prepare(model),
            "resume_s": resume_s,
        }

    def _prepare(self, model: ModelInfo) -> bool | None:
        """Register shared memory where it is used; returns what `pcm_of` does."""
        if self._shared is not None:
            self._shared.prepare()
        return self.pcm_of(model)

    def _activity(self, name: str | None, sample_rate: int) -> OpenActivity | None:
        """What opens streams of voice activity for long recordings; see `transcribe` for `name`."""
        if name == "":
            return None
        if name is None and not any(each.kind == "activity" for each in map(self._describe, self._ready_names())):
            return None
        info = self.model(name, kind="activity")

        def detect(samples: Waveform) -> SpeechActivity:
            return self.detect(samples, info.name, sample_rate=sample_rate).get()

        longest_s = math.inf if info.max_audio_s is None else info.max_audio_s
        return lambda: BlockActivity(detect, sample_rate, longest_s)

    def _ready_names(self) -> list[str]:
        # The index of the repository, which also lists other models, may be locked.
        return sorted({entry["name"] for entry in self._transport.statistics("", self.timeout_s)})

    def _require_absent(self, name: str) -> None:
        """Raise `ServerBusyError` if the server has a model that may be ready later."""
        try:
            self._describe(name)
        except InputError:
            return
        except ServerBusyError:
            states = self._states(name)
            if states is None or any(each.get("reason", UNLOADED) == UNLOADED for each in states):
                raise

    def _states(self, name: str) -> list[dict[str, Any]] | None:
        """The versions of a model in the server's index; None if that cannot be asked, which needs its key."""
        if self.endpoint.key is None:
            return None
        try:
            index = self._transport.model_index(self.timeout_s)
        except TritoneError:
            return None
        return [entry for entry in index if entry["name"] == name]

    def _reason(self, name: str) -> str:
        """Why a model is not ready; empty if that cannot be found out."""
        states = self._states(name) or []
        lines = [line for entry in states for line in entry.get("reason", "").splitlines() if line.strip()]
        return lines[0] if lines else states[0].get("state", "") if states else ""

    def _described(self, names: Iterable[str]) -> list[ModelInfo]:
        found = []
        for name in names:
            with suppress(ServerBusyError):  # it was ready a moment ago
                found.append(self._describe(name))
        return found

    def _describe(self, name: str) -> ModelInfo:
        found = self._seen[name] = ModelInfo.from_config(self._transport.model_config(name, self.timeout_s))
        return found

    def close(self) -> None:
        """Close the connection and its threads. Requests in flight are abandoned. Closing twice is fine."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(
        self,
        inputs: Iterable[ModelInput],
        model: ModelInfo,
        reply: Reply[Any],
        result: type[AnyResult],
        parameters: Mapping[str, Parameter],
        concurrency: int,
        sample_rate: int | None,
        classes: int = 0,
        context_reply: Reply[Any] | None = None,
    ) -> Generator[AnyResult, None, None]:
        """The one request underneath all: send inputs to a model, yield results as they complete."""
        _check_inputs(inputs)
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        return Requests(
            transport=self._transport,
            model=model,
            reply=reply,
            result=result,
            parameters=parameters,
            concurrency=concurrency,
            sample_rate=sample_rate,
            timeout_s=self.timeout_s,
            pcm=self._prepare(model),
            takes_gpu=self._shared is not None and self._shared.is_on_gpu,
            classes=classes,
            context_reply=context_reply,
        ).run(inputs)


def _check_inputs(inputs: object) -> None:
    if is_single(inputs) or isinstance(inputs, np.ndarray | Mapping):
        raise ValueError("inputs must be a list of paths, waveforms or mappings; put a single one into a list")
