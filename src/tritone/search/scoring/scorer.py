"""What a language model, a word bonus and hotwords add to the prefixes of a search.

    Scorer.build(spellings, lm=..., hotwords=...)  ->  extend(arrays, state, token, next_state), finish(arrays, state)

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
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from tritone.search.compiled.addresses import address_of, float64s, int32s, int64s
from tritone.search.compiled.compiler import compiled, inlined
from tritone.search.ngram.model import LN_10, MAX_ORDER, NgramModel, TablesAt, score_word
from tritone.search.options import LmUnit
from tritone.search.scoring.alphabet import ALONE, BORDER, MIXED, SILENT, alphabet_of
from tritone.search.scoring.automaton import Automaton, automaton_of, follow
from tritone.search.scoring.lexicon import lexicon_of
from tritone.search.scoring.trie import Ids, child

UNKNOWN_PENALTY = 10.0  # an unknown word costs as much as about three of its letters would by chance
# A state: the words before, as `score_word` wants them; then these.
LEXICON, HOTWORDS, OPEN = range(MAX_ORDER - 1, MAX_ORDER + 2)  # nodes of lexicon (-1: no word begins so) and automaton;
STATE_SIZE = MAX_ORDER + 2  # and whether a word is open


class _Numbers(NamedTuple):
    tables: TablesAt
    has_lm: bool
    by_token: bool
    lm_weight: float  # for log10
    word_bonus: float
    floor: float  # log10 of an unknown word, at least, without the penalty
    penalty: float  # log10
    unknown: float  # log10, the look-ahead to an unknown word
    end: int  # word id of </s>, or 0
    # Addresses, see `memory.py`; float64 for those that hold logarithms, int64 for `symbol_first`, else int32.
    lexicon_first: int
    lexicon_symbol: int
    lexicon_word: int
    lexicon_ahead: int  # log10, of the best word that begins so
    token_words: int
    beginnings: int  # log10, of the best word that begins with a token
    symbols: int
    symbol_first: int
    ideographs: int
    kinds: int
    bounded: bool  # whether `outlook` tells anything
    has_hotwords: bool
    hotword_first: int
    hotword_symbol: int
    hotword_fail: int
    hotword_gain: int
    hotword_credit: int
    hotword_after: int
    most_credit: int
    most_gain: float  # of hotwords that are complete
    most_closing: float


class Arrays(_Numbers):
    """All that compiled code needs of a scorer. Types are always the same, whatever the scorer adds.

    `kept`: owns the memory that the addresses lead to, so keep the whole of it while it is used.
    """

    kept: tuple[Any, ...]


def _record_of(numbers: type) -> np.dtype[Any]:
    kinds = {bool: np.bool_, int: np.int64, float: np.float64}
    fields = ((name, kinds.get(kind) or _record_of(kind)) for name, kind in get_type_hints(numbers).items())
    return np.dtype(list(fields), align=True)


# `Arrays` as a record, for compiled code that many searches share and that is given addresses: its fields have the same
# names, so `extend` and `finish` take it in their stead.
NUMBERS = _record_of(_Numbers)


class Scorer:
    """Adds to the log-probabilities of prefixes; shared by any number of searches at once.

    `arrays`: for `extend` and `finish`. `start`: (state_size,) state of the empty prefix. `max_gain`: the most that
    `extend` returns, whatever the state and the token. `ceiling`: of one state it is at most this less what is lent.
    `num_tokens`: ids of tokens must be below it, compiled code does not check them.
    `record`: (1,) `arrays` as `NUMBERS`.
    """

    state_size = STATE_SIZE

    def __init__(self, arrays: Arrays, num_tokens: int, start: Ids, ceiling: float, max_gain: float) -> None:
        self.arrays = arrays
        self.num_tokens = num_tokens
        self.start = start
        self.ceiling = ceiling
        self.max_gain = max_gain
        self.record = np.array([tuple(arrays)], dtype=NUMBERS)

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
        lexicon = None if lm is None else lexicon_of(lm, alphabet, lm_unit)
        floor = penalty = unknown = 0.0
        if lm is not None and lexicon is not None:
            tables = lm.tables
            floor, penalty = lexicon.floor, unknown_penalty / LN_10
            unknown = max(-abs(float(tables.values[tables.unigrams])), floor) - penalty
        most_gain = 0.0 if automaton is None else max(0.0, float(automaton.gain.max()))
        arrays = Arrays(
            tables=_NOWHERE if lm is None else lm.at,
            has_lm=lm is not None,
            by_token=lexicon is not None and lexicon.by_token,
            lm_weight=float(lm_weight) * LN_10,
            word_bonus=float(word_bonus),
            floor=float(floor),
            penalty=float(penalty),
            unknown=float(unknown),
            end=0 if lm is None else lm.end,
            lexicon_first=0 if lexicon is None else address_of(lexicon.trie.first),
            lexicon_symbol=0 if lexicon is None else address_of(lexicon.trie.symbol),
            lexicon_word=0 if lexicon is None else address_of(lexicon.word_at),
            lexicon_ahead=0 if lexicon is None else address_of(lexicon.best),
            token_words=0 if lexicon is None else address_of(lexicon.token_words),
            beginnings=0 if lexicon is None else address_of(lexicon.beginnings),
            symbols=address_of(alphabet.symbols),
            symbol_first=address_of(alphabet.first),
            ideographs=address_of(alphabet.ideographs),
            kinds=address_of(alphabet.kinds),
            bounded=lexicon is None or (lm_weight >= 0 and not lexicon.by_token),
            has_hotwords=automaton is not None,
            hotword_first=0 if automaton is None else address_of(automaton.trie.first),
            hotword_symbol=0 if automaton is None else address_of(automaton.trie.symbol),
            hotword_fail=0 if automaton is None else address_of(automaton.fail),
            hotword_gain=0 if automaton is None else address_of(automaton.gain),
            hotword_credit=0 if automaton is None else address_of(automaton.credit),
            hotword_after=0 if automaton is None else address_of(automaton.after),
            most_credit=0 if automaton is None else address_of(automaton.most_credit),
            most_gain=most_gain,
            most_closing=most_gain + (float(word_bonus) if lexicon is not None and not lexicon.by_token else 0.0),
        )
        arrays.kept = lm, lexicon, alphabet, automaton
        start = np.zeros(STATE_SIZE, dtype=np.int32)
        start[:LEXICON] = -1 if lm is None else lm.start
        start[HOTWORDS] = 0 if automaton is None else automaton.start
        return cls(arrays, len(alphabet.spellings), start, *_bounds(arrays, automaton, alphabet.most_words))


_NOWHERE = TablesAt(0, 0, 0, 2, 1)


def _bounds(arrays: Arrays, automaton: Automaton | None, most_words: int) -> tuple[float, float]:
    """Bounds of what `extend` returns: of the words that a token completes, and with what was lent and comes back."""
    gain = least_lent = 0.0
    if arrays.has_lm:
        if arrays.lm_weight < 0:
            return float("inf"), float("inf")  # the less likely, the better: no end of it
        words = 1 if arrays.by_token else most_words
        gain += words * max(0.0, arrays.word_bonus)
        if not arrays.by_token:
            # The look-ahead is at most the bonus, and at least that of an unknown word.
            lowest = arrays.lm_weight * arrays.unknown + arrays.word_bonus
            gain += max(0.0, arrays.word_bonus)
            least_lent = min(0.0, lowest)
    if automaton is not None:
        gain += most_words * max(0.0, float(automaton.gain.max())) + float(automaton.credit.max())
    return gain, gain - least_lent


@inlined
def look_ahead(arrays: Arrays, state: Ids) -> Any:
    """What is lent to the open word of a state."""
    if not (arrays.has_lm and not arrays.by_token and state[OPEN]):
        return 0.0
    ahead = arrays.unknown
    if state[LEXICON] >= 0:
        ahead = max(ahead, float64s(arrays.lexicon_ahead)[state[LEXICON]])
    return arrays.lm_weight * ahead + arrays.word_bonus


@inlined
def credit(arrays: Arrays, state: Ids) -> Any:
    """What is lent to the hotwords that a state is in the middle of."""
    return float64s(arrays.hotword_credit)[state[HOTWORDS]] if arrays.has_hotwords else 0.0


@inlined
def lent(arrays: Arrays, state: Ids) -> Any:
    """Look-ahead and credit of a state."""
    return look_ahead(arrays, state) + credit(arrays, state)


@inlined
def outlook(arrays: Arrays, token: Any) -> Any:
    """What a token can add at most, whatever the state: kind, `begun` and `credit`.

    With what is lent to a state and `closing` for its open word, 0 if it has none, `extend` adds at most

        SILENT                        0
        LETTERS of an open word       look-ahead + credit - lent: the look-ahead only falls while a word grows
        LETTERS otherwise             begun + credit - lent
        BREAK, ALONE                  closing + begun + credit - lent
        MIXED                         the scorer's `ceiling` - lent
    """
    kind, begun, most_credit = np.int64(MIXED), 0.0, 0.0
    if not arrays.bounded:
        return kind, begun, most_credit
    kind = np.int64(int32s(arrays.kinds)[token])
    if kind in (SILENT, MIXED):
        return kind, begun, most_credit
    last = np.int64(BORDER)
    if kind != ALONE:
        last = np.int64(int32s(arrays.symbols)[int64s(arrays.symbol_first)[token + 1] - 1])
    if kind == ALONE:
        begun = arrays.most_gain
        if arrays.has_lm:
            begun += arrays.word_bonus
    elif arrays.has_lm and last != BORDER:
        ahead = max(arrays.unknown, float64s(arrays.beginnings)[token])
        begun = arrays.lm_weight * ahead + arrays.word_bonus
    if arrays.has_hotwords:
        most_credit = float64s(arrays.most_credit)[last]
    return kind, begun, most_credit


@inlined
def _score(arrays: Arrays, state: Ids, word: Any) -> Any:
    """Score a word and add it to the state's context; 0 is an unknown one."""
    log_prob = score_word(arrays.tables, state, word, state)
    if word == 0:
        log_prob = max(log_prob, arrays.floor) - arrays.penalty
    return arrays.lm_weight * log_prob + arrays.word_bonus


