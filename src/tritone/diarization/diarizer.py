"""Who speaks when in a recording or a stream, from embeddings of windows of its speech.

    diarizer = Diarizer(embed, sample_rate=16000, listen=detector.stream)
    diarizer.diarize("meeting.wav")     ->  Diarization(turns, speakers, audio_s)
    with diarizer.stream() as stream: stream.accept(samples); stream.finish()

`embed` and `listen` are functions, so that models in this process and served ones are used alike. At every moment there
is at most one speaker: speech of several at once is given to one of them, unless a segmentation network tells them
apart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.files import AudioBlocks
from tritone.audio.inputs import AudioInput, load, source_of
from tritone.audio.waveform import Waveform, widened
from tritone.diarization.activity import turns_of_activity
from tritone.diarization.clustering import Labels, grouped
from tritone.diarization.listening import GivenSpeechStream, LevelStream
from tritone.diarization.names import Name, name_speakers
from tritone.diarization.online import OnlineSpeakers, unused_labels
from tritone.diarization.options import SpeakerOptions
from tritone.diarization.segmented import (
    NOBODY,
    OVERLAP_S,
    SHIFT_S,
    Activity,
    LocalSpeaker,
    Segmenter,
    SlidingWindows,
    label_local,
    local_speakers,
    speaker_frames,
    talk_at_once,
)
from tritone.diarization.voices import SHORT_SHARE, Floats, label_windows
from tritone.diarization.windows import Window, WindowCutter, turns_of
from tritone.errors import InputError
from tritone.formats.rttm import Turn

EMBEDDED_TOGETHER = 64  # windows
SEGMENTED_TOGETHER = 8  # windows of a segmentation network
STEP_S = 4.0  # audio that a detector gets at a time
LIVE_S = 0.2  # of audio, after which the speaker of a segment that goes on is looked for again
NO_SAMPLES: Waveform = np.zeros(0, np.float32)

Embed = Callable[[Sequence[Waveform]], Floats]
"""Waveforms (samples,) float32 of any length to embeddings (waveforms, dim); raises `TritoneError`."""


class Listener(Protocol):
    """A stream of a voice activity detector: `Detector.stream`, `Client.detect_stream`, or `LevelStream`."""

    def accept(self, samples: Waveform, /) -> SpeechActivity: ...

    def finish(self) -> SpeechActivity: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Speaker:
    """A speaker of a recording: the label in its turns, seconds of speech, and the mean of the window's embeddings.

    `voice` (dim,) has length 1. `name`: the enrolled speaker whose voice it is, None where none is similar enough.
    """

    label: str
    speech_s: float
    voice: Floats = field(repr=False, compare=False)
    name: Name | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the voice."""
        named = {} if self.name is None else {"name": self.name.name, "similarity": round(self.name.similarity, 4)}
        return {"speaker": self.label, "speech_s": round(self.speech_s, 3), **named}


@dataclass(frozen=True)
class Frames:
    """Who talks in each frame: `activity` (frames, speakers), a column for each of the `labels`.

    `start_s`: the time of the first frame, `frame_s`: from one to the next, in seconds.
    """

    labels: tuple[str, ...]
    activity: Activity = field(repr=False, compare=False)
    start_s: float
    frame_s: float

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: of each speaker a text of a digit for each frame, 1 where the speaker talks."""
        rows = (self.activity.T + ord("0")).astype(np.uint8)
        return {
            "start_s": round(self.start_s, 6),
            "frame_s": round(self.frame_s, 6),
            "talking": {label: row.tobytes().decode() for label, row in zip(self.labels, rows, strict=True)},
        }


@dataclass(frozen=True)
class Diarization:
    """Who speaks when. Turns are in order; those of two speakers overlap where a segmentation network says so.

    Speakers are in the order of their first turns. `frames`: where a segmentation network was there.
    """

    turns: tuple[Turn, ...]
    speakers: tuple[Speaker, ...]
    audio_s: float
    frames: Frames | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, times rounded to the millisecond; without frames."""
        return {
            "audio_s": round(self.audio_s, 3),
            "speakers": [each.to_dict() for each in self.speakers],
            "turns": [
                {"start_s": round(each.start_s, 3), "end_s": round(each.end_s, 3), "speaker": each.speaker}
                for each in self.turns
            ],
        }


