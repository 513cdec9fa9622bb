"""Lists of trials scored with the vectors of their recordings, as `tritone score` does.

scorer = TrialScorer.read("exp/embeddings", cohort="exp/train/xvector.scp", cohort_spk2utt="data/train/spk2utt")
scorer.score(read_trials("trials")).values  ->  (n,) float64
"""

from dataclasses import dataclass
from pathlib import Path

from tritone.speakers.archive import Floats, Vectors, read_vectors
from tritone.speakers.score_file import Doubles
from tritone.speakers.scoring import (
    DEFAULT_TOP_N,
    Norm,
    Normalised,
    mean_is_subtracted,
    read_mean,
    score_trials,
    speaker_means,
)
from tritone.speakers.trials import Trials, read_groups

Source = str | Path


@dataclass(frozen=True, kw_only=True)
class TrialScorer:
    """What trials are scored with; arguments as of `score_trials`. `doubts`: what may be wrong, a sentence each."""

    vectors: Vectors
    models: Vectors | None = None
    mean: Floats | None = None
    cohort: Vectors | None = None
    norm: Norm = "asnorm"
    top_n: int = DEFAULT_TOP_N
    doubts: tuple[str, ...] = ()

    @classmethod
    def read(
        cls,
        embeddings: Source,
        *,
        enroll: Source | None = None,
        cal_mean: Source | None = None,
        cohort: Source | None = None,
        cohort_spk2utt: Source | None = None,
        norm: Norm = "asnorm",
        top_n: int = DEFAULT_TOP_N,
    ) -> "TrialScorer":
        """Read the files of docs/models/scoring.md, of which only `embeddings` must be.

        Args:
            embeddings: vectors of the recordings: an .scp, an .ark, or a folder of `tritone embed`.
            enroll: models that are means of utterances, 'name utt utt ...' a line.
            cal_mean: vectors whose mean is subtracted first, or a .npy of it.
            cohort: vectors to normalise with, one for each speaker.
            cohort_spk2utt: whose means are taken, where the cohort has vectors of utterances.
            norm: by the nearest `top_n` of the cohort (`asnorm`) or by all of it (`snorm`).

        Raises:
            InputError: a file cannot be read, or names have no vector.
        """
        vectors = read_vectors(embeddings)
        others = None if cohort is None else read_vectors(cohort)
        if others is not None and cohort_spk2utt is not None:
            others = speaker_means(others, read_groups(cohort_spk2utt))
        doubts = []
        if cal_mean is not None and mean_is_subtracted(embeddings):
            doubts.append(f"the model of {embeddings} has subtracted a mean already; --cal-mean subtracts another")
        if others is not None and norm == "asnorm" and top_n > len(others.keys):
            doubts.append(f"the cohort has {len(others.keys)} speakers, fewer than --top-n; all of them are taken")
        return cls(
            vectors=vectors,
            models=None if enroll is None else speaker_means(vectors, read_groups(enroll)),
            mean=None if cal_mean is None else read_mean(cal_mean),
            cohort=others,
            norm=norm,
            top_n=top_n,
            doubts=tuple(doubts),
        )

    def score(self, trials: Trials, given: Doubles | None = None) -> Normalised:
        """Score a list of trials, or normalise the scores `given` of them; errors as of `score_trials`."""
        return score_trials(
            trials,
            self.vectors,
            models=self.models,
            mean=self.mean,
            given=given,
            cohort=self.cohort,
            norm=self.norm,
            top_n=self.top_n,
        )
