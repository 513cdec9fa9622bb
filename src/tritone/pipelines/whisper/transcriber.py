"""Whisper in process: the same pipeline that serves, without a server.

transcriber = tritone.load("whisper-small", language="de")
transcriber.transcribe(["a.wav", "b.flac"])           ->  [TranscriptResult, TranscriptResult]
transcriber.transcribe("a.wav", options={"beam": 5})  ->  TranscriptResult
"""

from tritone.pipelines.model import AudioModel
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.result import TranscriptResult


class Transcriber(AudioModel[TranscriptResult]):
    """A Whisper model ready to transcribe recordings of any length."""

    lacks = "holds no Whisper model"
    instead = "a bundle of `tritone export whisper`"
    result = TranscriptResult
    batch_inputs = 8
    batch_s = 600.0
    longest_s = 7200.0

    transcribe, transcribe_iter = AudioModel.run, AudioModel.run_iter

    def _checked(self, options: DecodingOptions) -> DecodingOptions:
        checked: DecodingOptions = self.offline.check_options(options)
        return checked
