"""Options that describe themselves: what the tables in the documents, the bounds and the wire make of a field."""

from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from tritone.errors import InputError
from tritone.options.fields import Option, plain_type
from tritone.search.options import MODEL_PARAMETERS, PARAMETERS, SearchOptions, SearchParameters, foreign_options

DOCS = Path(__file__).resolve().parents[2] / "docs"


def values(option: Option) -> str:
    """What an option may be, in words."""
    kind = plain_type(option.type)
    if option.values:
        return option.values
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in get_args(kind))
    if kind is bool:
        return "true, false"
    return option.bounds if option.most < float("inf") else {int: "a whole number", float: "seconds"}[kind]


def default(option: Option) -> str:
    return "" if option.default is None else str(option.default).removesuffix(".0").lower()


def table(*rows: tuple[str, ...]) -> str:
    return "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in rows)


def flag(option: Option) -> str:
    name = option.name.replace("_", "-")
    forms = option.flags[0].split("/") if option.flags else [f"--{name}", f"--no-{name}"]
    return ", ".join(f"`{form}`" for form in forms) if option.default is True else f"`{option.flag}`"


TABLES = {
    "serving/client.md": table(
        ("parameter", "value", "meaning"),
        ("---",) * 3,
        *((f"`{each.name}`", values(each), each.help) for each in PARAMETERS.values()),
    ),
    "serving/serving.md": table(
        ("option", "default", "values", "meaning"),
        ("---",) * 4,
        *((flag(each), default(each), values(each), each.help) for each in MODEL_PARAMETERS.values()),
    ),
}


@pytest.mark.parametrize("page", TABLES)
def test_a_document_has_the_table_that_the_fields_make(page: str):
    wanted = TABLES[page]
    assert wanted in (DOCS / page).read_text(encoding="utf-8"), f"docs/{page} should have this table:\n{wanted}"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"reverse_weight": 1.5}, "reverse_weight must be 0 to 1, got 1.5"),
        ({"lm_weight": float("nan")}, "lm_weight must be a number within ±100, got nan"),
        ({"word_bonus": -101}, "word_bonus must be a number within ±100, got -101"),
        ({"temperature": 0.0}, "temperature must be 0.01 to 100, got 0.0"),
        ({"beam": 129}, "beam must be 1 to 128, got 129"),
    ],
)
def test_a_value_beyond_the_bounds_of_its_field_is_refused(given: dict[str, Any], complaint: str):
    with pytest.raises(InputError, match=complaint):
        SearchOptions(**given)
    with pytest.raises(ValueError, match=complaint):
        SearchParameters(**given)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("beam", "2.5", "expected a whole number, got '2.5'"),
        ("beam", True, "expected a number, got True"),
        ("lm_weight", "inf", "expected a finite number"),
        ("timestamps", "yes", "expected true or false, got 'yes'"),
        ("search", "best", "expected one of greedy, prefix-beam"),
        ("hotwords", 5, "expected text like"),
    ],
)
def test_a_request_with_a_value_of_another_type_is_told_what_was_expected(name: str, value: Any, complaint: str):
    with pytest.raises(InputError, match=f"request parameter {name}: {complaint}"):
        SearchOptions().changed({name: value})


def test_an_option_for_another_kind_of_model_is_found_if_it_was_given():
    options = SearchOptions(blank_penalty=2, max_states=9, word_bonus=1)
    assert foreign_options(options, "ctc") == ["blank_penalty", "max_states"]
    assert foreign_options(options, "transducer") == []
    assert foreign_options(SearchParameters(), "ctc") == []


@pytest.mark.parametrize("name", sorted(PARAMETERS))
@pytest.mark.parametrize("mode", ["greedy", "prefix-beam", "modified-beam", "fast-beam", "rescoring"])
def test_any_value_of_an_option_is_taken_or_refused_in_words(name: str, mode: str) -> None:
    for value in (-1, 0, 10**30, -(10**30), 1e308, -1e308, float("nan"), True, "", "x" * 1000, "\x00", None, [], {}):
        with suppress(InputError):  # and nothing else
            SearchOptions().changed({"search": mode} | {name: value})
