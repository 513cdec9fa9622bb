"""How to search: what a request may ask for, and what a model does unless a request says otherwise.

    {"search": "rescoring", "beam": "20", "hotwords": "{\\"anna\\": 8}"}  ->  SearchOptions

Each option is described where its field is, and its default stands there alone: the parameters of requests, of models
and of commands are made of these fields, and the tables in the documents are compared with them. Scores and weights
are in natural-log units.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from tritone.errors import InputError
from tritone.options.fields import check_bounds, described, option, parse_parameters
from tritone.search.endpoint import EndpointRules
from tritone.search.hotwords import MAX_WEIGHT, check_hotwords, read_hotwords

SearchMode = Literal["greedy", "prefix-beam", "rescoring", "modified-beam", "fast-beam", "contextual"]
LmUnit = Literal["auto", "word", "token"]  # what the words of a language model are

CTC_MODES: tuple[SearchMode, ...] = ("greedy", "prefix-beam", "rescoring")
PARAFORMER_MODES: tuple[SearchMode, ...] = ("greedy", "contextual")
TRANSDUCER_MODES: tuple[SearchMode, ...] = ("greedy", "modified-beam", "fast-beam")
BEAM_MODES: tuple[SearchMode, ...] = ("prefix-beam", "rescoring", "modified-beam", "fast-beam")
HOTWORD_MODES: tuple[SearchMode, ...] = (*BEAM_MODES, "contextual")
DEFAULT_BEAMS: Mapping[SearchMode, int] = {
    "greedy": 10,
    "prefix-beam": 10,
    "rescoring": 10,
    "modified-beam": 4,
    "fast-beam": 20,
    "contextual": 10,
}
HISTORY = 1500  # frames that the hypotheses of a beam may go on differing, a minute at 40 ms
MAX_BEAM = 128  # of a request: the work grows with it, and other requests wait for it
MAX_SYMBOLS = 10  # of one frame: with a large blank penalty every frame has so many, and each takes a call
MAX_LANGUAGE = 64  # characters of a language's name
MAX_STATES = 1024  # of a fast beam search
MAX_CONTEXTS = 64  # of it: in every frame the joiner runs for each, and the scorer for each of its tokens

DEFAULT_MODE: SearchMode = "greedy"
MODE_HELP = (
    "greedy; for CTC models prefix-beam, or rescoring of its n best by the attention decoder; for transducers "
    "modified-beam or fast-beam; for Paraformers with a part for hotwords contextual."
)
RULES = EndpointRules()


def read_language(value: Any) -> str:
    """A language as a request has it; models know different ones."""
    if not isinstance(value, str) or len(value) > MAX_LANGUAGE:
        raise ValueError(f"expected the name of a language, such as de-DE, got {str(value)[:MAX_LANGUAGE]!r}")
    return value


@dataclass(frozen=True, kw_only=True)
class SearchFields:
    """The options that requests and models have alike, under one name."""

    beam: int = option(
        0,
        "Hypotheses kept after each frame, or for fast-beam how far below the best a path may be; 0: as usual for the "
        "search.",
        least=1,
        most=MAX_BEAM,
        values=f"1 to {MAX_BEAM}; 0: 10, `modified-beam` 4, `fast-beam` 20",
        modes=BEAM_MODES,
    )
    nbest: int = option(
        1,
        "Readings to return, best first.",
        values="1 to the beam; with `fast-beam` to `max_states`",
        modes=BEAM_MODES,
    )
    ctc_weight: float | None = option(
        None,
        "Weight of the CTC score in rescoring; the model's own if not given.",
        least=-MAX_WEIGHT,
        most=MAX_WEIGHT,
        modes=("rescoring",),
    )
    reverse_weight: float | None = option(
        None,
        "Weight of the right-to-left decoder in rescoring; the model's own if not given.",
        least=0,
        most=1,
        modes=("rescoring",),
    )
    lm_weight: float | None = option(
        None,
        "Weight of the language model; 0 leaves it out.",
        least=-MAX_WEIGHT,
        most=MAX_WEIGHT,
        modes=BEAM_MODES,
    )
    word_bonus: float = option(
        0.0,
        "Added for each word that the language model scores.",
        least=-MAX_WEIGHT,
        most=MAX_WEIGHT,
        modes=BEAM_MODES,
    )
    language: str = option(
        "",
        "Language of the audio, for models that take it; if not given their usual one, and Whisper finds it out.",
        values="one that the model knows, such as `de-DE` or `auto`",
        read=read_language,
    )
    use_itn: bool = option(
        False,
        "Figures and punctuation in place of numbers in words, of models that write both (SenseVoice).",
        flags=("--use-itn/--no-use-itn",),
    )
    timestamps: bool = option(
        True,
        "Whether details have tokens and words with their times.",
        flags=("--detail-times/--no-detail-times",),
    )
    blank_penalty: float = option(
        0.0,
        "Transducers: subtracted from the blank's logit. More makes fewer deletions.",
        least=-MAX_WEIGHT,
        most=MAX_WEIGHT,
        modes=TRANSDUCER_MODES,
        kinds=("transducer",),
    )
    temperature: float = option(
        1.0,
        "modified-beam and fast-beam: divides the logits.",
        least=0.01,
        most=MAX_WEIGHT,
        modes=("modified-beam", "fast-beam"),
        kinds=("transducer",),
    )
    max_symbols: int | None = option(
        None,
        "Greedy search of transducers: the most tokens of one frame; the model's own if not given.",
        least=1,
        most=MAX_SYMBOLS,
        modes=("greedy",),
        kinds=("transducer",),
    )
    max_states: int = option(
        64,
        "fast-beam: states kept after each frame.",
        least=1,
        most=MAX_STATES,
        modes=("fast-beam",),
        kinds=("transducer",),
    )
    max_contexts: int = option(
        8,
        "fast-beam: different contexts of the predictor among the states kept.",
        least=1,
        most=MAX_CONTEXTS,
        modes=("fast-beam",),
        kinds=("transducer",),
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(SearchFields):
    """How to search in one request.

    The modes: greedy takes the best label of each frame. Of CTC models prefix-beam is prefix beam search, and rescoring
    has its n best hypotheses scored by the attention decoder. Of transducers modified-beam has at most a token a frame
    and adds alignments up, and fast-beam finds the best path in a graph. Language models and hotwords need a beam; of
    Paraformers contextual is greedy with hotwords that the network itself takes.

    `beam` 0 becomes the usual one of the mode. `ctc_weight`, `reverse_weight` and `lm_weight` may be left to the model
    with None. `hotwords`: phrases, and what each adds to a hypothesis that has it.
    """

    mode: SearchMode = option(DEFAULT_MODE, MODE_HELP, name="search")
    hotwords: tuple[tuple[str, float], ...] = option(
        (),
        "Phrases to favour, with weights, in place of the model's; a negative weight makes a phrase rarer.",
        values='text, `{"anna": 8, "new york": 5}` or `anna:8, new york:5`',
        modes=HOTWORD_MODES,
        read=read_hotwords,
    )

    def __post_init__(self) -> None:
        if self.mode not in get_args(SearchMode):
            raise InputError(f"search must be one of {', '.join(get_args(SearchMode))}, got {self.mode!r}")
        if self.beam == 0:
            object.__setattr__(self, "beam", DEFAULT_BEAMS[self.mode])
        check_bounds(self)
        most = self.max_nbest
        if not 1 <= self.nbest <= most:
            raise InputError(f"nbest must be 1 to {most}, as many as the search keeps, got {self.nbest}")
        check_hotwords(self.hotwords)

    @property
    def max_nbest(self) -> int:
        """How many hypotheses the search keeps at most."""
        return self.max_states if self.mode == "fast-beam" else self.beam

    @property
    def num_hypotheses(self) -> int:
        """How many hypotheses a beam should return: one if nobody chooses among more."""
        if self.mode == "fast-beam":
            return self.nbest
        return self.beam if self.mode == "rescoring" or self.nbest > 1 else 1

    def changed(self, parameters: Mapping[str, Any]) -> "SearchOptions":
        """These options with some of them replaced, as a request's parameters ask for.

        Args:
            parameters: by the names in `PARAMETERS`; numbers and booleans may be text, hotwords are text: JSON
                `{"phrase": weight}` or `phrase:weight, phrase:weight`. Other names are refused.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        if not parameters:
            return self
        values = parse_parameters(PARAMETERS, parameters)
        mode, nbest, beam = values.get("mode", self.mode), values.get("nbest", self.nbest), values.get("beam")
        counts = mode != "fast-beam"  # the beam counts hypotheses
        # Another way of searching has another usual beam.
        if beam is None and mode != self.mode:
            is_usual = self.beam == DEFAULT_BEAMS[self.mode] or counts != (self.mode != "fast-beam")
            beam = 0 if is_usual else self.beam
        if beam == 0:
            beam = max(DEFAULT_BEAMS[mode], nbest) if counts else DEFAULT_BEAMS[mode]
        # Who changes one of the two alone means the other to fit.
        if counts and "nbest" in values and "beam" not in values:
            beam = max(self.beam if beam is None else beam, nbest)
        if counts and "beam" in values and "nbest" not in values:
            values["nbest"] = max(1, min(nbest, beam))
        if beam is not None:
            values["beam"] = beam
        changed = replace(self, **values)
        if idle := idle_options(parameters, changed.mode):
            raise InputError(
                f"request parameter {', '.join(idle)} has no effect with search {changed.mode}; add the parameter "
                f"search={used_by(idle)}, or leave it out"
            )
        return changed


