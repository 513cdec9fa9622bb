"""Documents of all formats, read back by readers that do not share code with what wrote them."""

import io
import json
from dataclasses import replace
from functools import reduce
from typing import Any

import av
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from format_readers import Shown, read_srt, read_textgrid, read_vtt
from tritone.activity import SpeechActivity, SpeechSegment
from tritone.errors import InputError
from tritone.formats import FORMATS, CueOptions, Turn, cues_of, formats_of, read_rttm, write
from tritone.formats.breaks import units
from tritone.formats.cues import width
from tritone.transcript import Segment, Span, Transcript, joined


def said(text: str, *, start_s: float = 0.0, word_s: float = 0.3, gap_s: float = 0.1, speaker: str = "") -> list[Span]:
    """The words of a text, evenly spoken."""
    spans = []
    for word in text.split():
        spans.append(Span(word, round(start_s, 3), round(start_s + word_s, 3), 0.9, speaker))
        start_s += word_s + gap_s
    return spans


def transcript(*words: Span, audio_s: float = 0.0, segments: tuple[Segment, ...] = ()) -> Transcript:
    text = reduce(joined, (word.text for word in words), "")
    end_s = max([audio_s, *(word.end_s for word in words)])
    return Transcript(text=text, words=words, audio_s=end_s, segments=segments)


TWO = transcript(*said("hello there", speaker="anna"), *said("good day", start_s=1.0, speaker="ben"))
SILENCE = Transcript(text="", audio_s=2.0)
ACTIVITY = SpeechActivity((SpeechSegment(0.45, 2.13), SpeechSegment(3.0, 3.5)), audio_s=4.0, frame_s=0.032)
TURNS = [Turn("rec", 1.0, 3.0, "ben"), Turn("rec", 0.0, 2.0, "anna")]


def test_cues_end_at_pauses_and_stay_long_enough_to_be_read() -> None:
    words = [*said("one two"), *said("three", start_s=2.0)]
    assert write("srt", transcript(*words, audio_s=9.0)) == (
        "1\n00:00:00,000 --> 00:00:01,000\none two\n\n2\n00:00:02,000 --> 00:00:03,000\nthree\n\n"
    )


def test_a_long_sentence_breaks_after_its_clauses() -> None:
    text = "When the door opened, nobody was in the room. The lamp was still warm, and so was the tea on the table."
    cues = cues_of(transcript(*said(text)))
    assert [cue.lines for cue in cues] == [
        ("When the door opened,", "nobody was in the room."),
        ("The lamp was still warm,", "and so was the tea on the table."),
    ]


def test_without_punctuation_lines_are_of_like_length_and_end_with_no_short_word() -> None:
    (cue,) = cues_of(transcript(*said("it was the best of times it was the worst of times it was", word_s=0.2)))
    assert cue.lines == ("it was the best of times", "it was the worst of times it was")


def test_chinese_has_no_spaces_and_half_as_many_characters_in_a_line() -> None:
    words = [Span(letter, index * 0.2, index * 0.2 + 0.2, 1.0) for index, letter in enumerate("今天天气很好我们" * 5)]
    cues = cues_of(transcript(*words))
    assert all(" " not in line and len(line) <= 21 for cue in cues for line in cue.lines)
    assert "".join(line for cue in cues for line in cue.lines) == "今天天气很好我们" * 5


UNSPACED = {
    "Chinese": "我们今天早上坐火车去了海边然后在那里吃了午饭下午又走了很长的路才回到家里面休息了一会儿",
    "Japanese": "昨日の朝に友達と一緒に海まで電車で行ってお昼ご飯を食べてからコンピューターのニュースを見ちゃったよ",
    "Thai": "เมื่อวานนี้ฉันไปเที่ยวทะเลกับเพื่อนและเรากินข้าวกลางวันด้วยกันก่อนที่จะเดินกลับบ้านในตอนเย็นมาก",
    "Khmer": "ខ្ញុំបានទៅលេងសមុទ្រជាមួយមិត្តភក្តិរបស់ខ្ញុំកាលពីម្សិលមិញហើយយើងបានញ៉ាំបាយថ្ងៃត្រង់ជាមួយគ្នា",
    "Lao": "ມື້ວານນີ້ຂ້ອຍໄປທ່ຽວທະເລກັບໝູ່ແລະພວກເຮົາກິນເຂົ້າທ່ຽງນຳກັນກ່ອນຈະຍ່າງກັບບ້ານ",
    "mixed": "今天我们用Python3.12写了一个program然后在iPhone上运行花了2024元买了OpenAI的服务",
    "an address": "https://example.org/a/very/long/address/that/nobody/can/read/aloud/and/that/goes/on/and/on/for/ever",
}


