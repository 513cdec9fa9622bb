"""Texts as sentences, clauses, phonemes and speech."""

import shutil
import threading
import time
from itertools import accumulate, cycle, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tritone
from effort import examples
from toy_voice import SAMPLE_RATE, require_espeak, sound, write_espeak, write_toy_voice
from tritone.errors import InputError, OperatorError
from tritone.families.piper.export import export_piper
from tritone.kinds.synthesis import pipeline as pipeline_module
from tritone.kinds.synthesis.phonemes import Espeak
from tritone.kinds.synthesis.pipeline import PAUSE_S
from tritone.texts.sentences import MAX_CLAUSE, MAX_SENTENCE, ComingText, clauses, cleaned, sentences

PAUSE = np.zeros(round(PAUSE_S * SAMPLE_RATE), np.float32)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{write_espeak(tmp_path / 'bin')}:/usr/bin:/bin")


@pytest.fixture
def voice(tmp_path: Path, stand_in: None) -> tritone.Voice:
    report = export_piper(voice=write_toy_voice(tmp_path / "piper"), output=tmp_path / "ann")
    return tritone.load(report.bundle.path, threads=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello. How are you?", ["Hello.", "How are you?"]),
        ("Dr. Smith left. He was late!", ["Dr. Smith left.", "He was late!"]),
        ("J. R. R. Tolkien wrote it. I read it.", ["J. R. R. Tolkien wrote it.", "I read it."]),
        ("The U.S. Army came at 3.5 per cent. Then it left.", ["The U.S. Army came at 3.5 per cent.", "Then it left."]),
        ("It ends etc. and goes on. Fine.", ["It ends etc. and goes on.", "Fine."]),
        ('"Go!" he said. "Why?" "So."', ['"Go!"', "he said.", '"Why?"', '"So."']),
        ("One\n\nTwo", ["One", "Two"]),
        ("One line\nand its next.", ["One line and its next."]),
        ("Things:\n- apples\n- pears", ["Things: - apples", "- pears"]),
        ("你好。你好吗？很好", ["你好。", "你好吗？", "很好"]),
        ("Am 3. Mai war es kalt. Sehr.", ["Am 3. Mai war es kalt.", "Sehr."]),
        ("...", []),
        ("  \n\t ", []),
        ("Wait... what?!", ["Wait...", "what?!"]),
        # numbers
        ("The answer is 42. Next question please.", ["The answer is 42.", "Next question please."]),
        ("I am 25. She is 30.", ["I am 25.", "She is 30."]),
        ("Im 19. Jahrhundert war es so.", ["Im 19. Jahrhundert war es so."]),
        ("Am 3. 5. 2024 kam er.", ["Am 3. 5. 2024 kam er."]),
        ("1. First do this. 2. Then that.", ["1. First do this.", "2. Then that."]),
        ("Steps: 1. Wash. 2. Dry.", ["Steps: 1. Wash.", "2. Dry."]),
        ("How many? 12. That is all.", ["How many?", "12.", "That is all."]),
        ("See p. 5, No. 7 and Fig. 3 of it.", ["See p. 5, No. 7 and Fig. 3 of it."]),
        ("He said no. Then left.", ["He said no.", "Then left."]),
        # abbreviations and initials
        ("She works at Acme Inc. He left.", ["She works at Acme Inc.", "He left."]),
        ("Pens, paper, etc. Bananas too.", ["Pens, paper, etc.", "Bananas too."]),
        ("We met at 5 p.m. Bring it.", ["We met at 5 p.m.", "Bring it."]),
        ("He lives in the U.S. It's big.", ["He lives in the U.S.", "It's big."]),
        ("Plan B. It failed, e.g. This one.", ["Plan B.", "It failed, e.g. This one."]),
        ("Prof. Dr. The vs. The other.", ["Prof. Dr. The vs. The other."]),
        ("George W. Bush came by approx. ten.", ["George W. Bush came by approx. ten."]),
        ("i came. i saw, approx. ten.", ["i came.", "i saw, approx. ten."]),
        # what may stand behind a mark
        ("„Geh.“ Dann »Nein.« Er ging.", ["„Geh.“", "Dann »Nein.«", "Er ging."]),
        ("(He left.) Then **she.** It was so.[1] Yes.", ["(He left.)", "Then **she.**", "It was so.[1]", "Yes."]),
        ("Great!😀 I love it 🎉🎉 See you.", ["Great!😀", "I love it 🎉🎉", "See you."]),
        ("I ❤️ London 😀 and it.", ["I ❤️ London 😀 and it."]),
        (
            "See www.example.com. Or https://x.org/a?b=c. It.",
            ["See www.example.com.", "Or https://x.org/a?b=c.", "It."],
        ),
        ("Really⁉ What‽ No.", ["Really⁉", "What‽", "No."]),
        ("「行こう。」彼は。یہ ہے۔ وہ։ ነው። ok", ["「行こう。」", "彼は。", "یہ ہے۔", "وہ։", "ነው።", "ok"]),
        # lines
        ("We need:\nMilk\nEggs\nBread", ["We need: Milk", "Eggs", "Bread"]),
        ("milk\neggs\n\n\nBuy them.", ["milk", "eggs", "Buy them."]),
        ("a) milk\nb) eggs\n1. First\n2) Second\n• Third", ["a) milk", "b) eggs", "1. First", "2) Second", "• Third"]),
        ("We met Dr.\nSmith on the way to\nLondon, and\nhe was late.\nthen we left.", None),
        ("He is 25\nShe is 30\r\n“Really”\n你好\n再见", ["He is 25", "She is 30", "“Really”", "你好", "再见"]),
        ("Done.\nand then\u2028we left", ["Done.", "and then", "we left"]),
    ],
)
def test_sentences(text: str, expected: list[str] | None) -> None:
    wrapped = ["We met Dr. Smith on the way to London, and he was late.", "then we left."]
    assert list(sentences(cleaned(text))) == (wrapped if expected is None else expected)


