"""Whisper and other encoder-decoders in process: the same pipeline that serves, without a server.

transcriber = tritone.load("whisper-small", language="de")
transcriber.transcribe(["a.wav", "b.flac"])           ->  [TranscriptResult, TranscriptResult]
transcriber.transcribe("a.wav", options={"beam": 5})  ->  TranscriptResult
transcriber.identify("a.wav").get().languages         ->  (("de", 0.97), ("nl", 0.02))
with transcriber.stream() as stream: stream.accept(samples); stream.finish()
"""

from collections.abc import Sequence
from typing import Any

from tritone.pipelines.model import AudioModel
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.pipelines.whisper.streams import WhisperStreams
from tritone.result import TranscriptResult


class Transcriber(AudioModel[TranscriptResult]):
    """A Whisper model, or another encoder-decoder, ready to transcribe recordings of any length."""

    lacks = "holds no Whisper model and no other encoder-decoder"
    instead = "a bundle of `tritone export whisper`"
    result = TranscriptResult
    batch_inputs = 8
    batch_s = 600.0
    longest_s = 7200.0

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