@pytest.mark.parametrize("language", UNSPACED)
@pytest.mark.parametrize("letter_s", [0.09, 0.4])
@pytest.mark.parametrize("timed", [False, True], ids=["segment", "letters"])
def test_texts_without_spaces_break_by_length_and_time(language: str, letter_s: float, timed: bool) -> None:
    for count in range(11, 2 * len(UNSPACED[language]), 11):
        text = (UNSPACED[language] * 2)[:count]
        audio_s, starts = count * letter_s, range(count)
        whole = Transcript(text, segments=(Segment(text, 0.0, audio_s),), audio_s=audio_s)
        if timed:
            words = tuple(Span(text[at], at * letter_s, (at + 1) * letter_s, 1.0) for at in starts)
            whole = replace(whole, words=words)
        cues = cues_of(whole)
        assert "".join(line for cue in cues for line in cue.lines) == text
        assert all(width(line) <= 42 for cue in cues for line in cue.lines)
        assert all(min(1000, audio_s * 1000) - 20 <= cue.end_ms - cue.start_ms <= 7000 for cue in cues)
        widths = [sum(map(width, cue.lines)) for cue in cues]
        assert max(widths) <= 3 * min(widths), f"{widths} of {count}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("很好，我（们）用Python3写。”", ["很", "好，", "我", "（们）", "用", "Python3写。”"]),
        ("キャッシュ", ["キャッ", "シュ"]),
        ("เที่ยวและ", ["เที่", "ย", "ว", "และ"]),
        ("ទ្រជា", ["ទ្រ", "ជា"]),
        ("안녕하세요", ["안녕하세요"]),
        ("don't", ["don't"]),
    ],
)
def test_what_belongs_to_a_letter_stays_with_it(text: str, wanted: list[str]) -> None:
    assert units(text) == wanted


def test_words_without_spaces_are_written_as_the_text_has_them() -> None:
    text = "ไปทะเล วันนี้"
    words = [Span(word, index, index + 0.5, 1.0) for index, word in enumerate(["ไป", "ทะ", "เล", "วัน", "นี้"])]
    (cue,) = cues_of(Transcript(text, words=tuple(words), audio_s=5.0))
    assert cue.lines == (text,)
    marked = [Span(word, index, index + 0.5, 1.0) for index, word in enumerate(["天气，", "今天", "好"])]
    assert cues_of(Transcript("天气，今天好", words=tuple(marked), audio_s=3.0))[0].lines == ("天气，今天好",)
    fewer = tuple(said("the a dog", word_s=0.2))  # than the text has
    assert cues_of(Transcript("the cat a dog", words=fewer, audio_s=3.0))[0].lines == ("the a dog",)


def test_speakers_have_cues_of_their_own_with_their_names() -> None:
    assert [cue.lines for cue in read_srt(write("srt", TWO))] == [["anna: hello there"], ["ben: good day"]]
    assert [(cue.voice, cue.lines) for cue in read_vtt(write("vtt", TWO))] == [
        ("anna", ["hello there"]),
        ("ben", ["good day"]),
    ]
    assert write("text", TWO) == "anna: hello there\nben: good day\n"
    assert [(each.speaker, each.start_s, each.end_s) for each in read_rttm(write("rttm", TWO, recording="rec"))] == [
        ("anna", 0.0, 0.7),
        ("ben", 1.0, 1.7),
    ]


