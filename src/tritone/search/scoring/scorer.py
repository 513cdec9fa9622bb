"""What a language model, a word bonus and hotwords add to the prefixes of a search.

    Scorer.build(spellings, lm=..., hotwords=...)  ->  extend(address, state, token, next_state), finish(address, state)

All values are natural logarithms with weights applied. The sum over a token sequence and `finish` is

    sum over words w:   lm_weight * ln P(w | words before) + word_bonus
    end of sentence:    lm_weight * ln P(</s> | words before)
    hotwords:           weight, for each occurrence of each phrase (`automaton.py`)

Words are those of the text, see `alphabet.py`; with `lm_unit="token"` they are the tokens. A word is scored when it is
complete: at a border, before and after an ideograph, or at the end.

**Unknown words.** An n-gram model gives all unknown words together the probability of <unk>, or 10^-100 if it lacks
that; the one would let any jumble of letters pass for the price of a frequent word, the other forbid names. So for one

    ln P(w | h) = max(ln P(<unk> | h), ln of the rarest word's unigram) - unknown_penalty

**Words that are not complete** have the look-ahead

    lm_weight * max(best unigram of a word that begins so, unknown word's unigram) + word_bonus

which is exchanged for the true score when the word is complete. Without it a search would favour what is in the middle
of a word, because the word is not paid for, and a beam full of beginnings that lead to no word would find out too late.
As it is the largest unigram, a rare word is not paid for before its letters tell it from the frequent ones.

Look-ahead and the credit of hotwords are functions of the state, the rest is added once; that is why everything lent is
taken back exactly.
"""

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np

from tritone.search.compiled.addresses import address_of, float64s, int32s, int64s, pointer_to
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.ngram.model import LN_10, NgramModel
from tritone.search.ngram.tables import MAX_ORDER, TABLES_AT, score_word
from tritone.search.options import LmUnit
from tritone.search.scoring.alphabet import ALONE, BORDER, MIXED, SILENT, Alphabet, alphabet_of
from tritone.search.scoring.automaton import Automaton, automaton_of, follow
from tritone.search.scoring.lexicon import lexicon_of
from tritone.search.scoring.trie import Ids, child

UNKNOWN_PENALTY = 10.0  # an unknown word costs as much as about three of its letters would by chance
# A state: the words before, as `score_word` wants them; then these.
LEXICON, HOTWORDS, OPEN = range(MAX_ORDER - 1, MAX_ORDER + 2)  # nodes of lexicon (-1: no word begins so) and automaton;
STATE_SIZE = MAX_ORDER + 2  # and whether a word is open


# What compiled code reads of a scorer. Those int64 that have no other comment are addresses, see `addresses.py`, of
# int32. Probabilities of the language model are log10.
SCORER = np.dtype(
    [
        ("tables", TABLES_AT),
        ("has_lm", np.bool_),
        ("by_token", np.bool_),  # whether the words of the language model are tokens
        ("bounded", np.bool_),  # whether `outlook` knows bounds
        ("has_hotwords", np.bool_),
        ("lm_weight", np.float64),  # for log10
        ("word_bonus", np.float64),
        ("floor", np.float64),  # log10, the least of an unknown word, without the penalty
        ("penalty", np.float64),  # log10
        ("unknown", np.float64),  # log10, the look-ahead to an unknown word
        ("end", np.int64),  # word id of </s>, or 0
        ("lexicon_first", np.int64),
        ("lexicon_symbol", np.int64),
        ("lexicon_word", np.int64),
        ("lexicon_ahead", np.int64),  # float64, log10 of the best word that begins so
        ("token_words", np.int64),
        ("beginnings", np.int64),  # float64, log10 of the best word that begins with a token
        ("symbols", np.int64),
        ("symbol_first", np.int64),  # int64
        ("ideographs", np.int64),
        ("kinds", np.int64),
        ("hotword_first", np.int64),
        ("hotword_symbol", np.int64),
        ("hotword_fail", np.int64),
        ("hotword_after", np.int64),
        ("hotword_gain", np.int64),  # float64
        ("hotword_credit", np.int64),  # float64
        ("most_credit", np.int64),  # float64
        ("most_gain", np.float64),  # of the hotwords that one token completes
        ("most_closing", np.float64),  # the most that the end of a word adds, beside its log-probability
        ("max_gain", np.float64),  # the most that `extend` returns, whatever the state and the token
        ("ceiling", np.float64),  # of one state it is at most this less what is lent
    ],
    align=True,
)
NO_SCORER = np.zeros(1, dtype=SCORER)  # of searches that have none

