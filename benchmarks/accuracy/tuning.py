"""Choosing the weights of the searches on a development set.

    utterances, a grid of weights  ->  the weights with the fewest word errors in their neighbourhood

The encoder runs once. The weights of rescoring only change how the scores of the same hypotheses are added up; what is
chosen is run once more as it is asked for in use, and must find the same.

A small set tells neighbouring weights apart by a word or two, which is chance. So what counts of a trial is the mean
over itself and its neighbours in the grid.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.accuracy.rows import BEAM, Corpus, options_of
from tritone.bundle import Bundle
from tritone.evaluate.normalize import Normalizer
from tritone.evaluate.score import Counts, pool, score_utterance
from tritone.kinds.ctc.part import DecoderPart
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.searching.base import SearchSettings
from tritone.pipelines.searching.ctc import CtcSearching
from tritone.report.stamp import Stamp
from tritone.runtime.graph import Array
from tritone.search.hypothesis import Hypothesis
from tritone.search.options import SearchOptions

LM_WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
WORD_BONUSES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
CTC_WEIGHTS = (0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0)
REVERSE_WEIGHTS = (0.0, 0.15, 0.3, 0.5)

Trial = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """A reading of an utterance and its scores, natural logarithms."""

    text: str
    ctc: float
    left: float
    right: float

    def score(self, ctc_weight: float, reverse_weight: float) -> float:
        attention = (1 - reverse_weight) * self.left + reverse_weight * self.right
        return attention + ctc_weight * self.ctc


class Development:
    """What a bundle's fp32 encoder says of a development set, to be searched in many ways."""

    def __init__(self, bundle: Bundle, corpus: Corpus) -> None:
        self._corpus = corpus
        self._vocabulary = bundle.vocabulary
        self._normalizer = Normalizer()
        _, graph = open_chosen(bundle, "encoder", placement=Placement(precision="fp32"))
        self._searching = CtcSearching(bundle, graph, SearchSettings(lm=corpus.lm))
        self._results = self._encode(bundle, graph)

    def search(self, options: SearchOptions) -> list[list[tuple[str, Hypothesis]]]:
        """The readings of every utterance with their scores, best first."""
        found = self._searching.search(self._results, [options] * len(self._corpus.utterances))
        return [
            [(self._vocabulary.text([token.id for token in each.tokens]), each) for each in hypotheses]
            for hypotheses in found
        ]

    def rescored(self) -> list[list[Scored]]:
        """The readings of every utterance with the scores of each decoder alone."""
        options = SearchOptions(mode="rescoring", beam=BEAM, nbest=BEAM, lm_weight=0.0, reverse_weight=0.0)
        left, right = self.search(options), self.search(replace(options, reverse_weight=1.0))
        results = []
        for some, others in zip(left, right, strict=True):
            backwards = {tuple(token.id for token in each.tokens): each.attention_score for _, each in others}
            results.append(
                [
                    Scored(
                        text,
                        each.log_prob,
                        each.attention_score or 0.0,
                        backwards[tuple(token.id for token in each.tokens)] or 0.0,
                    )
                    for text, each in some
                ]
            )
        return results

    def trial(self, search: str, weights: Mapping[str, float], texts: Sequence[str]) -> Trial:
        """Errors of texts, one for each utterance."""
        words, characters = self._errors(texts)
        return {
            "search": search,
            "weights": dict(weights),
            "errors": words.errors,
            "character_errors": characters.errors,
        }

    def run(self, search: str, weights: Mapping[str, float]) -> Trial:
        """A search as it is asked for in use."""
        found = self.search(options_of(search, {search: weights}))
        return self.trial(search, weights, [readings[0][0] for readings in found])

    def _errors(self, texts: Sequence[str]) -> tuple[Counts, Counts]:
        scores = [
            score_utterance(each.id, each.text, text, self._normalizer)
            for each, text in zip(self._corpus.utterances, texts, strict=True)
        ]
        return pool(each.words for each in scores), pool(each.characters for each in scores)

    def _encode(self, bundle: Bundle, graph: Any) -> Mapping[str, Array]:
        """All utterances as one batch of results, as a pipeline would get it."""
        names = self._searching.outputs([SearchOptions(mode=mode) for mode in ("greedy", "rescoring")])
        rows = []
        for each in self._corpus.utterances:
            padded = np.zeros((1, len(each.waveform) + bundle.manifest.encoder.tail_samples), np.float32)
            padded[0, : len(each.waveform)] = each.waveform
            inputs = {"waveform": padded, "num_samples": np.array([padded.shape[1]])}
            rows.append(dict(zip(names, graph(inputs, names), strict=True)))
        longest = max(int(row["num_frames"][0]) for row in rows)

        def stacked(name: str) -> Array:
            if name == "num_frames":
                return np.concatenate([row[name] for row in rows])
            parts = [row[name][0, : int(row["num_frames"][0])] for row in rows]
            return np.stack([np.pad(part, [(0, longest - len(part)), *[(0, 0)] * (part.ndim - 1)]) for part in parts])

        return {name: stacked(name) for name in names}