def test_what_is_in_another_language_is_marked_where_the_format_can() -> None:
    parts = (Segment("guten tag", 0.0, 1.0, language="de"), Segment("hello there", 1.0, 4.0, language="en"))
    document = Transcript("guten tag hello there", segments=parts, language="en", audio_s=4.0)
    assert "\n<lang de>guten tag</lang>\n" in write("vtt", document)
    assert "<lang en>" not in write("vtt", document)
    assert "lang" not in write("srt", document)
    assert [each["language"] for each in json.loads(write("json", document))["segments"]] == ["de", "en"]
    evil = replace(document, segments=(replace(parts[0], language="<i>\n\n-->"),))
    assert "<lang &lt;i&gt; --&gt;>guten tag</lang>\n" in write("vtt", evil)
    stream = Transcript(
        "so", words=tuple(said("guten so")), language="en", audio_s=2.0,
        ended=(replace(transcript(*said("guten")), language="de", audio_s=0.4),),
    )  # fmt: skip
    assert "<lang de>guten" in write("vtt", stream)


def test_text_that_looks_like_markup_stays_text() -> None:
    evil = "<b>bold</b> & --> 00:00:01,000 {\\an8} &amp; WEBVTT NOTE"
    document = transcript(*said(evil, word_s=0.1, gap_s=0), Span("a\n\n2\x00", 1.2, 1.3, 1.0, ""))
    text = "<b>bold</b> & --> 00:00:01,000 {\\an8} &amp; WEBVTT NOTE a 2"
    assert " ".join(line for cue in read_vtt(write("vtt", document)) for line in cue.lines) == text
    shown = " ".join(line for cue in read_srt(write("srt", document)) for line in cue.lines)
    assert shown == text.replace("-->", "→")
    spoken = transcript(Span("yes", 0, 1, 1.0, "<i> & co"))
    assert read_vtt(write("vtt", spoken))[0].voice == "<i> & co"


def test_segments_of_a_model_without_times_of_words_become_cues() -> None:
    parts = (Segment(" First part here.", 1.0, 3.0), Segment(" Second, " + "long " * 30, 3.0, 12.0))
    document = Transcript(text="x", segments=parts, audio_s=13.0)
    cues = read_vtt(write("vtt", document))
    assert (cues[0].start, cues[0].lines) == (1000, ["First part here."])
    assert cues[1].start == 3000
    assert cues[-1].end <= 13000
    assert max(cue.end - cue.start for cue in cues) <= 7000
    with pytest.raises(InputError, match=r"no times of words.*word_times"):
        write("ctm", document, recording="a")


def test_a_text_alone_is_over_all_of_the_audio() -> None:
    assert read_srt(write("srt", Transcript(text="hello there", audio_s=2.5))) == [Shown(0, 2500, ["hello there"])]


def test_segments_of_a_stream_are_phrases_of_their_own() -> None:
    first, second = said("one two"), said("three four", start_s=0.8)
    ended = (transcript(*first), transcript(*second))
    document = Transcript(text="one two three four", words=(*first, *second), ended=ended, audio_s=2.0)
    assert write("audacity", document) == "0.000000\t0.700000\tone two\n0.800000\t1.500000\tthree four\n"


def test_ctm_has_a_line_for_each_word() -> None:
    document = transcript(Span("five", 0.5, 0.75, 0.93751), Span("5 p.m.", 1.0, 2.0, None))
    assert write("ctm", document, recording="rec") == (
        "rec 1 0.500 0.250 five 0.9375\nrec 1 1.000 1.000 5\nrec 1 1.000 1.000 p.m.\n"
    )
    assert write("ctm", SILENCE, recording="rec") == ""
    with pytest.raises(InputError, match="'two words' cannot be written as CTM"):
        write("ctm", document, recording="two words")


def test_textgrid_has_tiers_of_phrases_words_and_speakers() -> None:
    assert read_textgrid(write("textgrid", TWO)) == {
        "phrases": [(0.0, 0.7, "hello there"), (1.0, 1.7, "good day")],
        "words": [(0.0, 0.3, "hello"), (0.4, 0.7, "there"), (1.0, 1.3, "good"), (1.4, 1.7, "day")],
        "speakers": [(0.0, 0.7, "anna"), (1.0, 1.7, "ben")],
    }
    assert read_textgrid(write("textgrid", transcript(Span('say "hi"', 0.1, 0.1, 1)))) == {
        "phrases": [(0.1, 0.101, 'say "hi"')],
        "words": [(0.1, 0.101, "say"), (0.101, 0.102, '"hi"')],
    }


