"""The voices of the clips, compared by a served speaker model.

Most voices have one clip, so every clip is cut in the middle, and each first half is compared with each second half:
n clips make n * n trials. They are few, and halves of one recording are easier than two recordings. What a model is
worth is in its `evaluation.json`, measured on trials of people who are not in its training data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritone.audio.files import read_audio
from tritone.audio.waveform import Waveform
from tritone.bundle.evaluation import Evaluation
from tritone.client import Client
from tritone.corpus.clips import Clip
from tritone.errors import InputError, TritoneError
from tritone.speakers.metrics import ErrorCurve
from tritone.speakers.scoring import unit_length

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Voice:
    """One clip: the embeddings (2, dim) of its halves, of length 1, or the error that took their place.

    `latency_s`: from sending a half to its embedding, the mean of both. `audio_s` is of the whole clip.
    """

    clip: Clip
    halves: npt.NDArray[np.float32] | None = None
    error: str | None = None
    audio_s: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True)
class VoiceRun:
    """How a speaker model did: a voice for each clip, and what was measured of the model before, if anything."""

    model: str
    voices: Sequence[Voice]
    evaluation: Evaluation | None = None

    @property
    def embedded(self) -> list[Voice]:
        """The voices that have embeddings."""
        return [voice for voice in self.voices if voice.halves is not None]

    def cosines(self) -> Doubles:
        """(n, n): the first half of each recorded voice against the second half of each."""
        halves = np.array([voice.halves for voice in self.embedded], dtype=np.float64)
        return halves[:, 0] @ halves[:, 1].T if len(halves) else np.zeros((0, 0))

    def targets(self) -> Bools:
        """(n, n): are both halves of one speaker?"""
        embedded = self.embedded
        same = [[one.clip.same_speaker(other.clip) for other in embedded] for one in embedded]
        return np.array(same, dtype=np.bool_).reshape(len(embedded), len(embedded))

    def eer(self) -> float | None:
        """The equal error rate of these trials, a fraction; None without trials of both kinds."""
        targets = self.targets()
        if not targets.any() or targets.all():
            return None
        return ErrorCurve.of(targets.ravel(), self.cosines().ravel()).eer().value

    def nearest_other(self, place: int) -> tuple[float, Clip] | None:
        """The most similar half of another speaker's clip, for the voice at that place, and its cosine."""
        others = np.flatnonzero(~self.targets()[place])
        if not len(others):
            return None
        cosines = self.cosines()
        alike = np.maximum(cosines[place], cosines[:, place])[others]
        best = int(np.argmax(alike))
        return float(alike[best]), self.embedded[int(others[best])].clip


def compare_voices(
    client: Client, model: str, clips: Sequence[Clip], evaluation: Evaluation | None, *, concurrency: int
) -> VoiceRun:
    """Embed the halves of clips, so many requests at a time. A clip that fails keeps its error."""
    rate = client.model(model, kind="embedding").sample_rate
    waveforms: dict[Clip, Waveform] = {}
    errors: dict[Clip, TritoneError] = {}
    for clip in clips:
        try:
            waveforms[clip] = read_audio(clip.path, rate)
        except TritoneError as error:
            errors[clip] = error
    halves = [half for waveform in waveforms.values() for half in np.array_split(waveform, 2)]
    results = client.embed(halves, model, concurrency=concurrency)
    pairs = dict(zip(waveforms, zip(results[::2], results[1::2], strict=True), strict=True))
    voices = []
    for clip in clips:
        if clip in errors:
            voices.append(Voice(clip=clip, error=str(errors[clip])))
            continue
        try:
            vectors = np.stack([result.vector for result in pairs[clip]])
            if not vectors.any(axis=1).all():
                raise InputError("the embedding of one half is zero; is it silence?")
        except TritoneError as error:
            voices.append(Voice(clip=clip, error=str(error), audio_s=len(waveforms[clip]) / rate))
            continue
        voices.append(
            Voice(
                clip=clip,
                halves=unit_length(vectors),
                audio_s=len(waveforms[clip]) / rate,
                latency_s=sum(result.latency_s for result in pairs[clip]) / 2,
            )
        )
    return VoiceRun(model, voices, evaluation)
