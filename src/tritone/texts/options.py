"""Which of a recogniser's words are written in another way; commands, requests and protocols take the same options."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from tritone.errors import InputError
from tritone.options.fields import described, option, parse_parameters

Rules = Literal["own", "nemo"]
Profanity = Literal["keep", "mask", "remove"]

LANGUAGES = ("en", "de", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh")  # in which numbers are written
MAX_WORDS = 1000
MAX_CHARACTERS = 20_000


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How texts are written; the default leaves them as the model wrote them. `punctuate` is for English alone."""

    numbers: bool = option(
        False,
        "Write spoken numbers, dates, times and amounts in digits, in ten languages, and spelled English words joined.",
    )
    number_rules: Rules = option("own", "Whose rules write numbers: ours, or those of nemo-text-processing.")
    text_language: str = option(
        "",
        "Code of the language that numbers are spoken in, of models that do not report one; English if not given.",
        metavar="CODE",
        values=f"one of {', '.join(LANGUAGES)}, or empty",
    )
    punctuate: bool = option(False, "Write sentences with capitals and punctuation, by pauses and their first words.")
    capitals: str = option("", "Names as they are written, with commas: Anna,McDonald's,IBM.", metavar="WORDS")
    profanity: Profanity = option("keep", "What becomes of profane words: kept, masked as in s***, or removed.")
    profane_words: str = option(
        "", "Further words to treat as profane, with commas; case does not matter.", metavar="WORDS"
    )

    def __post_init__(self) -> None:
        for name, known in (("number_rules", get_args(Rules)), ("profanity", get_args(Profanity))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.text_language not in ("", *LANGUAGES):
            raise InputError(
                f"text_language must be one of {', '.join(LANGUAGES)}, or empty, got {self.text_language[:80]!r}"
            )
        for name in ("capitals", "profane_words"):
            text = getattr(self, name)
            if len(text) > MAX_CHARACTERS or text.count(",") >= MAX_WORDS:
                raise InputError(f"{name} may have {MAX_WORDS} words and {MAX_CHARACTERS} characters at most")
        if self.number_rules != "own" and not self.numbers:
            raise InputError(f"number_rules is {self.number_rules}, but numbers are not asked for; set numbers too")

    @property
    def changes_nothing(self) -> bool:
        """Whether texts stay as they are."""
        return not (self.numbers or self.punctuate or self.capitals or self.profanity != "keep")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options, as requests write them."""
        return tuple(described(TextOptions))

    def changed(self, parameters: Mapping[str, Any]) -> "TextOptions":
        """These options with some of them replaced, as a request asks for; switches may be text.

        Raises:
            InputError: a name is unknown, or a value unfit; says which and what would do.
        """
        given = {name: value for name, value in parameters.items() if name not in TEXTUAL}
        values = parse_parameters(described(TextOptions), given)
        for name in TEXTUAL & parameters.keys():
            if not isinstance(parameters[name], str):
                raise InputError(f"{name} must be text, got {str(parameters[name])[:80]!r}")
            values[name] = parameters[name]
        return replace(self, **values)


TEXTUAL = frozenset({"capitals", "profane_words", "text_language"})


def listed(words: str) -> list[str]:
    """The words of an option that has several, separated by commas."""
    return [word.strip() for word in words.split(",") if word.strip()]