_scorers_at = pointer_to(numba.from_dtype(SCORER))


class Scorer:
    """Adds to the log-probabilities of prefixes; shared by any number of searches at once.

    `record`: a `SCORER`, and `address` where it lies, for `extend` and `finish`. `start`: (state_size,) state of the
    empty prefix. `num_tokens`: ids of tokens must be below it, compiled code does not check them. `automaton`: of the
    hotwords, None without any.
    """

    state_size = STATE_SIZE

    def __init__(self, alphabet: Alphabet, lm: NgramModel | None, automaton: Automaton | None) -> None:
        """Prepare for the tokens of an alphabet; `build` sets the record."""
        self._kept: list[Any] = [alphabet, lm, automaton]  # owns the memory that the addresses lead to
        records = np.zeros(1, dtype=SCORER)
        self.address = address_of(records)
        self.record: Any = records[0]
        self.num_tokens = len(alphabet.spellings)
        self.automaton = automaton
        self.start = np.zeros(STATE_SIZE, dtype=np.int32)
        self.start[:LEXICON] = -1 if lm is None else lm.start
        self.start[HOTWORDS] = 0 if automaton is None else automaton.start

    @property
    def has_lm(self) -> bool:
        return bool(self.record["has_lm"])

    def _point_at(self, **arrays: Any) -> None:
        """Set addresses of the record."""
        for name, array in arrays.items():
            self.record[name] = address_of(array)
            self._kept.append(array)

    @classmethod
    def build(
        cls,
        spellings: Sequence[str],
        *,
        lm: NgramModel | None,
        lm_weight: float,
        word_bonus: float,
        lm_unit: LmUnit = "auto",
        hotwords: Sequence[tuple[str, float]] = (),
        overlapping: bool = True,
        unknown_penalty: float = UNKNOWN_PENALTY,
    ) -> "Scorer | None":
        """Build a scorer. What depends on token table, model or phrases alone is kept for the next one.

        Args:
            spellings: for each token what it adds to a text, with " " between words; "" adds nothing.
            lm: adds `lm_weight` times its log-probability; without it there is no `word_bonus` either.
            lm_unit: what the model's words are: words of the text, or tokens; "auto" finds out, see `lexicon_of`.
            hotwords: phrases and the weight that each occurrence adds; see `automaton.py`, for `overlapping` too.
            unknown_penalty: by how much a word that the model does not know is less likely than <unk>; natural log.

        Returns:
            None if nothing would ever be added.

        Raises:
            LanguageModelError: the model's words cannot be made of the tokens.
            InputError: a hotword cannot be.
        """
        alphabet = alphabet_of(spellings)
        automaton = automaton_of(hotwords, alphabet, overlapping=overlapping) if hotwords else None
        if lm is not None and not (lm_weight or word_bonus):
            lm = None
        if lm is None and automaton is None:
            return None
        scorer = cls(alphabet, lm, automaton)
        record = scorer.record
        record["bounded"] = True
        scorer._point_at(
            symbols=alphabet.symbols,
            symbol_first=alphabet.first,
            ideographs=alphabet.ideographs,
            kinds=alphabet.kinds,
        )
        if automaton is not None:
            record["has_hotwords"] = True
            record["most_gain"] = record["most_closing"] = max(0.0, float(automaton.gain.max()))
            scorer._point_at(
                hotword_first=automaton.trie.first,
                hotword_symbol=automaton.trie.symbol,
                hotword_fail=automaton.fail,
                hotword_after=automaton.after,
                hotword_gain=automaton.gain,
                hotword_credit=automaton.credit,
                most_credit=automaton.most_credit,
            )
        if lm is not None:
            lexicon = lexicon_of(lm, alphabet, lm_unit)
            record["has_lm"], record["by_token"] = True, lexicon.by_token
            record["bounded"] = lm_weight >= 0 and not lexicon.by_token
            record["tables"], record["end"] = lm.place[0], lm.end
            record["lm_weight"], record["word_bonus"] = lm_weight * LN_10, word_bonus
            record["floor"], record["penalty"] = lexicon.floor, unknown_penalty / LN_10
            least = -abs(float(lm.tables.values[lm.tables.unigrams]))
            record["unknown"] = max(least, lexicon.floor) - unknown_penalty / LN_10
            if not lexicon.by_token:
                record["most_closing"] += word_bonus
            scorer._point_at(
                lexicon_first=lexicon.trie.first,
                lexicon_symbol=lexicon.trie.symbol,
                lexicon_word=lexicon.word_at,
                lexicon_ahead=lexicon.best,
                token_words=lexicon.token_words,
                beginnings=lexicon.beginnings,
            )
        record["ceiling"], record["max_gain"] = _bounds(record, automaton, alphabet.most_words)
        return scorer


