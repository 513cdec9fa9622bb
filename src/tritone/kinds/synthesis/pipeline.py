"""A voice in this process: texts become waveforms, sentence by sentence.

text  ->  sentences  ->  phonemes  ->  numbers  ->  network  ->  Spoken(text, waveform, sample_rate) of each
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tritone.audio.spoken import Spoken, joined
from tritone.bundle.bundle import Bundle
from tritone.errors import InputError, TritoneError
from tritone.kinds.synthesis.options import MAX_CHARACTERS, SynthesisOptions
from tritone.kinds.synthesis.part import BEGIN, END, PAD, SynthesisPart
from tritone.kinds.synthesis.phonemes import Espeak
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.graphs.work_log import CallWork, WorkLog
from tritone.pipelines.isolation import isolated, prepared, with_options
from tritone.runtime.graph import Array
from tritone.texts.sentences import MAX_SENTENCE, PAUSE_S, cleaned, pieces, sentences

WARM_UP = "wˈʌn tˈuː "  # phonemes
MAX_PHONEMES = 400  # of one call of the network; 20 to 30 s of speech, and 300 digits alone would be 100 s


class Job(NamedTuple):
    """A checked request. `speaker`: its number."""

    sentences: list[str]
    speed: float
    speaker: int


def synthesis_of(bundle: Bundle) -> SynthesisPart:
    """What the manifest says of a voice; that it does was checked with the kind."""
    return bundle.manifest.part(SynthesisPart)


def phoneme_ids(phonemes: str, voice: SynthesisPart) -> list[int]:
    """The numbers of phonemes as voices of Piper are trained with them: a pad behind each, and marks at both ends.

    Characters that the voice does not know are left out.

    Source: Piper's own rule, https://github.com/rhasspy/piper-phonemize, `phonemes_to_ids`.
    """
    pad = voice.phonemes[PAD]
    found = [*voice.phonemes[BEGIN], *pad]
    for each in phonemes:
        for known in voice.replaced.get(each, each):
            if ids := voice.phonemes.get(known):
                found += [*ids, *pad]
    return [*found, *voice.phonemes[END]]


class SynthesisPipeline:
    """Speaks texts. Has no state between calls; may be called from several threads."""

    def __init__(self, bundle: Bundle, *, placement: Placement = ON_CPU) -> None:
        """Open the network of a bundle, and look for espeak-ng.

        Raises:
            BundleError: the bundle has no such graph, or one that cannot be opened or does not fit its manifest.
            MissingDependencyError: this machine has no espeak-ng.
            OperatorError: the device is not available, or espeak-ng has not the voice.
        """
        self.bundle = bundle
        self.options = SynthesisOptions()
        self.sample_rate = bundle.manifest.sample_rate
        self.voice = synthesis_of(bundle)
        self.espeak = Espeak(self.voice.espeak_voice)
        _, self._graph = open_chosen(bundle, "model", placement)
        self.work = WorkLog(self.sample_rate)

    def run(
        self, texts: Sequence[str], options: Sequence[SynthesisOptions | None] | None = None
    ) -> list[Spoken | TritoneError]:
        """Speak texts, each as a whole.

        Args:
            texts: of up to 16,384 characters.
            options: of each text; None is as usual.

        Returns:
            For each text what was spoken, or the error that it caused: `InputError` where it is empty or too long, has
            nothing that can be spoken, or names a speaker that the voice does not have.
        """
        return prepared(self._checked, lambda jobs: isolated(self._whole, jobs), with_options(texts, options))

    def stream(self, text: str, options: SynthesisOptions | None = None) -> Iterator[Spoken]:
        """Speak a text, and yield each sentence as soon as it is done.

        Raises:
            InputError: as `run`; what is wrong with the whole text is raised before anything is spoken.
        """
        job = self._checked((text, options))
        return self._parts(job)

    def warm_up(self) -> None:
        """Speak a word, so that the first real request finds everything ready."""
        self.babble(len(WARM_UP))
        self.work.take()

    def babble(self, num_phonemes: int) -> float:
        """Say the same word again and again in one call of the network; returns the seconds of speech."""
        phonemes = (WARM_UP * num_phonemes)[:num_phonemes]
        job = Job([], 1.0, min(self.voice.speakers.values(), default=0))
        return len(self._network(phoneme_ids(phonemes, self.voice), job)) / self.sample_rate

    def _checked(self, item: tuple[str, SynthesisOptions | None]) -> Job:
        text, asked = item
        options = asked or self.options
        if len(text) > MAX_CHARACTERS:
            raise InputError(
                f"the text has {len(text):,} characters; up to {MAX_CHARACTERS:,} are spoken at once: send it in parts"
            )
        speakers = self.voice.speakers
        if options.speaker and options.speaker not in speakers:
            known = ", ".join(list(speakers)[:20]) + (", ..." if len(speakers) > 20 else "")
            raise InputError(
                f"there is no speaker {options.speaker[:80]!r}; the voice has "
                f"{known or 'one speaker, who has no name: leave it out'}"
            )
        # Slow speech is longer: what is computed at once stays as long.
        found = list(sentences(cleaned(text), round(MAX_SENTENCE * min(1.0, options.speed))))
        if not found:
            raise InputError("there is nothing to speak: send text with letters or digits")
        number = speakers[options.speaker] if options.speaker else min(speakers.values(), default=0)
        return Job(found, options.speed, number)

    def _parts(self, job: Job) -> Iterator[Spoken]:
        most = round(MAX_PHONEMES * min(1.0, job.speed))
        for index, sentence in enumerate(job.sentences, 1):
            spelled = list(self._spelled(sentence, most))
            for number, (text, phonemes) in enumerate(spelled, 1):
                pause_s = PAUSE_S / job.speed if number == len(spelled) and index < len(job.sentences) else 0.0
                yield self._spoken(text, phonemes, job, pause_s)

    def _spelled(self, sentence: str, most: int) -> Iterator[tuple[str, str]]:
        """A sentence and its phonemes; in parts if they are more than `most`: figures are longer in speech."""
        began = time.perf_counter()
        phonemes = self.espeak.phonemes(sentence)
        self.work.add_search(time.perf_counter() - began)
        if len(phonemes) <= most or len(sentence) == 1:
            yield sentence, phonemes
            return
        for part in pieces(sentence, -(-len(sentence) // 2)):
            yield from self._spelled(part, most)

    def _whole(self, jobs: Sequence[Job]) -> list[Spoken]:
        return [joined(list(self._parts(job))) for job in jobs]

    def _spoken(self, text: str, phonemes: str, job: Job, pause_s: float) -> Spoken:
        waveform = self._network(phoneme_ids(phonemes, self.voice), job)
        if pause_s:
            waveform = np.concatenate([waveform, np.zeros(round(pause_s * self.sample_rate), np.float32)])
        return Spoken(text=text, waveform=waveform, sample_rate=self.sample_rate)

    def _network(self, ids: Sequence[int], job: Job) -> Array:
        started = time.perf_counter()
        voice = self.voice
        inputs: dict[str, Array] = {
            "phonemes": np.array([ids], np.int64),
            "num_phonemes": np.array([len(ids)], np.int64),
            "scales": np.array([voice.noise, voice.length / job.speed, voice.duration_noise], np.float32),
        }
        if voice.speakers:
            inputs["speaker"] = np.array([job.speaker], np.int64)
        (waveforms,) = self._graph(inputs, ["waveform"])
        waveform: Array = np.clip(waveforms[0], -1.0, 1.0)
        took_s = time.perf_counter() - started
        self.work.add([CallWork(len(waveform), 0, took_s, 0.0, took_s)], took_s)
        return waveform
