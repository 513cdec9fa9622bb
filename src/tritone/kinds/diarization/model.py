"""Speakers told apart in process: the same pipelines that serve, without a server.

tritone.load("sortformer").diarize("a.wav").segments    ->  segments with a speaker each, which may overlap
"""

from collections.abc import Mapping
from typing import Any

from tritone.activity import SpeechActivity
from tritone.bundle.bundle import Bundle
from tritone.kinds.diarization.part import DiarizationPart
from tritone.kinds.diarization.pipeline import PARAMETERS, TurnOptions
from tritone.pipelines.live import Stream
from tritone.pipelines.model import AudioModel
from tritone.result import ActivityResult


class SpeakerDetector(AudioModel[ActivityResult]):
    """A model that tells speakers apart: segments of its results have a speaker, and those of several may overlap."""

    settings = ("max_audio_s", "chunk_size")
    lacks = "tells no speakers apart"
    instead = "a bundle that `tritone export nemo` made of Nemotron-3-Diarization"
    result = ActivityResult
    batch_s = 600.0
    longest_s = 4 * 3600.0

    def __init__(self, bundle: Bundle, *, chunk_size: int | None = None, **options: Any) -> None:
        """Take an opened bundle; as of `AudioModel`.

        Args:
            chunk_size: of streams, encoder frames a step; None takes the bundle's.
        """
        super().__init__(bundle, **options)
        self.max_speakers = bundle.manifest.part(DiarizationPart).speakers
        self.options: TurnOptions = self._usual
        self._stream_options = {"chunk_size": chunk_size, "options": self.options}

    diarize, diarize_iter = AudioModel.run, AudioModel.run_iter

    def stream(
        self, sample_rate: int | None = None, options: TurnOptions | Mapping[str, Any] | None = None
    ) -> Stream[SpeechActivity]:
        """Start a stream, as of `AudioModel`; options are as of `diarize`.

        Its answers have the turns that ended since the answer before, those under way (`speaking`) with the time up to
        which they are known, and the probabilities (frames, speakers) of the new frames.
        """
        return super().stream(sample_rate, options)

    diarize_stream = stream  # as clients call it

    def deciding(self, options: Mapping[str, str]) -> dict[str, str]:
        """What decides the turns besides the model: its options, but not threads or device."""
        return {name: value for name, value in options.items() if name in (*PARAMETERS, "chunk_size", "mode")}