ENDINGS = [
    "42.",
    "5!",
    "etc.",
    "Inc.",
    "U.S.",
    "p.m.",
    "so.”",
    "so.)",
    "so…",
    "?!",
    "so.[2]",
    "🎉",
    "x.org.",
    "so.»",
    "so。",
]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_whatever_a_sentence_ends_in_the_next_one_is_apart_and_in_parts_too(ends: list[str], cuts: list[int]) -> None:
    wanted = [f"They saw it at {end}" for end in ends]
    text = " ".join(wanted)
    assert list(sentences(text)) == wanted
    coming, places = ComingText(), [*accumulate(islice(cycle(cuts), len(text)), initial=0)]
    found = [each for one, two in pairwise(places) if one < len(text) for each in coming.add(text[one:two])]
    assert found + coming.end() == wanted


@settings(max_examples=examples(200), deadline=None)
@given(st.text(alphabet=' \n.!?,:;-aBc15()"“”…😀。é#', max_size=120))
def test_sentences_have_every_character_of_a_text_that_can_be_spoken(text: str) -> None:
    made = "".join("".join(sentences(text)).split())
    assert [each for each in made if each.isalnum()] == [each for each in text if each.isalnum()]


@pytest.mark.parametrize("part", ["a. ", ".", "!)", "1. ", "a\n", "x,\n", "am 3. Mai ", ".[1", "😀", "\n"])
def test_hostile_texts_are_cut_in_their_time(part: str) -> None:
    text = (part * 16384)[:16384] + "x"  # without an end: ".....x" took half a minute
    began = time.process_time()
    assert sum(len(list(clauses(each))) for each in sentences(cleaned(text))) > 0
    assert time.process_time() - began < 10


