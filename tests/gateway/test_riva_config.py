"""Riva's configurations as what is asked of models, and transcripts as Riva's results, without a server."""

from typing import Any

import pytest

from tritone.client.models import ModelInfo
from tritone.errors import InputError
from tritone.gateway.ask import SpeakerOptions, VadOptions
from tritone.gateway.protocols.riva.config import asked
from tritone.gateway.protocols.riva.messages import (
    RecognitionConfig,
    RecognizeRequest,
    StreamingRecognizeResponse,
    read,
)
from tritone.gateway.protocols.riva.results import Results
from tritone.transcript import Alternative, Span, Transcript

GREEDY = ModelInfo(name="ctc", kind="offline", has_search=True)
BEAM = ModelInfo(name="ctc", kind="offline", has_search=True, has_beam=True)
WHISPER = ModelInfo(name="whisper", kind="offline", has_search=True, has_prompt=True, finds_language=True)


def config(**fields: Any) -> Any:
    return read(RecognitionConfig, RecognitionConfig(**fields).SerializeToString())


def test_a_configuration_says_how_texts_and_speakers_are_written() -> None:
    plain = asked(config(), streams=True).ask
    # Riva's own default: spoken numbers become digits.
    assert (plain.texts.numbers, plain.texts.punctuate, plain.texts.profanity) == (True, False, "keep")
    assert (plain.speakers, plain.vad, plain.search, plain.model) == (None, None, {}, "")
    other = config(
        model="big",
        verbatim_transcripts=True,
        enable_automatic_punctuation=True,
        profanity_filter=True,
        diarization_config={"enable_speaker_diarization": True, "max_speaker_count": 3},
        custom_configuration={"capitals": "Anna", "final_model": "bigger", "beam": "20"},
    )
    found = asked(other, streams=True).ask
    assert (found.model, found.final_model, found.search) == ("big", "bigger", {"beam": "20"})
    assert (found.texts.numbers, found.texts.punctuate, found.texts.profanity) == (False, True, "mask")
    assert (found.texts.capitals, found.speakers) == ("Anna", SpeakerOptions(max_speakers=3))


def test_readings_and_languages_are_asked_of_models_that_have_several() -> None:
    wanted = asked(config(max_alternatives=3, language_code="de-DE"), streams=False)
    assert wanted.fitted(GREEDY, "de-DE").search == {}
    assert wanted.fitted(BEAM, "de-DE").search == {"nbest": 3}
    assert wanted.fitted(WHISPER, "de-DE").search == {"language": "de"}
    assert wanted.ask.texts.text_language == "de"
    chosen = asked(config(custom_configuration={"allowed_languages": "de,fr"}, language_code="en-US"), streams=False)
    assert chosen.fitted(WHISPER, "en-US").search == {"allowed_languages": "de,fr"}
    assert wanted.fitted(WHISPER, "multi").search == {}
    canary = ModelInfo(name="canary", kind="offline", decodes=True, languages=("en", "de"))
    assert wanted.fitted(canary, "de-DE").search == {"language": "de"}
    for code, reason in (("sv-SE", "knows no language 'sv-SE'; it knows en, de"), ("multi", "name one of en, de")):
        with pytest.raises(InputError, match=reason):
            wanted.fitted(canary, code)
    by_hand = asked(config(max_alternatives=3, custom_configuration={"search": "modified-beam"}), streams=False)
    assert by_hand.fitted(GREEDY, "").search == {"search": "modified-beam", "nbest": 3}


