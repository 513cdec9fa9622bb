"""What requests to Whisper models may ask for, when a window is tried again, and where windows and segments end."""

import json
import re
from pathlib import Path

import pytest

from tritone.errors import InputError
from tritone.kinds.whisper.part import WhisperPart
from tritone.options.fields import described
from tritone.pipelines.whisper.course import Text, best_of_failed, compression_ratio, is_silent, needs_another
from tritone.pipelines.whisper.options import DecodingOptions, check_options, read_decoding
from tritone.pipelines.whisper.windows import Piece, cut
from tritone.pipelines.whisper.words import grouped, words_of
from tritone.search.whisper.decoding import Written

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "models" / "export-whisper.md"
SPECIAL = WhisperPart(
    window_frames=3000,
    text_context=448,
    layers=1,
    heads=1,
    head_dim=8,
    sot=11,
    eot=10,
    no_timestamps=19,
    timestamp_begin=20,
    languages={"en": 12, "de": 13},
    tasks={"transcribe": 14, "translate": 15},
)


def test_the_table_in_the_document_has_all_options_and_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE))
    told = {
        "language": "detected",
        "suppress": "the model's",
        "prompt": "",
        "task": "`transcribe`",
        "allowed_languages": "",
    }
    for name, each in described(DecodingOptions).items():
        default = each.default
        if isinstance(default, tuple):
            default = ",".join(f"{value:g}" for value in default)
        elif isinstance(default, float):
            default = f"{default:g}"
        assert rows.pop(name).strip() == told.get(name, str(default).lower()), name
    assert not rows