CALL = transcript(
    Span("how", 0.0, 0.3, 1, "channel1"),
    Span("are", 0.5, 0.8, 1, "channel1"),
    Span("fine", 0.6, 1.2, 1, "channel2"),
    Span("you", 1.0, 1.3, 1, "channel1"),
    Span("good", 1.5, 1.8, 1, "channel2"),
    Span("yes", 1.9, 2.0, 1, "channel1"),
    audio_s=4.0,
)


def test_what_two_speakers_say_at_once_overlaps_in_every_format() -> None:
    assert write("text", CALL) == "channel1: how are you\nchannel2: fine good\nchannel1: yes\n"
    cues = read_vtt(write("vtt", CALL))
    assert [(cue.voice, cue.lines[0], cue.start, cue.end) for cue in cues] == [
        *(("channel1", "how are you", 0, 1300), ("channel2", "fine good", 600, 1800), ("channel1", "yes", 1900, 2900))
    ]
    assert [(cue.start, cue.end) for cue in read_srt(write("srt", CALL))] == [(cue.start, cue.end) for cue in cues]
    turns = [(each.start_s, each.end_s, each.speaker) for each in read_rttm(write("rttm", CALL, recording="call"))]
    assert turns == [(0.0, 1.3, "channel1"), (0.6, 1.8, "channel2"), (1.9, 2.0, "channel1")]
    ctm = [line.split()[1:5] for line in write("ctm", CALL, recording="call").splitlines()]
    assert [(number, word) for number, _, _, word in ctm] == [
        *(("1", "how"), ("1", "are"), ("1", "you"), ("1", "yes"), ("2", "fine"), ("2", "good"))
    ]
    assert read_textgrid(write("textgrid", CALL)) == {
        "channel1 phrases": [(0.0, 1.3, "how are you"), (1.9, 2.0, "yes")],
        "channel1 words": [(0.0, 0.3, "how"), (0.5, 0.8, "are"), (1.0, 1.3, "you"), (1.9, 2.0, "yes")],
        "channel2 phrases": [(0.6, 1.8, "fine good")],
        "channel2 words": [(0.6, 1.2, "fine"), (1.5, 1.8, "good")],
    }


def test_segments_and_turns_are_written_in_the_formats_that_can_hold_them() -> None:
    assert formats_of(SpeechActivity) == formats_of(list) == ["text", "json", "textgrid", "rttm", "audacity"]
    assert write("text", ACTIVITY) == "0.450\t2.130\n3.000\t3.500\n"
    assert json.loads(write("json", ACTIVITY, recording="rec")) == {"recording": "rec"} | ACTIVITY.to_dict()
    assert read_textgrid(write("textgrid", ACTIVITY)) == {"speech": [(0.45, 2.13, "speech"), (3.0, 3.5, "speech")]}
    assert write("audacity", ACTIVITY) == "0.450000\t2.130000\tspeech\n3.000000\t3.500000\tspeech\n"
    turns = read_rttm(write("rttm", ACTIVITY, recording="rec"))
    assert turns == [Turn("rec", 0.45, 2.13, "speech"), Turn("rec", 3.0, 3.5, "speech")]
    assert write("text", TURNS) == "1.000\t3.000\tben\n0.000\t2.000\tanna\n"
    assert read_textgrid(write("textgrid", TURNS)) == {"anna": [(0.0, 2.0, "anna")], "ben": [(1.0, 3.0, "ben")]}
    assert read_rttm(write("rttm", TURNS)) == TURNS
    assert json.loads(write("json", TURNS))["turns"][1] == {"start_s": 0.0, "end_s": 2.0, "speaker": "anna"}
    for name in ("srt", "vtt", "ctm"):
        with pytest.raises(InputError, match=f"{name} is a format of words.*text, json, textgrid, rttm, audacity"):
            write(name, ACTIVITY, recording="rec")
    with pytest.raises(ValueError, match=r"must be one of text, json, srt.*'doc'"):
        write("doc", ACTIVITY)


