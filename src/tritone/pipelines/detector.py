"""Voice activity in process: the same pipelines that serve, without a server.

detector = tritone.load("vad")
detector.segments("a.wav")                      ->  [SpeechSegment(start_s=0.45, end_s=2.13), ...]
detector.detect(["a.wav", "b.flac"])            ->  [ActivityResult, ActivityResult]
with detector.stream() as stream: stream.accept(samples); stream.finish()
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritone.activity import SpeechActivity, SpeechSegment
from tritone.audio.inputs import AudioInput
from tritone.bundle.bundle import Bundle
from tritone.pipelines.live import Stream
from tritone.pipelines.model import AudioModel
from tritone.result import ActivityResult
from tritone.search.activity import PARAMETERS, ActivityOptions

Options = ActivityOptions | Mapping[str, Any] | None


class Detector(AudioModel[ActivityResult]):
    """A voice activity detector."""

    settings = ("max_audio_s", "chunk_size")
    lacks = "detects no voice activity"
    instead = "a bundle of `tritone export silero`"
    result = ActivityResult
    batch_s = 600.0
    longest_s = 4 * 3600.0  # an hour at 16 kHz is 230 MB

    def __init__(self, bundle: Bundle, *, chunk_size: int | None = None, **options: Any) -> None:
        """Take an opened bundle; as of `AudioModel`.

        Args:
            chunk_size: of streams, frames a step; None takes the bundle's.
        """
        super().__init__(bundle, **options)
        self.frame_s = bundle.manifest.frame_s
        self.options: ActivityOptions = self._usual
        self._stream_options = {"chunk_size": chunk_size, "options": self.options.for_streams()}

    detect, detect_iter = AudioModel.run, AudioModel.run_iter

    def segments(self, source: AudioInput, sample_rate: int | None = None, **options: Any) -> list[SpeechSegment]:
        """The speech segments of one recording, in order.

        Args:
            source: a path or an array.
            sample_rate: of the array, in Hz; None means the model's.
            options: fields of `ActivityOptions`; what is not given is what the detector was loaded with.

        Raises:
            AudioError: the audio cannot be used.
            InputError: an option is unknown or out of its range.
            ValueError: `sample_rate` is no rate that audio has.
        """
        return list(self.detect(source, sample_rate=sample_rate, options=options).segments)

    def probabilities(self, source: AudioInput, sample_rate: int | None = None) -> npt.NDArray[np.float32]:
        """The probability of speech in each frame of `frame_s` seconds, (frames,); errors as of `segments`."""
        found = self.detect(source, sample_rate=sample_rate).probabilities
        assert found is not None
        return found

    def stream(self, sample_rate: int | None = None, options: Options = None) -> Stream[SpeechActivity]:
        """Start a stream, as of `AudioModel`; options are as of `detect`, but for the lengths of speech.

        Its answers have the segments that ended since the answer before, `speaking_since_s` of the one under way, and
        the probabilities of the new frames. A segment is reported when it begins, before its length is known.
        """
        return super().stream(sample_rate, options)

    detect_stream = stream  # as clients call it

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the segments besides the model: its options, but not threads or device."""
        return {name: value for name, value in options.items() if name in PARAMETERS or name == "mode"}
