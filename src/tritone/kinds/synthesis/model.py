"""A voice in process: the same pipeline that serves, without a server.

voice = tritone.load("joe")
voice.speak("Good morning.").save("morning.mp3")
for part in voice.speak_iter(text, speed=1.2): play(part.waveform, part.sample_rate)
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from tritone.audio.spoken import Spoken
from tritone.bundle.bundle import Bundle
from tritone.errors import TritoneError
from tritone.kinds.synthesis.options import SynthesisOptions
from tritone.kinds.synthesis.pipeline import SynthesisPipeline, synthesis_of
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.model import Model


class Voice(Model):
    """A voice that speaks texts. Its network is opened with the first one; several threads may use it."""

    lacks = "speaks no text"
    instead = "a bundle of `tritone export piper`"

    def __init__(self, bundle: Bundle, *, placement: Placement = ON_CPU, **options: Any) -> None:
        """Take an opened bundle.

        Args:
            placement: which graphs are run, and where.
            options: how texts are spoken where a call says nothing else, see `SynthesisOptions`.

        Raises:
            BundleError: the bundle is of another kind.
            InputError: an option is unknown or out of its range.
        """
        self._take(bundle)
        self.sample_rate = bundle.manifest.sample_rate
        self.speakers = tuple(synthesis_of(bundle).speakers)
        """The names of who can speak; empty where there is one speaker."""
        self.language = synthesis_of(bundle).language
        self._usual = SynthesisOptions().changed(options)
        self._placement = placement
        self._lock = threading.Lock()
        self._opened: SynthesisPipeline | None = None

    @property
    def pipeline(self) -> SynthesisPipeline:
        """What speaks; see there for what opening it raises."""
        with self._lock:
            if self._opened is None:
                self._opened = SynthesisPipeline(self.bundle, placement=self._placement)
            return self._opened

    def speak(self, text: str, **options: Any) -> Spoken:
        """Speak a text of up to 16,384 characters.

        Args:
            options: `speed`, 0.25 to 4, and `speaker`, one of `speakers`; else as the voice was loaded.

        Raises:
            InputError: the text is empty or too long, or has nothing that can be spoken; or an option is unfit.
            MissingDependencyError: this machine has no espeak-ng.
        """
        (found,) = self.pipeline.run([text], [self._usual.changed(options)])
        if isinstance(found, TritoneError):
            raise found
        return found

    def speak_iter(self, text: str, **options: Any) -> Iterator[Spoken]:
        """Speak a text, and yield each sentence as soon as it is done; arguments and errors as of `speak`."""
        return self.pipeline.stream(text, self._usual.changed(options))

    run = speak
    stream = speak_iter

    def run_iter(self, texts: Iterable[str], **options: Any) -> Iterator[Spoken]:
        """Speak one text after the other; errors as of `speak`."""
        return (self.speak(text, **options) for text in texts)