@dataclass(frozen=True, kw_only=True)
class SearchParameters(SearchFields):
    """How a model searches unless a request says otherwise, what it searches with, and how its streams are cut.

    `beam` 0 is the usual one of the search. `lm` and `hotwords` are files, as text; empty is none. Giving one of the
    endpoint rules switches endpoints on, and those not given then have the values of `EndpointRules`.
    """

    search: SearchMode = option(DEFAULT_MODE, MODE_HELP)
    lm: str = option(
        "",
        "An n-gram language model, ARPA (also gzipped) or KenLM binary; it is copied.",
        values="a file",
        metavar="FILE",
        modes=BEAM_MODES,
    )
    lm_unit: LmUnit = option("auto", "What its words are: word, token, or auto.", modes=BEAM_MODES)
    hotwords: str = option(
        "",
        "Phrases to favour: a yaml map, or lines 'phrase weight'; it is copied.",
        values="a file, `*.yaml` and `*.yml` with a map as WeNet has it",
        metavar="FILE",
        flags=("--hotwords-file",),
        modes=HOTWORD_MODES,
    )
    chunk_size: int | None = option(None, "Streaming: new frames in a step; the bundle's if not given.")
    left_chunks: int | None = option(None, "Streaming: past chunks a step sees, -1 for all; the bundle's if not given.")
    endpoint_silence_s: float | None = option(
        None, f"Streaming: end a segment without text after so long ({RULES.silence_s:g})."
    )
    endpoint_silence_after_speech_s: float | None = option(
        None, f"Streaming: end a segment after so long a silence ({RULES.silence_after_speech_s:g})."
    )
    endpoint_max_segment_s: float | None = option(
        None, f"Streaming: end a segment at this length ({RULES.max_segment_s:g})."
    )

    def __post_init__(self) -> None:
        self.options()
        self.endpoint_rules()
        if self.lm_unit not in get_args(LmUnit):
            raise ValueError(f"lm_unit must be one of {', '.join(get_args(LmUnit))}, got {self.lm_unit!r}")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise ValueError(f"chunk_size must be at least 1 frame, got {self.chunk_size}")
        if self.left_chunks is not None and self.left_chunks < -1:
            raise ValueError(f"left_chunks must be 0 or more, or -1 for all, got {self.left_chunks}")

    def options(self, hotwords: tuple[tuple[str, float], ...] = ()) -> SearchOptions:
        """The defaults of requests.

        Args:
            hotwords: what the file holds.

        Raises:
            ValueError: a value is unfit.
        """
        values = {each.name: getattr(self, each.name) for each in fields(SearchFields)}
        try:
            return SearchOptions(**values, mode=self.search, hotwords=hotwords)
        except InputError as error:
            raise ValueError(str(error)) from error

    def endpoint_rules(self) -> EndpointRules | None:
        """When segments of streams end; None if they do not."""
        given = {
            each.name: value
            for each in fields(EndpointRules)
            if (value := getattr(self, f"endpoint_{each.name}")) is not None
        }
        return EndpointRules(**given) if given else None

    def chunking(self) -> dict[str, int]:
        """Those of `chunk_size` and `left_chunks` that are not left to the bundle."""
        sizes = {"chunk_size": self.chunk_size, "left_chunks": self.left_chunks}
        return {name: size for name, size in sizes.items() if size is not None}