class Diarizer:
    """Diarizes recordings and streams; holds nothing of them afterwards."""

    def __init__(
        self,
        embed: Embed,
        *,
        sample_rate: int,
        listen: Callable[[], Listener] | None = None,
        segmenter: Segmenter | None = None,
        options: SpeakerOptions | None = None,
        enrolled: Mapping[str, Floats] | None = None,
        enrolled_cosine: float | None = None,
    ) -> None:
        """Take the models.

        Args:
            embed: see `Embed`.
            sample_rate: of what `embed` and `listen` take, in Hz.
            listen: opens a stream of a detector; None finds speech by its level (`LevelStream`).
            segmenter: a segmentation network for the same rate, which finds speech and speakers who talk at once in
                whole recordings; nobody listens then, and the options of windows are not used.
            options: how to diarize.
            enrolled: known voices (dim,) of the same speaker model, by name.
            enrolled_cosine: cosine from which a speaker is one of them; needed with `enrolled`.

        Raises:
            ValueError: `enrolled` without `enrolled_cosine`.
        """
        if enrolled and enrolled_cosine is None:
            raise ValueError("enrolled voices need enrolled_cosine, from which a speaker is one of them")
        if segmenter is not None and listen is not None:
            raise ValueError("a segmentation network finds speech itself; give segmenter or listen")
        self.sample_rate = sample_rate
        self.options = options or SpeakerOptions()
        self._embed, self._listen, self._segmenter = embed, listen, segmenter
        self._enrolled, self._enrolled_cosine = dict(enrolled or {}), enrolled_cosine

    def diarize(
        self,
        source: AudioInput | bytes,
        sample_rate: int | None = None,
        *,
        recording: str = "",
        speech: Iterable[SpeechSegment] | None = None,
    ) -> Diarization:
        """Diarize a file or an array. Files are decoded as they are read; of their audio, no more than minutes is held.

        Args:
            source: a path, the bytes of a file, or (samples,) or (samples, channels) in [-1, 1].
            sample_rate: of the array, in Hz; None means `self.sample_rate`.
            recording: name of the recording in the turns; that of the source if not given.
            speech: where there is speech, in order, where that is known; nobody listens then. A segmentation
                network finds speech itself, whatever this is.

        Raises:
            AudioError: the audio cannot be used.
            TritoneError: a model failed.
        """
        if self._segmenter is not None:
            blocks = blocks_of(source, sample_rate, self.sample_rate)
            return self._diarize_segmented(self._segmenter, blocks, recording or source_of(source, 0))
        listener = self._listener() if speech is None else GivenSpeechStream(speech, self.sample_rate)
        name = recording or source_of(source, 0)
        with closing(listener):
            work = _Work(self, listener)
            for samples in blocks_of(source, sample_rate, self.sample_rate):
                work.accept(samples)
            work.finish()
        return self._result(work, name)

    def play(
        self, source: AudioInput | bytes, sample_rate: int | None = None, *, recording: str = ""
    ) -> Iterator[Turn]:
        """Play a file or an array into a stream, and yield each turn when its segment has ended; as of `diarize`."""
        with self.stream(recording or source_of(source, 0)) as stream:
            for samples in blocks_of(source, sample_rate, self.sample_rate):
                yield from stream.accept(samples)
            yield from stream.finish()

    def stream(self, recording: str = "") -> "SpeakerStream":
        """Start a stream, whose speakers are distinguished as it goes on (`OnlineSpeakers`)."""
        if self._segmenter is not None:
            raise InputError("a segmentation network is for whole recordings; streams take a detector, or the level")
        if self.options.num_speakers is not None or self.options.min_speakers > 1:
            raise InputError(
                "streams find the number of speakers as they go on: num_speakers and min_speakers are for whole "
                "recordings; max_speakers is possible"
            )
        return SpeakerStream(self, recording)

    def _listener(self) -> Listener:
        return LevelStream(self.sample_rate) if self._listen is None else self._listen()

    def _vectors(self, windows: Sequence[Window]) -> list[Floats | None]:
        """An embedding for each window, None where it is too short for one."""
        long_enough = [index for index, each in enumerate(windows) if len(each.samples)]
        vectors: list[Floats | None] = [None] * len(windows)
        for start in range(0, len(long_enough), EMBEDDED_TOGETHER):
            some = long_enough[start : start + EMBEDDED_TOGETHER]
            found = self._embed([windows[index].samples for index in some])
            for index, vector in zip(some, found, strict=True):
                if not np.isfinite(vector).all():
                    window = windows[index]
                    raise InputError(
                        f"the embedding of {window.start_s:.2f} to {window.end_s:.2f} s is not finite; try another "
                        "speaker model"
                    )
                vectors[index] = vector if vector.any() else None
        return vectors

    def _diarize_segmented(self, segmenter: Segmenter, blocks: Iterable[Waveform], recording: str) -> Diarization:
        windows = SlidingWindows(segmenter, self.sample_rate)
        work = _SegmentedWork(self, segmenter)
        samples = 0
        for block in blocks:
            samples += len(block)
            work.accept(windows.accept(block))
        work.accept(windows.finish())
        work.compute()
        return work.result(samples / self.sample_rate, recording)

    def _names(self, voices: Floats) -> tuple[list[Name | None], list[str]]:
        """The names and the labels of speakers with these voices (speakers, dim), each of length 1."""
        names = name_speakers(voices, self._enrolled, cosine=self._enrolled_cosine or 0.0)
        free = iter(unused_labels(self._enrolled))
        return names, [next(free) if name is None else name.name for name in names]

    def _result(self, work: "_Work", recording: str) -> Diarization:
        windows = work.windows
        vectors = work.matrix()
        lengths = np.array([each.end_s - each.start_s for each in windows])
        numbers = label_windows(vectors, lengths, self.options) if vectors.any() else np.zeros(len(windows), np.int64)
        voices = _voices(vectors, numbers)
        names, labels = self._names(voices)
        spans = turns_of(windows, [labels[number] for number in numbers])
        return _diarization([Turn(recording, *span) for span in spans], labels, voices, names, work.audio_s)


