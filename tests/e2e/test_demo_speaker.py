"""The shipped speaker model on people whom its training has not heard: its card's promises, with room to spare."""

from pathlib import Path

import numpy as np
import pytest

import tritone
from e2e.real_speech import need, tarred
from tritone.kinds.embedding.part import EmbeddingPart
from tritone.speakers.archive import Vectors
from tritone.speakers.metrics import ErrorCurve
from tritone.speakers.scoring import cosine_scores, sides_of
from tritone.speakers.trials import Trials, read_trials

pytestmark = pytest.mark.slow


def trials_between(everything: Trials, names: tuple[str, ...]) -> Trials:
    """Those trials that have both of their sides among `names`."""
    rows = {name: row for row, name in enumerate(names)}
    enrol = np.array([rows.get(name, -1) for name in everything.enrol_names], np.int32)[everything.enrol]
    test = np.array([rows.get(name, -1) for name in everything.test_names], np.int32)[everything.test]
    kept = (enrol >= 0) & (test >= 0)
    assert everything.targets is not None
    return Trials(
        enrol_names=names, test_names=names, enrol=enrol[kept], test=test[kept], targets=everything.targets[kept]
    )


def test_unseen_speakers_are_told_apart() -> None:
    """By every second recording of AN4's test part, which is sorted by speaker: six or seven of each."""
    recordings = tarred("an4", "test")[::2]
    paths = [Path(recording.name) for recording in recordings]
    names = tuple(f"{path.parent.name}-{path.stem}" for path in paths)
    trials = trials_between(read_trials(need("an4", "trials_test.txt")), names)
    assert trials.targets is not None
    assert trials.num_targets > 150
    assert trials.num_nontargets > 800
    embedder = tritone.load("demo-speaker")
    vectors = Vectors(names, embedder.embed([recording.waveform for recording in recordings]))
    scores = cosine_scores(trials, sides_of(trials, vectors))
    assert ErrorCurve.of(trials.targets, scores).eer().value <= 0.09
    embedding = embedder.bundle.manifest.find(EmbeddingPart)
    assert embedding is not None
    assert embedding.threshold is not None
    assert (scores[trials.targets] <= embedding.threshold).mean() <= 0.12
    assert (scores[~trials.targets] > embedding.threshold).mean() <= 0.12