def best(tried: Sequence[Trial]) -> Trial:
    """The trial whose neighbourhood has the fewest word errors; of equal ones, the fewest character errors.

    The neighbours of a trial have the same or the next value of every weight.
    """
    names = list(tried[0]["weights"])
    values = {name: sorted({trial["weights"][name] for trial in tried}) for name in names}
    places = [tuple(values[name].index(trial["weights"][name]) for name in names) for trial in tried]

    def errors(place: tuple[int, ...]) -> tuple[float, float]:
        near = [
            trial
            for trial, other in zip(tried, places, strict=True)
            if all(abs(one - two) <= 1 for one, two in zip(place, other, strict=True))
        ]
        return fmean(each["errors"] for each in near), fmean(each["character_errors"] for each in near)

    return tried[min(range(len(tried)), key=lambda index: errors(places[index]))]


def tune(bundle: Bundle, corpus: Corpus, stamp: Stamp, output: Path) -> None:
    """Try all weights, and write what was chosen and every trial."""
    development = Development(bundle, corpus)
    decoder = bundle.manifest.find(DecoderPart)
    assert decoder is not None
    defaults = {"ctc_weight": decoder.ctc_weight, "reverse_weight": decoder.reverse_weight}
    plain = [development.run("greedy", {}), development.run("prefix beam", {}), development.run("rescoring", defaults)]
    trials = {"prefix beam + LM": _lm_trials(development), "rescoring": _rescoring_trials(development)}
    chosen = {search: best(tried)["weights"] for search, tried in trials.items()}
    again = development.run("rescoring", chosen["rescoring"])
    if again != best(trials["rescoring"]):
        raise SystemExit(f"rescoring finds {again} when it is asked for, not {best(trials['rescoring'])}")
    # A model has one setting of each weight. Choosing all four together would fit the set, not the model.
    chosen["rescoring + LM"] = chosen["prefix beam + LM"] | chosen["rescoring"]
    together = development.run("rescoring + LM", chosen["rescoring + LM"])
    told = [*plain, *(best(tried) for tried in trials.values()), together]
    print(*told, sep="\n")
    content = {
        "set": corpus.name,
        "words": sum(len(each.text.split()) for each in corpus.utterances),
        "stamp": asdict(stamp),
        "chosen": chosen,
        "trials": [],
    }
    lines = json.dumps(content, indent=1).removesuffix("[]\n}")
    rows = ",\n  ".join(json.dumps(trial) for trial in [*plain, *chain(*trials.values()), together])
    output.write_text(f"{lines}[\n  {rows}\n ]\n}}\n", encoding="utf-8")
    print(output)


def _lm_trials(development: Development) -> list[Trial]:
    grid = product(LM_WEIGHTS, WORD_BONUSES)
    return [development.run("prefix beam + LM", {"lm_weight": lm, "word_bonus": bonus}) for lm, bonus in grid]


def _rescoring_trials(development: Development) -> list[Trial]:
    readings = development.rescored()
    trials = []
    for ctc_weight, reverse_weight in product(CTC_WEIGHTS, REVERSE_WEIGHTS):
        chosen = [max(each, key=lambda one: one.score(ctc_weight, reverse_weight)).text for each in readings]
        trials.append(
            development.trial("rescoring", {"ctc_weight": ctc_weight, "reverse_weight": reverse_weight}, chosen)
        )
    return trials
