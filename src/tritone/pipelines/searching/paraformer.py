"""The search of Paraformers: the decoder writes all tokens at once, of which each is the best of its place.

encoder_out (or log_probs), token_sums, num_tokens of some utterances   ->  hypotheses
log_probs, num_tokens, token_frames of steps of streams                 ->  hypotheses
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Role
from tritone.kinds.paraformer.part import HotwordsPart
from tritone.pipelines.graphs.choice import open_chosen
from tritone.pipelines.graphs.placement import ON_CPU, Placement
from tritone.pipelines.searching.base import MAX_SCORERS, HasOutputs, Searching, SearchSettings
from tritone.pipelines.searching.ctc import BEST
from tritone.pipelines.searching.phrases import MAX_TOKENS, Phrases
from tritone.pipelines.searching.rescoring import MAX_LOGITS, MAX_SCORES
from tritone.pipelines.searching.search import GreedySearch, Search
from tritone.runtime.graph import Array, Graph
from tritone.search.ctc.greedy import NO_TOKENS
from tritone.search.hypothesis import Hypothesis, Token, TokenRow
from tritone.search.options import HISTORY, PARAFORMER_MODES, SearchOptions

if TYPE_CHECKING:
    from typing import Self

Hotwords = tuple[tuple[str, float], ...]
Phrase = tuple[int, ...]

STATES = ("token_vectors", "token_states")  # of the decoder, which that for hotwords looks at
MAX_KNOWN = 10_000  # phrases whose vectors are kept: 20 MB at the published size
PHRASES_OF_A_CALL = 256
LEAD = 1  # frames from the start of a token to its peak; upstream shifts times by one and a half


def encoder_outputs(*, decoded: bool) -> tuple[str, ...]:
    """Names of the outputs that the search needs of an encoder; `decoded`: the decoder is a part of it."""
    return ("log_probs" if decoded else "encoder_out", "num_frames", "token_sums", "num_tokens")


class ParaformerStream(GreedySearch):
    """The tokens of a stream, whose graph has the decoder: they are read from each step."""

    def __init__(self, options: SearchOptions, silent: Array) -> None:
        """Start before the first frame; `silent`: ids of tokens that are none."""
        super().__init__(options)
        self._silent = silent
        self._frames = 0
        self._end = 0  # of the newest token

    @classmethod
    def advance_all(cls, searches: "Sequence[Self]", outputs: Mapping[str, Array], rows: Sequence[int]) -> None:
        ids, log_probs = (outputs[name] for name in BEST) if BEST[0] in outputs else _best(outputs["log_probs"])
        counts = np.clip(outputs["num_tokens"], 0, ids.shape[1])
        for search, row in zip(searches, rows, strict=True):
            if counts[row]:
                found = (each[row, : counts[row]] for each in (ids, outputs["token_frames"], log_probs))
                search._write(*found)
            search._frames += max(0, int(outputs["num_frames"][row]))

    def _write(self, ids: Array, peaks: Array, log_probs: Array) -> None:
        written = []
        for place in np.flatnonzero(~np.isin(ids, self._silent)).tolist():
            peak = max(self._frames + int(peaks[place]), self._end)
            start, self._end = max(peak - LEAD, self._end), peak + 1
            written.append(Token(int(ids[place]), start, self._end, math.exp(log_probs[place])))
        self.add(written)


class ParaformerSearching(Searching):
    """Has the tokens of utterances written by the decoder, unless that is a part of the encoder's graph.

    May be called from several threads.
    """

    modes = PARAFORMER_MODES

    @classmethod
    def roles(cls, mode: str) -> tuple[Role, ...]:
        return ()  # decoders that are there are part of the model in any search

    @classmethod
    def obstacle(cls, bundle: Bundle, mode: str) -> str | None:
        if mode == "contextual" and not bundle.has("hotword_decoder"):
            return (
                "this Paraformer has no part that takes hotwords, as SeACo- and ContextualParaformers have; search "
                "with greedy"
            )
        return super().obstacle(bundle, mode)

    def __init__(
        self,
        bundle: Bundle,
        graph: HasOutputs,
        settings: SearchSettings | None = None,
        *,
        placement: Placement = ON_CPU,
    ) -> None:
        """Open the decoder of a bundle that has one.

        Args:
            graph: the encoder, of whole utterances or of streams.

        Raises:
            BundleError: the decoder cannot be opened; or as of `Searching`.
            OperatorError: the device is not available.
        """
        super().__init__(bundle, settings, threads=placement.threads)
        self._streamed: tuple[str, ...] = ()
        if "token_frames" in graph.outputs:
            best = BEST if set(BEST) <= set(graph.outputs) else ("log_probs",)
            self._streamed = (*best, "num_tokens", "token_frames", "num_frames")
        self._decoder: Graph | None = None
        if bundle.has("decoder"):
            _, self._decoder = open_chosen(bundle, "decoder", placement)
        self._hotword_decoder: HotwordDecoder | None = None
        if bundle.has("hotword_decoder"):
            reads, decodes = (
                open_chosen(bundle, each, placement)[1] for each in ("hotword_encoder", "hotword_decoder")
            )
            self._hotword_decoder = HotwordDecoder(bundle, reads, decodes)
        self._silent = np.array(sorted(bundle.vocabulary.silent_ids), np.int64)
        self._size = bundle.manifest.tokens.size
        self.options = self.check(self._settings.options)

    def outputs(self, options: Iterable[SearchOptions]) -> tuple[str, ...]:
        return self._streamed or encoder_outputs(decoded=self._decoder is None)

    def check(self, options: SearchOptions | None) -> SearchOptions:
        checked = super().check(options)
        if self._hotword_decoder is not None and _has_hotwords(checked):
            self._hotword_decoder.phrases(checked.hotwords)
        return checked

    def _is_scored(self, options: SearchOptions) -> bool:
        return False  # the network takes hotwords

    def start(self, options: SearchOptions, *, history: int | None = HISTORY) -> Search:
        return ParaformerStream(options, self._silent)

    def warm_up(self) -> None:
        if self._decoder is None:
            return
        dim = self._bundle.manifest.encoder.output_dim
        outputs = {
            "encoder_out": np.zeros((1, 4, dim), np.float32),
            "num_frames": np.array([4]),
            "token_sums": np.linspace(0.5, 2, 4, dtype=np.float32)[None],
            "num_tokens": np.array([2]),
        }
        self.search(outputs, [self.options])

    def search(self, outputs: Mapping[str, Array], options: Sequence[SearchOptions]) -> list[list[Hypothesis]]:
        found = [NO_TOKENS] * len(options)
        # Each frame is at most one token, whatever a bundle's graph says.
        counts = np.minimum(outputs["num_tokens"], outputs["num_frames"] + 1)
        frames = outputs["num_frames"]
        rows = sorted((row for row in range(len(options)) if counts[row] > 0), key=lambda row: int(counts[row]))
        if self._decoder is None:
            return [[Hypothesis(each, 0.0)] for each in self._decoded(outputs, counts)]
        while rows:
            call = self._call(rows, counts, frames)
            del rows[len(rows) - len(call) :]
            most = int(frames[call].max())
            feed = {
                "encoder_out": np.ascontiguousarray(outputs["encoder_out"][call, :most]),
                "num_frames": frames[call],
                "token_sums": np.ascontiguousarray(outputs["token_sums"][call, :most]),
                "num_tokens": counts[call],
                "places": np.arange(int(counts[call].max())),
            }
            for row, ids, log_probs in zip(call, *self._best(feed, [options[row] for row in call]), strict=True):
                sums = outputs["token_sums"][row, : frames[row]]
                found[row] = self._tokens(ids[: counts[row]], log_probs[: counts[row]], sums)
        return [[Hypothesis(tokens, 0.0)] for tokens in found]

    def _best(self, feed: Mapping[str, Array], options: Sequence[SearchOptions]) -> tuple[Array, Array]:
        """The best token of each place and its log-probability."""
        assert self._decoder is not None
        biased = [row for row, each in enumerate(options) if self._hotword_decoder is not None and _has_hotwords(each)]
        names = BEST if set(BEST) <= set(self._decoder.outputs) else ("log_probs",)
        found = dict(
            zip(names + STATES * bool(biased), self._decoder(feed, names + STATES * bool(biased)), strict=True)
        )
        ids, best = (found[name] for name in BEST) if BEST[0] in found else _best(found["log_probs"])
        if biased and self._hotword_decoder is not None:
            ids, best = np.array(ids), np.array(best)
            states = {name: np.ascontiguousarray(found[name][biased]) for name in STATES}
            hotwords = [options[row].hotwords for row in biased]
            theirs, log_probs = self._hotword_decoder.best(
                states | {"num_tokens": feed["num_tokens"][biased]}, hotwords
            )
            is_theirs = theirs != (-1 if self._hotword_decoder.no_bias is None else self._hotword_decoder.no_bias)
            ids[biased] = np.where(is_theirs, theirs, ids[biased])
            best[biased] = np.where(is_theirs, log_probs, best[biased])
        return ids, best

    def _decoded(self, outputs: Mapping[str, Array], counts: Array) -> list[TokenRow]:
        """The tokens of rows whose log-probabilities are there."""
        counts = np.minimum(counts, outputs["log_probs"].shape[1])
        rows = zip(*_best(outputs["log_probs"]), counts, outputs["token_sums"], outputs["num_frames"], strict=True)
        return [
            self._tokens(ids[:count], log_probs[:count], sums[:frames]) if frames > 0 else NO_TOKENS
            for ids, log_probs, count, sums, frames in rows
        ]

    def _call(self, rows: Sequence[int], counts: Array, frames: Array) -> list[int]:
        """As many of the last rows, those with most tokens, as one call takes; one at least."""
        taken, longest = 1, int(frames[rows[-1]])
        tokens = int(counts[rows[-1]])
        for count, row in enumerate(reversed(rows[:-1]), start=2):
            longest = max(longest, int(frames[row]))
            if count * tokens * self._size > MAX_LOGITS or count * tokens * longest > MAX_SCORES:
                break
            taken = count
        return list(rows[len(rows) - taken :])

    def _tokens(self, ids: Array, log_probs: Array, sums: Array) -> TokenRow:
        """Tokens with times: where the sum passes a whole number, a token has its peak."""
        passed = np.floor(sums)
        peaks = np.searchsorted(passed, np.arange(1, len(ids) + 1))  # of the last, perhaps, in the silence behind
        starts = np.clip(peaks - LEAD, 0, len(sums) - 1)
        ends = np.maximum(np.minimum(np.append(starts[1:], len(sums)), peaks + 1), starts + 1)
        kept = ~np.isin(ids, self._silent)
        return TokenRow(ids[kept], starts[kept], ends[kept], np.exp(log_probs[kept].astype(np.float64)))


def _has_hotwords(options: SearchOptions) -> bool:
    """Whether there are hotwords to tell; with another search those of the model are passed over."""
    return options.mode == "contextual" and bool(options.hotwords)


class HotwordDecoder:
    """The decoder that takes hotwords: tokens that belong to one of them, and `no_bias` where there is none.

    May be called from several threads.
    """

    def __init__(self, bundle: Bundle, reads: Graph, decodes: Graph) -> None:
        """Take the graph that makes vectors of phrases and that which decodes with them."""
        assert bundle.manifest.tokens.sos_id is not None
        self.no_bias = bundle.manifest.part(HotwordsPart).no_bias
        self.phrases = lru_cache(MAX_SCORERS)(Phrases(bundle).ids)
        self._none = (bundle.manifest.tokens.sos_id,)  # the last of each list, which is no phrase
        self._reads, self._decodes = reads, decodes
        self._known: dict[Phrase, Array] = {}  # vectors of the newest phrases
        self._lock = Lock()

    def best(self, states: Mapping[str, Array], hotwords: Sequence[Hotwords]) -> tuple[Array, Array]:
        """The best token of each place and its log-probability, of rows with their hotwords."""
        lists = [(*self.phrases(each), self._none) for each in hotwords]
        numbers = {phrase: number for number, phrase in enumerate(dict.fromkeys(chain(*lists)))}
        listed = [[numbers[phrase] for phrase in each] for each in lists]
        feed = {
            "phrase_vectors": self._vectors(list(numbers)),
            "listed": _table(listed, max(map(len, listed))),
            "num_listed": np.array([len(each) for each in listed]),
        }
        return _best(self._decodes({**states, **feed}, ("log_probs",))[0])

    def _vectors(self, phrases: Sequence[Phrase]) -> Array:
        """Vectors (phrases, width) float32; those that were asked for before are known."""
        known = {phrase: vector for phrase in phrases if (vector := self._known.get(phrase)) is not None}
        missing = [phrase for phrase in phrases if phrase not in known]
        for start in range(0, len(missing), PHRASES_OF_A_CALL):
            some = missing[start : start + PHRASES_OF_A_CALL]
            lengths = np.array([len(each) for each in some])
            feed = {"phrases": _table(some, MAX_TOKENS), "phrase_lengths": lengths}
            known |= zip(some, np.array(self._reads(feed, ("phrase_vectors",))[0]), strict=True)
        with self._lock:
            self._known |= {phrase: known[phrase] for phrase in missing}
            for oldest in list(self._known)[: max(0, len(self._known) - MAX_KNOWN)]:
                del self._known[oldest]
        return np.stack([known[phrase] for phrase in phrases])


def _table(rows: Sequence[Sequence[int]], width: int) -> Array:
    """Rows of whole numbers, zero behind those that are shorter than `width`."""
    found = np.zeros((len(rows), width), np.int64)
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return found


def _best(log_probs: Array) -> tuple[Array, Array]:
    ids = log_probs.argmax(axis=2)
    return ids, np.take_along_axis(log_probs, ids[:, :, None], axis=2)[:, :, 0]