def _bounds(record: Any, automaton: Automaton | None, most_words: int) -> tuple[float, float]:
    """Bounds of what `extend` returns: of the words that a token completes, and with what was lent and comes back."""
    gain = least_lent = 0.0
    if record["has_lm"]:
        if record["lm_weight"] < 0:
            return float("inf"), float("inf")  # the less likely, the better: no end of it
        words = 1 if record["by_token"] else most_words
        gain += words * max(0.0, float(record["word_bonus"]))
        if not record["by_token"]:
            # The look-ahead is at most the bonus, and at least that of an unknown word.
            lowest = float(record["lm_weight"] * record["unknown"] + record["word_bonus"])
            gain += max(0.0, float(record["word_bonus"]))
            least_lent = min(0.0, lowest)
    if automaton is not None:
        gain += most_words * max(0.0, float(automaton.gain.max())) + float(automaton.credit.max())
    return gain, gain - least_lent


@inlined
def scorer_at(address: Any) -> Any:
    """The `SCORER` at an address."""
    return numba.carray(_scorers_at(address), (1,))[0]


@inlined
def adds(scorer: Any) -> Any:
    """Whether the scorer adds anything: `NO_SCORER` does not."""
    return scorer.has_lm or scorer.has_hotwords


@inlined
def look_ahead(scorer: Any, state: Ids) -> Any:
    """What is lent to the open word of a state."""
    if not (scorer.has_lm and not scorer.by_token and state[OPEN]):
        return 0.0
    ahead = scorer.unknown
    if state[LEXICON] >= 0:
        ahead = max(ahead, float64s(scorer.lexicon_ahead)[state[LEXICON]])
    return scorer.lm_weight * ahead + scorer.word_bonus


@inlined
def credit(scorer: Any, state: Ids) -> Any:
    """What is lent to the hotwords that a state is in the middle of."""
    return float64s(scorer.hotword_credit)[state[HOTWORDS]] if scorer.has_hotwords else 0.0


@inlined
def lent(scorer: Any, state: Ids) -> Any:
    """Look-ahead and credit of a state."""
    return look_ahead(scorer, state) + credit(scorer, state)


@inlined
def outlook(scorer: Any, token: Any) -> Any:
    """What a token can add at most, whatever the state: kind, `begun` and `credit`.

    With what is lent to a state and `closing` for its open word, 0 if it has none, `extend` adds at most

        SILENT                        0
        LETTERS of an open word       look-ahead + credit - lent: the look-ahead only falls while a word grows
        LETTERS otherwise             begun + credit - lent
        BREAK, ALONE                  closing + begun + credit - lent
        MIXED                         the scorer's `ceiling` - lent
    """
    kind, begun, most_credit = np.int64(MIXED), 0.0, 0.0
    if not scorer.bounded:
        return kind, begun, most_credit
    kind = np.int64(int32s(scorer.kinds)[token])
    if kind in (SILENT, MIXED):
        return kind, begun, most_credit
    last = np.int64(BORDER)
    if kind != ALONE:
        last = np.int64(int32s(scorer.symbols)[int64s(scorer.symbol_first)[token + 1] - 1])
    if kind == ALONE:
        begun = scorer.most_gain
        if scorer.has_lm:
            begun += scorer.word_bonus
    elif scorer.has_lm and last != BORDER:
        ahead = max(scorer.unknown, float64s(scorer.beginnings)[token])
        begun = scorer.lm_weight * ahead + scorer.word_bonus
    if scorer.has_hotwords:
        most_credit = float64s(scorer.most_credit)[last]
    return kind, begun, most_credit