def test_text_that_comes_in_parts_keeps_its_lines() -> None:
    coming = ComingText()
    assert coming.add("Buy! milk\neg") == ["Buy!"]
    assert coming.add("gs") == []
    assert coming.add("\n-") == ["milk"]
    assert coming.add(" Tea") == ["eggs"]
    assert coming.end() == ["- Tea"]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Well, did he?", [("Well", ","), ("did he", "?")]),
        ("Dr. Smith: 1,000 pears; 3.5 kg!", [("Dr. Smith", ":"), ("1,000 pears", ";"), ("3.5 kg", "!")]),
        ("Pears - really", [("Pears", ","), ("really", "")]),
        ("A well-known (old) word.", [("A well-known (old) word", ".")]),
        ("What?!", [("What", "?")]),
        ("你好，世界。", [("你好", ","), ("世界", ".")]),
        ('"Yes," he said.', [('"Yes', ","), ("he said", ".")]),
    ],
)
def test_clauses_and_the_marks_behind_them(sentence: str, expected: list[tuple[str, str]]) -> None:
    assert list(clauses(sentence)) == expected


def test_text_of_any_length_is_cut_and_nothing_is_lost() -> None:
    words = "word " * 2000
    found = list(sentences(cleaned(words)))
    assert max(map(len, found)) <= MAX_SENTENCE
    assert " ".join(found).split() == words.split()
    block = "x" * 5000
    assert "".join(sentences(block)) == block
    assert max(len(text) for text, _ in clauses("y" * 250 + ", z")) <= MAX_CLAUSE


def test_what_nobody_can_read_aloud_is_left_out() -> None:
    assert list(sentences(cleaned("a\x00b\ud800c\ue000\x1b[31md"))) == ["a b c [31md"]


def test_speech_of_a_text_is_that_of_its_sentences_with_pauses(voice: tritone.Voice) -> None:
    parts = list(voice.speak_iter("Ab, cd. Ef!"))
    assert [each.text for each in parts] == ["Ab, cd.", "Ef!"]
    np.testing.assert_array_equal(parts[0].waveform, np.concatenate([sound("ab, cd."), PAUSE]))
    np.testing.assert_array_equal(parts[1].waveform, sound("ef!"))
    whole = voice.speak("Ab, cd. Ef!")
    assert whole.text == "Ab, cd. Ef!"
    np.testing.assert_array_equal(whole.waveform, np.concatenate([each.waveform for each in parts]))
    assert [each.text for each in voice.run_iter(["a", "b"])] == ["a", "b"]


@pytest.mark.parametrize("speed", [1.0, 0.5])
def test_a_sentence_of_too_many_phonemes_is_spoken_in_parts_without_pauses(
    voice: tritone.Voice, monkeypatch: pytest.MonkeyPatch, speed: float
) -> None:
    """Figures are longer in speech than in writing; the memory of a call grows with its phonemes."""
    monkeypatch.setattr(pipeline_module, "MAX_PHONEMES", round(8 / speed))
    parts = list(voice.speak_iter("abc def ghi jkl. Abcdefghijkl!", speed=speed))
    assert [part.text for part in parts] == ["abc def", "ghi jkl.", "Abcdefg", "hijkl!"]
    said = [sound(part.text.lower(), slower=1 / speed) for part in parts]
    pause = np.zeros(round(PAUSE_S / speed * SAMPLE_RATE), np.float32)
    wanted = [said[0], np.concatenate([said[1], pause]), *said[2:]]
    for part, waveform in zip(parts, wanted, strict=True):
        np.testing.assert_array_equal(part.waveform, waveform)


