"""Whisper and other encoder-decoders in process: the same pipeline that serves, without a server.

transcriber = tritone.load("whisper-small", language="de")
transcriber.transcribe(["a.wav", "b.flac"])           ->  [TranscriptResult, TranscriptResult]
transcriber.transcribe("a.wav", options={"beam": 5})  ->  TranscriptResult
transcriber.identify("a.wav").get().languages         ->  (("de", 0.97), ("nl", 0.02))
with transcriber.stream() as stream: stream.accept(samples); stream.finish()
"""

from collections.abc import Sequence
from typing import Any

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.pipelines.model import AudioModel
from tritone.pipelines.whisper.draft import DraftModel, check_pair
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.result import TranscriptResult


class Transcriber(AudioModel[TranscriptResult]):
    """A Whisper model, or another encoder-decoder, ready to transcribe recordings of any length."""

    lacks = "holds no Whisper model and no other encoder-decoder"
    instead = "a bundle of `tritone export whisper`"
    result = TranscriptResult
    settings = ("max_audio_s", "draft", "draft_precision")
    batch_inputs = 8
    batch_s = 600.0
    longest_s = 7200.0

    def __init__(
        self, bundle: Bundle, *, draft: Bundle | None = None, draft_precision: str | None = None, **options: Any
    ) -> None:
        """Take an opened bundle, and perhaps that of a draft, see `draft.py`; the rest is as of `AudioModel`."""
        super().__init__(bundle, **options)
        if draft is not None:
            check_pair(bundle, draft)
            self._open_options = {"draft": DraftModel(draft, draft_precision)}
        elif draft_precision is not None:
            raise InputError("draft_precision is of a draft, and there is none; give one, or leave it out")

    transcribe, transcribe_iter = AudioModel.run, AudioModel.run_iter

    def identify(self, inputs: Any, *, allowed_languages: Sequence[str] = ()) -> Any:
        """Find out which languages recordings are in; their texts are empty, `languages` has the probabilities.

        Args:
            inputs: as of `transcribe`.
            allowed_languages: codes of those that it may be; all of the model's if there are none.

        Raises as `transcribe`, and `InputError` if the model knows English alone.
        """
        asked = {"task": "identify", "language": "", "allowed_languages": tuple(allowed_languages)}
        return self.transcribe(inputs, options=asked)

    @property
    def streaming(self) -> WhisperStreams:
        """The streams of the model that `offline` opens; see there for what that raises. Not all kinds have some."""
        if "streaming" not in self.kind.encoders:
            self.kind.open_streaming(self.bundle)
        pipeline = self.offline
        with self._lock:
            if self._streaming is None:
                self._streaming = WhisperStreams(pipeline)
            streams: WhisperStreams = self._streaming
            return streams

    def _checked(self, options: DecodingOptions) -> DecodingOptions:
        checked: DecodingOptions = self.offline.check_options(options)
        return checked