@inlined
def _score(scorer: Any, state: Ids, word: Any) -> Any:
    """Score a word and add it to the state's context; 0 is an unknown one."""
    log_prob = score_word(scorer.tables, state, word, state)
    if word == 0:
        log_prob = max(log_prob, scorer.floor) - scorer.penalty
    return scorer.lm_weight * log_prob + scorer.word_bonus


@inlined
def _see(scorer: Any, state: Ids, symbol: Any) -> Any:
    """Move the automaton of hotwords; what is complete now."""
    if not scorer.has_hotwords:
        return 0.0
    node = follow(scorer.hotword_first, scorer.hotword_symbol, scorer.hotword_fail, np.int64(state[HOTWORDS]), symbol)
    state[HOTWORDS] = int32s(scorer.hotword_after)[node]
    return float64s(scorer.hotword_gain)[node]


@inlined
def _close(scorer: Any, state: Ids) -> Any:
    """Complete the open word."""
    gain = 0.0
    if scorer.has_lm and not scorer.by_token:
        node = state[LEXICON]
        gain += _score(scorer, state, np.int64(max(0, int32s(scorer.lexicon_word)[node]) if node >= 0 else 0))
        state[LEXICON] = 0
    state[OPEN] = 0
    return gain + _see(scorer, state, np.int64(BORDER))


@inlined
def close(scorer: Any, state: Ids, closed: Ids) -> Any:
    """What completing the open word of `state` adds; `closed` becomes the state after it."""
    for i in range(STATE_SIZE):  # an assignment of slices takes many times as long to compile
        closed[i] = state[i]
    return _close(scorer, closed)


@compiled
def extend(address: Any, state: Ids, token: Any, next_state: Ids) -> Any:
    """What `token` adds to a prefix with `state`; `next_state` becomes the state of the longer prefix."""
    scorer = scorer_at(address)
    return extend_from(scorer, state, state, 0.0, token, next_state)


@inlined
def extend_from(scorer: Any, state: Ids, begin: Ids, gain: Any, token: Any, next_state: Ids) -> Any:
    """The same from the state `begin` on, at which `gain` was added.

    That is `state` itself, or what `close` made of it if the token is of kind BREAK or ALONE.
    """
    for i in range(STATE_SIZE):
        next_state[i] = begin[i]
    if scorer.by_token and int32s(scorer.token_words)[token] >= 0:
        gain += _score(scorer, next_state, np.int64(int32s(scorer.token_words)[token]))
    for i in range(int64s(scorer.symbol_first)[token], int64s(scorer.symbol_first)[token + 1]):
        symbol = np.int64(int32s(scorer.symbols)[i])
        alone = symbol == BORDER or int32s(scorer.ideographs)[symbol] != 0
        if alone and next_state[OPEN]:
            gain += _close(scorer, next_state)
        if symbol == BORDER:
            continue
        next_state[OPEN] = 1
        if scorer.has_lm and not scorer.by_token and next_state[LEXICON] >= 0:
            node = np.int64(next_state[LEXICON])
            next_state[LEXICON] = child(scorer.lexicon_first, scorer.lexicon_symbol, node, symbol)
        gain += _see(scorer, next_state, symbol)
        if alone:
            gain += _close(scorer, next_state)
    return gain + lent(scorer, next_state) - lent(scorer, state)


@compiled
def finish(address: Any, state: Ids) -> Any:
    """What the end of the text adds to a prefix with `state`: its last word, and the end of the sentence."""
    scorer = scorer_at(address)
    last = state.copy()
    gain = -lent(scorer, state)
    if last[OPEN]:
        gain += _close(scorer, last)
    if scorer.has_lm and scorer.end > 0:
        gain += scorer.lm_weight * score_word(scorer.tables, last, np.int64(scorer.end), last)
    return gain