@pytest.mark.usefixtures("stand_in")
def test_speed_and_speaker_are_asked_for(tmp_path: Path) -> None:
    report = export_piper(voice=write_toy_voice(tmp_path / "piper", ["ann", "ben"]), output=tmp_path / "two")
    voice = tritone.load(report.bundle.path, speaker="ben")
    assert voice.speakers == ("ann", "ben")
    np.testing.assert_array_equal(voice.speak("ab").waveform, sound("ab", speaker=1))
    np.testing.assert_array_equal(voice.speak("ab", speaker="ann", speed=0.5).waveform, sound("ab", slower=2))
    with pytest.raises(InputError, match="no speaker 'carl'; the voice has ann, ben"):
        voice.speak("ab", speaker="carl")


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("", {}, "nothing to speak"),
        ("\x00 ... \x07", {}, "nothing to speak"),
        ("a" * 16385, {}, "16,385 characters; up to 16,384"),
        ("a", {"speed": 0.2}, "speed must be 0.25 to 4, got 0.2"),
        ("a", {"speaker": "ann"}, "one speaker, who has no name"),
        ("a", {"pitch": 2}, "unknown request parameter 'pitch'; known are speed, speaker"),
    ],
)
def test_what_cannot_be_spoken_is_refused(
    voice: tritone.Voice, text: str, options: dict[str, object], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        voice.speak(text, **options)
    with pytest.raises(InputError, match=expected):
        voice.speak_iter(text, **options)


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_hangs_is_killed_and_others_are_not_disturbed() -> None:
    espeak = Espeak("en-us", timeout_s=0.5)
    found: list[str] = []
    beside = threading.Thread(target=lambda: found.append(espeak.phonemes("abc")))
    begun = time.monotonic()
    beside.start()
    with pytest.raises(InputError, match=r"took more than 0\.5 s for 'it hangs.*was killed"):
        espeak.phonemes("it hangs")
    assert time.monotonic() - begun < 30
    beside.join()
    assert found == ["abc"]
    with pytest.raises(InputError, match="failed at 'it crashes"):
        espeak.phonemes("it crashes")
    assert espeak.phonemes("Then, this.") == "then, this."


@pytest.mark.usefixtures("stand_in")
def test_clauses_in_which_nothing_is_spoken_do_not_shift_the_others() -> None:
    # The stand-in writes an empty line for a clause of other letters.
    assert Espeak("en-us").phonemes("ab, é, cd.") == "ab, cd."


@pytest.mark.usefixtures("stand_in")
def test_a_text_gives_no_phonemes_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "espeak-ng"
    program.write_text("#!/bin/sh\ncat\n", encoding="utf-8")  # what it gets
    assert "[[" not in Espeak("en-us").phonemes("say [[h@loU]] to me")


@pytest.mark.parametrize(
    "text", ["\x00\x01\x02 a", "مرحبا بالعالم", "你好，世界。", "🙂 ok", "<speak>a</speak>", "a" * 9000]
)
def test_odd_texts_are_spoken(voice: tritone.Voice, text: str) -> None:
    assert voice.speak(text).audio_s > 0


def test_a_program_that_does_not_run_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_espeak(tmp_path / "bin")
    (folder / "espeak-ng").write_bytes(b"\x7fELF, not really")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    with pytest.raises(OperatorError, match=r"cannot be run|does not work"):
        Espeak("en-us")


def test_the_real_program_writes_phonemes_with_marks() -> None:
    require_espeak()
    espeak = Espeak("en-us")
    found = espeak.phonemes("Well, Dr. Smith, is it 3.5?")
    assert found.endswith("?")
    assert found.count(",") == 2
    assert found.startswith("wˈɛl, ")
    assert "θɹˈiː pɔɪnt fˈaɪv" in found
    for odd in (
        "привет мир, hello.",
        "你好，世界。",
        "[[h@loU]] there",
        "x" * 200,
        "🙂, 🙂.",
        "<b>bold</b>",
        "-v fr --help",
    ):
        assert espeak.phonemes(odd)
    assert espeak.phonemes("Hello.") == espeak.phonemes("Hello."), "one text has no effect on the next"
    assert shutil.which("espeak-ng")
