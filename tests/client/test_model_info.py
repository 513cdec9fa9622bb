"""What a client reads of a model's configuration, of repositories of today and of those that say less."""

import json
from typing import Any

import pytest

from tritone.client import ModelInfo
from tritone.errors import OperatorError

WAV = [{"name": "WAV", "data_type": "TYPE_FP32", "dims": ["-1"]}, {"name": "WAV_LENS", "data_type": "TYPE_INT32"}]


def config(outputs: dict[str, list[int]], *, inputs: Any = WAV, streams: bool = False, **parameters: str) -> Any:
    return {
        "name": "m",
        "max_batch_size": 8,
        "input": inputs,
        "output": [{"name": name, "data_type": "TYPE_FP32", "dims": dims} for name, dims in outputs.items()],
        "parameters": {name: {"string_value": text} for name, text in {"sample_rate": "8000", **parameters}.items()},
        **({"sequence_batching": {}} if streams else {}),
    }


TEXT = {"TRANSCRIPTS": [1], "DETAILS": [1]}
SPEAK = [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}]
CASES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    # what both have, the parameters of before, what today's say
    "offline": (
        {"outputs": TEXT, "search": "greedy"},
        {"searches": "greedy,prefix-beam", "languages": "de,en"},
        {"answers": "transcripts", "searches": ["greedy", "prefix-beam"], "languages": ["de", "en"]},
    ),
    "streaming": (
        {"outputs": TEXT, "streams": True, "search": "prefix-beam"},
        {"searches": "greedy"},
        {"answers": "transcripts", "searches": ["greedy"]},
    ),
    "whisper": (
        {"outputs": TEXT},
        {"decoding": "{}", "languages": "de", "abilities": "transcribe,prompt,detect"},
        {
            "answers": "transcripts",
            "decoding": {},
            "languages": ["de"],
            "abilities": ["transcribe", "prompt", "detect"],
        },
    ),
    "the first Whisper": (
        {"outputs": TEXT},
        {"decoding": "{}"},
        {"answers": "transcripts", "decoding": {}, "abilities": ["prompt", "word_times", "detect", "translate"]},
    ),
    "embedding": ({"outputs": {"EMBEDDINGS": [16]}}, {}, {"answers": "embeddings"}),
    "activity-streaming": (
        {"outputs": {"SEGMENTS": [1], "PROBABILITIES": [-1]}, "streams": True},
        {},
        {"answers": "activity"},
    ),
    "diarization": ({"outputs": {"SEGMENTS": [1], "PROBABILITIES": [-1, 4]}}, {}, {"answers": "diarization"}),
    "segmentation": (
        {"outputs": {"PROBABILITIES": [-1, 3]}},
        {"windows": "160000,270,991"},
        {"answers": "segmentation", "windows": [160000, 270, 991]},
    ),
    "synthesis": (
        {"outputs": {"PCM": [-1], "SENTENCE": [1]}, "inputs": SPEAK},
        {"speakers": "ann,bob", "languages": "en"},
        {"answers": "synthesis", "speakers": ["ann", "bob"], "languages": ["en"]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_repository_says_is_what_was_guessed_before(case: str) -> None:
    common, before, today = CASES[case]
    found = ModelInfo.from_config(config(**common, kind="whatever", served=json.dumps(today)))
    assert found == ModelInfo.from_config(config(**common, **before))
    assert found.kind == {"whisper": "offline", "the first Whisper": "offline"}.get(case, case)
    assert (found.decodes, found.searches) == ("decoding" in today, tuple(today.get("searches", ())))


def test_a_kind_that_the_client_does_not_know_answers_what_it_says() -> None:
    """Nothing is guessed of its tensors."""
    loud = config({"LOUDNESS": [1], "SEGMENTS": [1]}, kind="loudness", served='{"answers": "other"}')
    assert ModelInfo.from_config(loud).kind == "other"


def test_what_is_no_json_is_named() -> None:
    with pytest.raises(OperatorError, match=r"model 'm': parameter served is no JSON \(.*Build the repository again"):
        ModelInfo.from_config(config(TEXT, served="{answers"))
