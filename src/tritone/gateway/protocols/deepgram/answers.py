"""Transcripts as Deepgram words them: channels with alternatives, words, utterances and paragraphs.

Source: the types `ListenV1Response` and `ListenV1Results` of deepgram-sdk 7.17.0.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from tritone.formats.phrases import Phrase, phrases_of
from tritone.gateway.protocols.deepgram.request import ListenRequest
from tritone.gateway.refusal import ErrorAnswer
from tritone.transcript import Alternative, Span, Transcript, joined, mean_confidence, rounded

SENTENCE_END = (".", "?", "!", "\u3002", "\uff1f", "\uff01")
_edges = re.compile(r"^\W+|\W+$")


class Numbers:
    """The numbers of speakers from 0, in the order in which they are met, as Deepgram has them."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def of(self, speaker: str) -> dict[str, int]:
        """The field of a speaker; none where it is not known."""
        return {"speaker": self._found.setdefault(speaker, len(self._found))} if speaker else {}


def alternatives(found: Transcript, wanted: ListenRequest, numbers: Numbers) -> list[dict[str, Any]]:
    """The readings of a transcript, the best one first."""
    readings: Sequence[Transcript | Alternative] = found.alternatives or (found,)
    punctuated = wanted.punctuate or wanted.smart_format
    return [
        {
            "transcript": each.text,
            "confidence": rounded(each.confidence, 6) if each.text else 0.0,  # as Deepgram has it where nothing is said
            "words": [_word(word, numbers, punctuated=punctuated) for word in each.words],
        }
        for each in readings
    ]


def _word(word: Span, numbers: Numbers, *, punctuated: bool) -> dict[str, Any]:
    plain = _edges.sub("", word.text).lower() or word.text
    return {
        "word": plain,
        "start": round(word.start_s, 3),
        "end": round(word.end_s, 3),
        "confidence": rounded(word.confidence, 6),
        **({"punctuated_word": word.text} if punctuated else {}),
        **numbers.of(word.speaker),
    }


def metadata(
    wanted: ListenRequest, *, request_id: str, sha256: str, duration_s: float, model: str, channels: int = 1
) -> dict[str, Any]:
    """What is said of a recording or stream at its end."""
    return {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": sha256,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": round(duration_s, 3),
        "channels": channels,
        "models": [model],
        "model_info": {model: model_info(model)},
        **({"tags": list(wanted.tags)} if wanted.tags else {}),
        **({"extra": dict(wanted.extra)} if wanted.extra else {}),
    }


def model_info(model: str) -> dict[str, str]:
    return {"name": model, "version": "", "arch": ""}


def whole(
    found: Sequence[Transcript], wanted: ListenRequest, *, request_id: str, sha256: str, model: str
) -> dict[str, Any]:
    """The answer about a recording. `found`: of each of its channels, or of all together."""
    numbers = Numbers()
    channels, utterances = [], []
    for place, each in enumerate(found):
        readings = alternatives(each, wanted, numbers)
        if each.words and (wanted.paragraphs or wanted.smart_format):
            readings[0]["paragraphs"] = _paragraphs(each, wanted, numbers)
        language: dict[str, Any] = {}
        if wanted.detect_language and each.language:
            sure = {"language_confidence": dict(each.languages)[each.language]} if each.languages else {}
            language = {"detected_language": each.language, **sure}
        channels.append({"alternatives": readings, **language})
        utterances += [_utterance(phrase, place, numbers) for phrase in phrases_of(each, pause_s=wanted.utt_split_s)]
    results: dict[str, Any] = {"channels": channels}
    if wanted.utterances:
        utterances.sort(key=lambda each: each["start"])
        results["utterances"] = [{"id": f"{request_id}-{index}", **each} for index, each in enumerate(utterances)]
    duration_s = max(each.audio_s for each in found)
    about = metadata(
        wanted, request_id=request_id, sha256=sha256, duration_s=duration_s, model=model, channels=len(found)
    )
    if any(each.text and not each.words for each in found):
        message = f"model '{model}' gives no times of words"
        about["warnings"] = [{"parameter": "model", "type": "unsupported_model", "message": message}]
    return {"metadata": about, "results": results}


def _utterance(phrase: Phrase, channel: int, numbers: Numbers) -> dict[str, Any]:
    return {
        "start": round(phrase.start_s, 3),
        "end": round(phrase.end_s, 3),
        "confidence": rounded(mean_confidence(phrase.words), 6),
        "channel": channel,
        "transcript": phrase.text,
        "words": [_word(word, numbers, punctuated=True) for word in phrase.words],
        **numbers.of(phrase.speaker),
    }


def _paragraphs(found: Transcript, wanted: ListenRequest, numbers: Numbers) -> dict[str, Any]:
    """Its phrases, each divided into sentences at its marks."""
    paragraphs, texts = [], []
    for phrase in phrases_of(found, pause_s=wanted.utt_split_s):
        ended = 0
        marks = []
        for word in phrase.words:
            marks.append(ended)
            ended += word.text.endswith(SENTENCE_END)
        sentences = [
            [word for word, _ in group]
            for _, group in groupby(zip(phrase.words, marks, strict=True), key=lambda pair: pair[1])
        ]
        texts.append(phrase.text)
        paragraphs.append(
            {
                "sentences": [
                    {"text": _text(words), "start": round(words[0].start_s, 3), "end": round(words[-1].end_s, 3)}
                    for words in sentences
                ],
                "num_words": len(phrase.words),
                "start": round(phrase.start_s, 3),
                "end": round(phrase.end_s, 3),
                **numbers.of(phrase.speaker),
            }
        )
    return {"transcript": "\n\n".join(texts), "paragraphs": paragraphs}


def _text(words: Sequence[Span]) -> str:
    text = ""
    for word in words:
        text = joined(text, word.text)
    return text


def error_body(answer: ErrorAnswer, request_id: str) -> Mapping[str, Any]:
    """The JSON of an error by HTTP."""
    return {"err_code": answer.code.upper(), "err_msg": answer.message, "request_id": request_id}