@inlined
def _see(arrays: Arrays, state: Ids, symbol: Any) -> Any:
    """Move the automaton of hotwords; what is complete now."""
    if not arrays.has_hotwords:
        return 0.0
    node = follow(arrays.hotword_first, arrays.hotword_symbol, arrays.hotword_fail, np.int64(state[HOTWORDS]), symbol)
    state[HOTWORDS] = int32s(arrays.hotword_after)[node]
    return float64s(arrays.hotword_gain)[node]


@inlined
def _close(arrays: Arrays, state: Ids) -> Any:
    """Complete the open word."""
    gain = 0.0
    if arrays.has_lm and not arrays.by_token:
        node = state[LEXICON]
        gain += _score(arrays, state, np.int64(max(0, int32s(arrays.lexicon_word)[node]) if node >= 0 else 0))
        state[LEXICON] = 0
    state[OPEN] = 0
    return gain + _see(arrays, state, np.int64(BORDER))


@inlined
def close(arrays: Arrays, state: Ids, closed: Ids) -> Any:
    """What completing the open word of `state` adds; `closed` becomes the state after it."""
    for i in range(STATE_SIZE):  # an assignment of slices takes many times as long to compile
        closed[i] = state[i]
    return _close(arrays, closed)


@compiled
def extend(arrays: Arrays, state: Ids, token: Any, next_state: Ids) -> Any:
    """What `token` adds to a prefix with `state`; `next_state` becomes the state of the longer prefix."""
    return extend_from(arrays, state, state, 0.0, token, next_state)