def test_voice_activity_ends_utterances_where_the_gateway_or_the_client_says_so() -> None:
    assert asked(config(), streams=True, detects=True).ask.vad == VadOptions()
    off = config(custom_configuration={"enable_vad_endpointing": "false"})
    assert asked(off, streams=True, detects=True).ask.vad is None
    keys = {"neural_vad.onset": "0.6", "neural_vad.offset": "0.3", "neural_vad.pad_onset": "0.3"}
    found = asked(config(endpointing_config={"stop_history": 500}, custom_configuration=keys), streams=True).ask.vad
    assert found == VadOptions(
        parameters={"threshold": 0.6, "end_threshold": 0.3, "min_silence_s": 0.5}, prefix_s=pytest.approx(0.3)
    )


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"speech_contexts": [{"phrases": ["anna"], "boost": 3}, {"phrases": ["anna"], "boost": 4}]}, "two boosts"),
        ({"custom_configuration": {"hotwords": "a:1"}, "speech_contexts": [{"phrases": ["b"], "boost": 1}]}, "one of"),
        ({"custom_configuration": {"neural_vad.onset": "0.5", "enable_vad_endpointing": "false"}}, "no effect"),
        ({"custom_configuration": {"apply_partial_itn": "false"}}, "as final ones"),
        (
            {"endpointing_config": {"stop_history": 9}, "custom_configuration": {"neural_vad.min_duration_off": "1"}},
            "one",
        ),
        ({"diarization_config": {"max_speaker_count": -1}}, "max_speaker_count is -1"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], part: str) -> None:
    with pytest.raises(InputError, match=part):
        asked(config(**fields), streams=True)


def test_results_have_speakers_by_number_and_the_words_of_the_best_reading() -> None:
    words = tuple(
        Span(text, place, place + 0.5, 0.9, speaker)
        for place, (text, speaker) in enumerate([("yes", "B"), ("no", "A"), ("well", ""), ("yes", "B")])
    )
    readings = (Alternative("yes no well yes", -1.0), Alternative("yes know well yes", -2.0, confidence=0.5))
    spoken = Transcript("yes no well yes", words=words, confidence=0.9, alternatives=readings, language="en")
    results = Results(words=False, speakers=True)
    first, second = StreamingRecognizeResponse(), StreamingRecognizeResponse()
    results.fill(first.results.add(), spoken, 4.0, is_final=True)
    results.fill(second.results.add(), Transcript("no", words=words[1:2]), 5.0, is_final=True)
    best, other = first.results[0].alternatives
    assert [word.speaker_tag for word in best.words] == [1, 2, 0, 1]
    assert [(word.start_time, word.end_time) for word in best.words[:2]] == [(0, 500), (1000, 1500)]
    assert (best.language_code, other.transcript, len(other.words)) == (["en"], "yes know well yes ", 0)
    assert second.results[0].alternatives[0].words[0].speaker_tag == 2

    partial = StreamingRecognizeResponse()
    Results(words=True, speakers=False).fill(partial.results.add(), spoken, 4.0, is_final=False)
    assert (partial.results[0].alternatives[0].transcript, partial.results[0].audio_processed) == (spoken.text, 4.0)
    assert not partial.results[0].alternatives[0].words


def test_final_texts_of_scripts_without_spaces_end_without_one() -> None:
    for text, written in (("ni hao", "ni hao "), ("你好", "你好"), ("你好。", "你好。"), ("", "")):
        response = StreamingRecognizeResponse()
        Results(words=False, speakers=False).fill(response.results.add(), Transcript(text), 1.0, is_final=True)
        assert response.results[0].alternatives[0].transcript == written


def test_a_message_may_be_large_by_its_audio_alone() -> None:
    large = bytes(3 << 20)
    assert (
        len(read(RecognizeRequest, RecognizeRequest(audio=large, config={"model": "m"}).SerializeToString()).audio)
        > 1e6
    )
    for beside in (
        RecognizeRequest(config={"speech_contexts": [{}] * 600_000}),
        RecognizeRequest(config={"model": "m" * (2 << 20)}),
    ):
        with pytest.raises(InputError, match="1048576 bytes beside its audio"):
            read(RecognizeRequest, beside.SerializeToString())
    with pytest.raises(InputError, match="not a RecognizeRequest"):
        read(RecognizeRequest, RecognizeRequest(audio=large).SerializeToString() + b"\x98")