@pytest.mark.parametrize("name", FORMATS)
def test_silence_can_be_written_in_every_format(name: str) -> None:
    text = write(name, SILENCE, recording="rec")
    assert {"json": "", "textgrid": ""}.get(name, text) in ("", "\n", "WEBVTT\n")
    if name == "textgrid":
        assert read_textgrid(text) == {"phrases": []}
    if name == "json":
        assert json.loads(text)["text"] == ""


@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_ffmpeg_reads_the_subtitles(name: str) -> None:
    """The library behind most players."""
    written = write(name, transcript(*said("one two & three"), *said("four <five> six", start_s=4.0), audio_s=9.0))
    with av.open(io.BytesIO(written.encode()), "r", format={"srt": "srt", "vtt": "webvtt"}[name]) as container:
        packets: list[Any] = [packet for packet in container.demux() if packet.size]
    times = [
        (round(1000 * packet.pts * packet.time_base), round(1000 * packet.duration * packet.time_base))
        for packet in packets
    ]
    cues = {"srt": read_srt, "vtt": read_vtt}[name](written)
    assert times == [(cue.start, cue.end - cue.start) for cue in cues]
    assert b"one two" in bytes(packets[0])


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Words of any letters, whose times may overlap, be of no length or go backwards."""
    now, words = 0.0, []
    for text in draw(st.lists(WORDS, max_size=25)):
        now = max(0.0, now + draw(st.floats(-0.2, 2.0)))
        words.append(Span(text, now, now + draw(st.floats(0, 9)), 0.5, draw(st.sampled_from(["", "a", "b <c> & d"]))))
    return transcript(*words, audio_s=draw(st.floats(0, 100)))


@settings(max_examples=examples(60), deadline=None)
@given(transcripts())
def test_subtitles_of_any_transcript_keep_the_rules(document: Transcript) -> None:
    speakers = {word.speaker for word in document.words}
    texts: dict[str, dict[str, str]] = {}
    for name, read in (("srt", read_srt), ("vtt", read_vtt)):
        cues = read(write(name, document))
        free: dict[str, int] = {}
        for cue in cues:
            assert cue.start < cue.end
            if name == "vtt" or len(speakers) < 2:  # SRT does not name the speaker of every cue
                assert free.get(cue.voice, 0) <= cue.start
            assert len(cue.lines) <= 2
            assert all(0 < width(line) <= 42 for line in cue.lines)
            assert cue.end - cue.start <= 7000
            free[cue.voice] = cue.end
        texts[name] = {
            speaker: "".join("".join(cue.lines) for cue in cues if cue.voice == speaker).replace(" ", "")
            for speaker in speakers
        }
    wanted = {
        speaker: [part for span in document.words if span.speaker == speaker for part in _shown(span.text).split()]
        for speaker in speakers
    }
    assert texts["vtt"] == {speaker: "".join(words) for speaker, words in wanted.items()}
    tiers = read_textgrid(write("textgrid", document))
    found = [label[2] for name, labels in tiers.items() if name.endswith("words") for label in labels]
    assert sorted(found) == sorted(word for words in wanted.values() for word in words)
    ctm = write("ctm", document, recording="rec").splitlines()
    assert [len(line.split(" ")) for line in ctm] == [6] * len(ctm)
    for line in write("audacity", document).splitlines():
        start, end, text = line.split("\t")
        assert 0 <= float(start) <= float(end)
        assert text


def _shown(text: str) -> str:
    return "".join(
        letter for letter in text if letter.isspace() or (ord(letter) >= 32 and not 127 <= ord(letter) < 160)
    )


@pytest.mark.parametrize("options", [{"line_chars": 1}, {"lines": 3}, {"least_s": 8.0}, {"chars_per_s": 0.0}])
def test_limits_of_cues_that_nobody_can_keep_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cues"):
        CueOptions(**options)  # type: ignore[arg-type]