@inlined
def extend_from(arrays: Arrays, state: Ids, begin: Ids, gain: Any, token: Any, next_state: Ids) -> Any:
    """The same from the state `begin` on, at which `gain` was added.

    That is `state` itself, or what `close` made of it if the token is of kind BREAK or ALONE.
    """
    for i in range(STATE_SIZE):
        next_state[i] = begin[i]
    if arrays.by_token and int32s(arrays.token_words)[token] >= 0:
        gain += _score(arrays, next_state, np.int64(int32s(arrays.token_words)[token]))
    for i in range(int64s(arrays.symbol_first)[token], int64s(arrays.symbol_first)[token + 1]):
        symbol = np.int64(int32s(arrays.symbols)[i])
        alone = symbol == BORDER or int32s(arrays.ideographs)[symbol] != 0
        if alone and next_state[OPEN]:
            gain += _close(arrays, next_state)
        if symbol == BORDER:
            continue
        next_state[OPEN] = 1
        if arrays.has_lm and not arrays.by_token and next_state[LEXICON] >= 0:
            node = np.int64(next_state[LEXICON])
            next_state[LEXICON] = child(arrays.lexicon_first, arrays.lexicon_symbol, node, symbol)
        gain += _see(arrays, next_state, symbol)
        if alone:
            gain += _close(arrays, next_state)
    return gain + lent(arrays, next_state) - lent(arrays, state)


@compiled
def finish(arrays: Arrays, state: Ids) -> Any:
    """What the end of the text adds to a prefix with `state`: its last word, and the end of the sentence."""
    last = state.copy()
    gain = -lent(arrays, state)
    if last[OPEN]:
        gain += _close(arrays, last)
    if arrays.has_lm and arrays.end > 0:
        gain += arrays.lm_weight * score_word(arrays.tables, last, np.int64(arrays.end), last)
    return gain