def _voices(vectors: Floats, numbers: Labels) -> Floats:
    """The mean voices of speakers (speakers, dim), each of length 1, of the embeddings (voices, dim) of each."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    sums: Floats = grouped(vectors / np.where(norms > 0, norms, 1), numbers).astype(np.float32)
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return sums


def _diarization(
    turns: Sequence[Turn], labels: Sequence[str], voices: Floats, names: Sequence[Name | None], audio_s: float
) -> Diarization:
    speakers = (
        Speaker(label, sum(each.duration_s for each in turns if each.speaker == label), voice, name)
        for label, voice, name in zip(labels, voices, names, strict=True)
    )
    return Diarization(tuple(turns), tuple(each for each in speakers if each.speech_s > 0), audio_s)


def blocks_of(source: AudioInput | bytes, sample_rate: int | None, wanted: int) -> Iterator[Waveform]:
    """The audio of a file or an array at a wanted rate in Hz, in pieces of seconds; errors as of `diarize`."""
    step = round(STEP_S * wanted)
    if isinstance(source, np.ndarray):
        samples = load(source, sample_rate, wanted, check=True)
        yield from (samples[start : start + step] for start in range(0, len(samples), step))
        return
    with closing(AudioBlocks(source, wanted)) as blocks:
        for block in blocks:
            yield from (widened(block[start : start + step]) for start in range(0, len(block), step))


class _Work:
    """The windows of one recording and their embeddings, as its audio comes."""

    def __init__(self, diarizer: Diarizer, listener: Listener) -> None:
        self._diarizer, self._listener = diarizer, listener
        options = diarizer.options
        self.cutter = WindowCutter(diarizer.sample_rate, window_s=options.window_s, shift_s=options.shift_s)
        self.windows: list[Window] = []
        """Without their samples."""
        self._vectors: list[Floats | None] = []
        self._waiting: list[Window] = []
        self.audio_s = 0.0

    def accept(self, samples: Waveform) -> None:
        self.audio_s += len(samples) / self._diarizer.sample_rate
        self._waiting += self.cutter.accept(samples, self._listener.accept(samples))
        if len(self._waiting) >= EMBEDDED_TOGETHER:
            self.embed()

    def finish(self) -> None:
        self._waiting += self.cutter.accept(np.zeros(0, np.float32), self._listener.finish())
        self.embed()

    def embed(self) -> list[tuple[Window, Floats | None]]:
        """Embed what waits; returns it."""
        vectors = self._diarizer._vectors(self._waiting)
        done = [replace(each, samples=NO_SAMPLES) for each in self._waiting]
        self._waiting = []
        self.windows += done
        self._vectors += vectors
        return list(zip(done, vectors, strict=True))

    def matrix(self) -> Floats:
        """(windows, dim) float32, zeros where a window has no embedding."""
        return _matrix(self._vectors)


class _SegmentedWork:
    """The windows of one recording, as they come: who talks in their frames, and the voices."""

    def __init__(self, diarizer: Diarizer, segmenter: Segmenter) -> None:
        self._diarizer, self._segmenter = diarizer, segmenter
        self._waiting: list[Waveform] = []
        self._activity: list[Activity] = []
        self._vectors: list[Floats | None] = []
        self._local: list[LocalSpeaker] = []
        self._places: list[tuple[int, int]] = []

    def accept(self, windows: Sequence[Waveform]) -> None:
        for window in windows:
            self._waiting.append(window)
            if len(self._waiting) == SEGMENTED_TOGETHER:
                self.compute()

    def compute(self) -> None:
        """Segment and embed what waits."""
        rate, voices = self._diarizer.sample_rate, []
        for window, found in zip(self._waiting, self._segmenter.segment(self._waiting), strict=True):
            activity: Activity = np.asarray(found) > 0.5
            start_s = len(self._activity) * SHIFT_S
            piece = SpeechSegment(start_s, start_s + len(window) / rate)
            for each in local_speakers(window, activity, self._segmenter, rate):
                voices.append(Window(piece.start_s, piece.end_s, piece, each.samples))
                self._local.append(replace(each, samples=NO_SAMPLES))
                self._places.append((len(self._activity), each.column))
            self._activity.append(activity)
        self._waiting = []
        self._vectors += self._diarizer._vectors(voices)

    def result(self, audio_s: float, recording: str) -> Diarization:
        rate, segmenter, options = self._diarizer.sample_rate, self._segmenter, self._diarizer.options
        if not self._places:
            return Diarization((), (), audio_s)
        vectors = _matrix(self._vectors)
        shape = len(self._activity), self._activity[0].shape[1]
        apart = talk_at_once(self._activity, self._places, round(OVERLAP_S * rate / segmenter.frame_samples))
        numbers, count = label_local(vectors, self._local, self._places, shape, options, apart)
        shift = SHIFT_S * rate / segmenter.frame_samples
        frames = speaker_frames(self._activity, numbers, count, shift=shift, most=options.bounds[1])
        order = np.argsort(np.where(frames.any(axis=0), frames.argmax(axis=0), len(frames)), kind="stable")
        rank = np.argsort(order)
        of_voice = [numbers[place] for place in self._places]
        known = np.array([index for index, number in enumerate(of_voice) if number != NOBODY])
        voices = _voices(vectors[known], rank[[of_voice[index] for index in known]])
        names, labels = self._diarizer._names(voices)
        # Windows have silence behind the audio.
        frame_s, start_s = segmenter.frame_samples / rate, segmenter.field_samples / 2 / rate
        within = np.arange(len(frames)) * frame_s + start_s < audio_s
        found = Frames(tuple(labels), frames[within][:, order], start_s, frame_s)
        turns = turns_of_activity(found.activity, frame_s, speakers=labels, start_s=start_s, recording=recording)
        kept = [replace(each, end_s=min(each.end_s, audio_s)) for each in turns]
        return replace(_diarization(kept, labels, voices, names, audio_s), frames=found)


def _matrix(vectors: Sequence[Floats | None]) -> Floats:
    """(vectors, dim) float32, zeros where there is none."""
    dim = next((len(each) for each in vectors if each is not None), 1)
    rows = [np.zeros(dim, np.float32) if each is None else each for each in vectors]
    return np.stack(rows) if rows else np.zeros((0, dim), np.float32)


class SpeakerStream:
    """One stream: audio going in, turns coming out as speech segments end. Memory is bounded for any length."""

    def __init__(self, diarizer: Diarizer, recording: str) -> None:
        options = diarizer.options
        self._diarizer, self._recording = diarizer, recording
        self._listener = diarizer._listener()
        self._cutter = WindowCutter(diarizer.sample_rate, window_s=options.window_s, shift_s=options.shift_s)
        self._least_s = SHORT_SHARE * options.window_s
        self.speakers = OnlineSpeakers(
            merge_cosine=options.merge_cosine,
            max_speakers=options.max_speakers,
            enrolled=diarizer._enrolled,
            enrolled_cosine=diarizer._enrolled_cosine,
        )
        self._last = ""
        self._known: dict[tuple[float, float], Floats | None] = {}  # of the segment under way, by start and end
        self._looked_s = -LIVE_S
        self._under_way: list[Turn] = []

    @property
    def under_way(self) -> list[Turn]:
        """Who seems to speak in the segment that goes on, up to at most 0.2 s ago.

        Labels may change until the segment has ended; "" where too little was heard. None outside of speech.
        """
        return self._under_way

    def __enter__(self) -> "SpeakerStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def accept(self, samples: Waveform) -> list[Turn]:
        """Take the next samples (samples,) float32 and return the turns of segments that ended with them."""
        speech = self._listener.accept(samples)
        turns = self._turns(self._cutter.accept(samples, speech))
        since_s = speech.speaking_since_s
        if since_s is None:
            self._known, self._under_way = {}, []
        elif turns or speech.audio_s - self._looked_s >= LIVE_S:
            self._looked_s, windows = speech.audio_s, self._cutter.under_way(since_s)
            self._under_way = self._labelled(windows, self.speakers.copied(), self._last)[0]
        return turns

    def finish(self) -> list[Turn]:
        """End the stream and return its last turns."""
        self._under_way = []
        return self._turns(self._cutter.accept(NO_SAMPLES, self._listener.finish()))

    def close(self) -> None:
        """Give the stream up; does nothing if it has ended."""
        self._listener.close()

    def _turns(self, windows: Sequence[Window]) -> list[Turn]:
        turns, self._last = self._labelled(windows, self.speakers, self._last)
        if windows:  # those of a segment that ended
            self._known = {}
        return turns

    def _labelled(self, windows: Sequence[Window], speakers: OnlineSpeakers, last: str) -> tuple[list[Turn], str]:
        """The turns of windows, and the last label; `last`: the one before."""
        new = [each for each in windows if (each.start_s, each.end_s) not in self._known]
        self._known |= {
            (each.start_s, each.end_s): vector for each, vector in zip(new, self._diarizer._vectors(new), strict=True)
        }
        vectors = [self._known[each.start_s, each.end_s] for each in windows]
        whole = [each.end_s - each.start_s >= self._least_s for each in windows]
        labels = speakers.label(vectors, whole, last)
        return [Turn(self._recording, *span) for span in turns_of(windows, labels)], labels[-1] if labels else last
