"""Checks of the answers that were timed: a server that is fast and wrong must not win.

(utterance, text) -> times  ->  word error rate, recordings with more than one text, what looks wrong
Embeddings                  ->  the least cosine of two of one recording, what looks wrong
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tritone.evaluate.normalize import Normalization, Normalizer
from tritone.evaluate.score import Counts, score_utterance
from tritone.loadtest.workload.embeddings import Embeddings
from tritone.loadtest.workload.workload import Workload

Texts = Mapping[tuple[int, str], int]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`wer` is pooled over the answers to recordings with a reference, each as often as it was given; None without.

    `wer_words`: their reference words. `different_texts`: recordings that did not get the same text every time.
    `least_cosine`, `different_embeddings`: see `Embeddings`.
    """

    wer: float | None = None
    wer_words: int = 0
    different_texts: int = 0
    least_cosine: float | None = None
    different_embeddings: int = 0
    notes: tuple[str, ...] = ()

    def figures(self) -> dict[str, Any]:
        """The fields of a measurement that have the same names."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "notes"}


def judge(texts: Texts, workload: Workload, normalization: Normalization | None = None) -> Verdict:
    """Compare answers with the references, and with each other where there are none.

    Args:
        texts: how often each recording of the workload (by its number) got each text.
        workload: the recordings.
        normalization: what to make equal before errors are counted; None takes the default one.
    """
    by_recording: dict[int, Counter[str]] = defaultdict(Counter)
    for (recording, text), times in texts.items():
        by_recording[recording][text] += times
    different = [recording for recording, found in by_recording.items() if len(found) > 1]
    counts = _errors(by_recording, workload, Normalizer(normalization or Normalization()))
    return Verdict(
        wer=None if counts is None else counts.rate,
        wer_words=0 if counts is None else counts.reference_length,
        different_texts=len(different),
        notes=tuple(_notes(by_recording, different)),
    )


def judge_embeddings(found: Embeddings) -> Verdict:
    """Compare the embeddings of each recording with each other; there is no reference for them."""
    least, count = found.least_cosine, len(found.first)
    notes = []
    if found.different:
        notes.append(
            f"{found.different} of {count} recordings got embeddings that are not alike: cosines down to {least:.4f}"
        )
    if len(found.dims) > 1:
        notes.append(f"the embeddings have {', '.join(map(str, sorted(found.dims)))} numbers")
    if found.all_equal:
        notes.append(f"all {count} recordings got the same embedding")
    return Verdict(least_cosine=least, different_embeddings=found.different, notes=tuple(notes))


def _errors(by_recording: Mapping[int, Counter[str]], workload: Workload, normalizer: Normalizer) -> Counts | None:
    if not workload.has_references:
        return None
    total = Counts()
    scored = False
    for recording, found in by_recording.items():
        reference = workload.references[recording]
        if reference is None:
            continue
        for text, times in found.items():
            one = score_utterance(str(recording), reference, text, normalizer).words
            total += Counts(*(times * each for each in (one.hits, one.substitutions, one.deletions, one.insertions)))
            scored = True
    return total if scored else None


def _notes(by_recording: Mapping[int, Counter[str]], different: list[int]) -> list[str]:
    notes = []
    if different:
        most = max(different, key=lambda recording: len(by_recording[recording]))
        examples = " / ".join(repr(text[:30]) for text, _ in by_recording[most].most_common(2))
        notes.append(
            f"{len(different)} of {len(by_recording)} recordings got more than one text, for example {examples}"
        )
    distinct = {text for found in by_recording.values() for text in found}
    if distinct == {""}:
        notes.append("every text was empty")
    elif len(distinct) == 1 and len(by_recording) > 1:
        notes.append(f"all {len(by_recording)} recordings got the same text: {distinct.pop()[:60]!r}")
    return notes