def _search_first(options: type) -> dict[str, Any]:
    found = described(options)
    return {name: found[name] for name in sorted(found, key=lambda name: name != "search")}


PARAMETERS = _search_first(SearchOptions)  # of a request, by the name on the wire
MODEL_PARAMETERS = _search_first(SearchParameters)  # of a served model, by the name in its configuration
USED_BY: Mapping[str, tuple[str, ...]] = {  # options that only some modes look at
    name: each.modes for name, each in (MODEL_PARAMETERS | PARAMETERS).items() if each.modes
}


def foreign_options(options: SearchFields, kind: str) -> list[str]:
    """Names of the options that models of this kind do not look at and that are not as by default."""
    return [
        name
        for name, each in described(SearchFields).items()
        if each.kinds and kind not in each.kinds and getattr(options, name) != each.default
    ]


def idle_options(names: Iterable[str], mode: str) -> list[str]:
    """Those of some options that have no effect in this mode, in alphabetic order."""
    return sorted(name for name in names if mode not in USED_BY.get(name, get_args(SearchMode)))


def used_by(names: Sequence[str]) -> str:
    """The modes that look at the first of some options and at as many others as possible, as a list in words."""
    modes = list(USED_BY[names[0]])
    for name in names[1:]:
        modes = [mode for mode in modes if mode in USED_BY[name]] or modes
    return " or ".join(filter(None, (", ".join(modes[:-1]), modes[-1])))
