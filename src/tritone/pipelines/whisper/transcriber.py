"""Whisper and other encoder-decoders in process: the same pipeline that serves, without a server.

transcriber = tritone.load("whisper-small", language="de")
transcriber.transcribe(["a.wav", "b.flac"])           ->  [TranscriptResult, TranscriptResult]
transcriber.transcribe("a.wav", options={"beam": 5})  ->  TranscriptResult
with transcriber.stream() as stream: stream.accept(samples); stream.finish()
"""

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