def test_options_are_read_as_requests_and_json_have_them() -> None:
    found = DecodingOptions().changed(
        {"temperature": "0, 0.5", "beam": "5", "word_times": "true", "no_speech_threshold": "none", "suppress": "1,2"}
    )
    assert (found.temperature, found.beam, found.word_times) == ((0.0, 0.5), 5, True)
    assert (found.no_speech_threshold, found.suppress) == (None, (1, 2))
    assert read_decoding('{"temperature": [0, 1], "log_prob_threshold": null}').temperature == (0.0, 1.0)
    assert read_decoding("") == DecodingOptions()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('{"temperature": "0,3"}', "temperature must be 1 to 8 numbers from 0 to 2, got 0, 3"),
        ('{"temperature": []}', "got none"),
        ('{"beam": 0}', "beam must be 1 to 16"),
        ('{"task": "sing"}', "expected one of transcribe, translate, identify"),
        ('{"allowed_languages": "de,' + "x" * 99 + '"}', "allowed_languages: expected codes of languages like de,fr"),
        ('{"allowed_languages": {"de": 1}}', "expected codes of languages like de,fr"),
        ('{"allowed_languages": [1]}', "expected codes of languages like de,fr"),
        ('{"allowed_languages": "' + ",".join(f"x{at}" for at in range(300)) + '"}', "expected codes of languages"),
        ('{"language": "de", "allowed_languages": "en"}', "language is 'de', and allowed_languages en"),
        ('{"language": "de", "task": "identify"}', "language is 'de', and task identify has it detected"),
        ('{"language": "de", "multilingual": true}', "language is 'de', and multilingual has it detected"),
        ('{"suppress": "a"}', "expected ids of tokens like 5,27, got 'a'"),
        ('{"prompt": 3}', "prompt: expected text of at most"),
        ('{"nbest": 3}', "unknown request parameter 'nbest'; known are language, allowed_languages"),
        ("[1]", "expected a JSON object such as"),
        ("{", "expected a JSON object such as"),
    ],
)
def test_what_is_out_of_range_is_an_error_that_says_what_would_do(given: str, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        read_decoding(given)


def test_a_model_says_what_it_does_not_have() -> None:
    for options, told in (
        (DecodingOptions(language="fr"), "language is 'fr'; this model knows en, de"),
        (
            DecodingOptions(allowed_languages=("de", "fr", "xx")),
            "allowed_languages is 'fr, xx'; this model knows en, de",
        ),
        (DecodingOptions(suppress=(99,)), "suppress has id 99; ids of this model are 0 to 29"),
        (DecodingOptions(word_times=True), "does not say which heads follow the audio"),
        (DecodingOptions(prompt="so"), "no token that stands before a prompt"),
        (DecodingOptions(max_tokens=225), "writes at most 224 a window"),
    ):
        with pytest.raises(InputError, match=told):
            check_options(options, SPECIAL, 30)
    english = SPECIAL.model_copy(update={"languages": {}, "tasks": {}})
    with pytest.raises(InputError, match="this model transcribes English alone"):
        check_options(DecodingOptions(task="translate"), english, 30)
    for options in (DecodingOptions(allowed_languages=("en", "de")), DecodingOptions(task="identify")):
        with pytest.raises(InputError, match="this model transcribes English alone"):
            check_options(options, english, 30)
    assert check_options(DecodingOptions(language="en"), english, 30).language == "en"
    assert check_options(DecodingOptions(allowed_languages=("en",)), english, 30).allowed_languages == ("en",)


def test_a_request_has_the_language_detected_whatever_is_usual() -> None:
    usual = DecodingOptions(language="de")
    assert usual.changed({"allowed_languages": " de, en,de,"}).allowed_languages == ("de", "en")
    for asked in ({"allowed_languages": "en"}, {"multilingual": "true"}, {"task": "identify"}):
        assert usual.changed(asked).language == ""
    assert DecodingOptions(multilingual=True).changed({"language": "de"}).multilingual is False


def test_segments_end_in_pairs_of_times_and_the_next_window_begins_at_the_last() -> None:
    time = SPECIAL.timestamp_begin
    whole = [time + 5, 1, 2, time + 30, time + 30, 3, time + 80, time + 80, 4]
    assert cut(whole, 3000, SPECIAL) == (
        [Piece(0.1, 0.6, tuple(whole[:4])), Piece(0.6, 1.6, tuple(whole[4:7]))],
        160,  # what comes after the pair was cut off, and is heard again
    )
    ended = [time, 1, time + 30, time + 30, 3, time + 80]
    assert cut(ended, 2500, SPECIAL)[1] == 2500  # nothing is said after a single time at the end
    assert cut([time, 1, time + 40], 900, SPECIAL) == ([Piece(0.0, 0.8, (time, 1, time + 40))], 900)
    assert cut([1, 2], 900, SPECIAL) == ([Piece(0.0, 9.0, (1, 2))], 900)
    assert cut([], 900, SPECIAL) == ([Piece(0.0, 9.0, ())], 900)


def text(mean: float, silence: float = 0.0, ratio: float = 1.0) -> Text:
    return Text(Written(tokens=(1,), log_prob=2 * mean, no_speech_prob=silence), 0.0, ratio)


def test_a_window_is_tried_again_if_its_text_is_repetitive_or_unlikely_and_no_silence() -> None:
    usual = DecodingOptions()
    assert not needs_another(text(-0.5), usual)
    assert needs_another(text(-1.5), usual)
    assert needs_another(text(-0.5, ratio=3.0), usual)
    assert not needs_another(text(-1.5, silence=0.9), usual)
    assert not needs_another(text(-1.5), DecodingOptions(log_prob_threshold=None))
    assert is_silent(text(-1.5, silence=0.9), usual)
    assert not is_silent(text(-0.5, silence=0.9), usual)
    assert not is_silent(text(-1.5, silence=0.9), DecodingOptions(no_speech_threshold=None))
    assert compression_ratio("la " * 60) > 10 > compression_ratio("a text of many words")


class Letters:
    """Tokens that are one piece each."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int]) -> str:
        return b"".join(self.pieces[id] for id in ids).decode(errors="replace")


def test_words_begin_with_spaces_and_take_the_punctuation_beside_them() -> None:
    bpe = Letters(b" the", b" \xf0\x9f", b"\x99\x82", b" hen", b"s", b",", b' "', b"now", b".")
    tokens = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert grouped(bpe, tokens, spaced=True)[:4] == [(" the", 1), (" 🙂", 2), (" hens", 2), (",", 1)]
    found = words_of(bpe, tokens, [0.5] * 9, [0.1 * step for step in range(10)], "en")
    assert [each.text for each in found] == ["the", "🙂", "hens,", '"now.']
    assert (found[2].start_s, found[2].end_s) == (pytest.approx(0.3), pytest.approx(0.5))


def test_a_word_after_the_end_of_a_sentence_does_not_last_through_the_pause() -> None:
    bpe = Letters(b" a", b" b", b".", b" c")
    found = words_of(bpe, [0, 1, 2, 3], [1.0] * 4, [0.0, 0.2, 0.4, 0.5, 4.0], "en")
    assert found[-1].start_s == pytest.approx(4.0 - 2 * 0.2)


@pytest.mark.parametrize("nearly", ["1e-40", "1e-320", "-0", "9e-7", 0.0, 1e-40])
def test_a_temperature_that_nothing_can_be_divided_by_is_0(nearly: str | float) -> None:
    assert read_decoding(json.dumps({"temperature": nearly})).temperature == (0.0,)
    assert DecodingOptions(temperature=(1e-40, 1e-6)).temperature == (0.0, 1e-6)


def attempt(temperature: float, avg_log_prob: float, ratio: float) -> Text:
    return Text(Written(tokens=(1,), log_prob=2 * avg_log_prob), temperature, ratio)


def test_of_texts_that_are_all_too_bad_the_likeliest_that_varies_is_taken() -> None:
    dull, unlikely, random = attempt(0, -0.3, 9.0), attempt(0.5, -1.2, 1.5), attempt(1, -2.0, 1.2)
    options = DecodingOptions(temperature=(0.0, 0.5, 1.0))
    taken = best_of_failed([dull, unlikely, random], options)
    assert taken.written is unlikely.written, "the likeliest of all repeats itself"
    assert taken.temperature == 1, "which says that it is no context for what comes"
    assert best_of_failed([dull, attempt(1, -0.5, 3.0)], options).written is dull.written, "all repeat themselves"
    assert best_of_failed([dull, unlikely, random], DecodingOptions(fallback="last")) is random
    good = attempt(0.5, -0.9, 1.1)
    assert best_of_failed([attempt(0, -0.3, 9.0), good], options) is good, "one that is good enough is taken as it is"


def test_times_of_words_can_be_asked_for_where_they_may_not_be_had() -> None:
    auto = DecodingOptions().changed({"word_times": "auto"})
    assert auto.word_times == "auto"
    assert check_options(auto, SPECIAL, 30) is auto
    with pytest.raises(InputError, match="cannot tell the times of words"):
        check_options(DecodingOptions(word_times=True), SPECIAL, 30)
    with pytest.raises(InputError, match="word_times"):
        DecodingOptions().changed({"word_times": "maybe"})
