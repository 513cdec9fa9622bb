"""SenseVoice from sherpa-onnx's folder: texts, tags and times as of the package sherpa-onnx, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import sherpa_toys
from families.funasr import upstream
from tritone.errors import ExportError
from tritone.families.known import recognise
from tritone.families.sherpa_onnx.export import export_sherpa_onnx
from tritone.pipelines.offline import OfflinePipeline
from tritone.search.options import SearchOptions

SIZE, TOKENS = 560, ["<unk>", "<s>", "</s>", "▁a", "b", "▁c", "你", "好", "<|zh|>", "<|en|>", "<|HAPPY|>", "<|Speech|>"]
TOKENS += ["<|woitn|>", "<|withitn|>", "<|BGM|>", "<|SAD|>"]
LANGUAGES = {"auto": 0, "zh": 3, "en": 4, "yue": 7, "ja": 11, "ko": 12, "nospeech": 13}
SIGNALS = [signal for signal in upstream.signals() if len(signal) > 4000]


def metadata(**changes: Any) -> dict[str, Any]:
    random = np.random.default_rng(9)
    numbers = {
        "neg_mean": random.normal(-9, 1, SIZE),
        "inv_stddev": random.uniform(0.1, 0.3, SIZE),
    }
    return {
        "lfr_window_size": 7,
        "lfr_window_shift": 6,
        "normalize_samples": 0,
        **{name: ",".join(f"{value:.6f}" for value in values) for name, values in numbers.items()},
        "model_type": "sense_voice_ctc",
        "version": "1",
        "model_author": "iic",
        "maintainer": "k2-fsa",
        "comment": "toy",
        "vocab_size": len(TOKENS),
        **{f"lang_{name}": number for name, number in LANGUAGES.items()},
        "with_itn": 14,
        "without_itn": 15,
        "url": "toy",
    } | changes


def write(folder: Path, **changes: Any) -> Path:
    """Scores of each row of features alone, of the questions those of their numbers; no attention."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(4)
    answers = random.normal(0, 3, (16, len(TOKENS)))
    answers[[0, 3, 7], 8] += 20
    answers[4, 9] += 20
    answers[[2, 1], [11, 10]] += 20  # the event's question comes first, and its answer second
    answers[[14, 15], [13, 12]] += 20
    constants = {
        "w": random.normal(0, 0.2, (SIZE, len(TOKENS))).astype(np.float32),
        "answers": answers.astype(np.float32),
        "fixed": np.array([1, 2]),
        "one": np.array([1]),
        "ones": np.array([0]),
    }
    nodes = [
        ("MatMul", ["x", "w"], ["scores"]),
        ("Cast", ["language"], ["l"], {"to": TensorProto.INT64}),
        ("Cast", ["text_norm"], ["t"], {"to": TensorProto.INT64}),
        ("Unsqueeze", ["l", "one"], ["l1"]),
        ("Unsqueeze", ["t", "one"], ["t1"]),
        ("Mul", ["l1", "ones"], ["zeros"]),
        ("Add", ["zeros", "fixed"], ["f"]),
        ("Concat", ["l1", "f", "t1"], ["asked"], {"axis": 1}),
        ("Gather", ["answers", "asked"], ["said"]),
        ("Concat", ["said", "scores"], ["logits"], {"axis": 1}),
    ]
    row = (TensorProto.INT32, ["N"])
    sherpa_toys.write(
        folder / "model.onnx",
        nodes,
        {
            "x": (TensorProto.FLOAT, ["N", "T", SIZE]),
            "x_length": row,
            "language": row,
            "text_norm": row,
        },
        {"logits": (TensorProto.FLOAT, ["N", "L", len(TOKENS)])},
        constants,
        metadata(**changes),
    )
    lines = (f"{token} {id}\n" for id, token in enumerate(TOKENS))
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("language", "use_itn"), [("auto", False), ("en", True)])
def test_texts_tags_and_times_are_those_of_sherpa_onnx(tmp_path: Path, language: str, use_itn: bool) -> None:
    import sherpa_onnx

    folder = write(tmp_path / "toy")
    assert recognise(folder).family == "sherpa-onnx"
    report = export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    theirs = sherpa_onnx.OfflineRecognizer.from_sense_voice(
        model=str(folder / "model.onnx"),
        tokens=str(folder / "tokens.txt"),
        language=language,
        use_itn=use_itn,
        num_threads=1,
    )
    found = OfflinePipeline(report.bundle).recognize(SIGNALS, [SearchOptions(language=language, use_itn=use_itn)] * 6)
    for signal, ours in zip(SIGNALS, found, strict=True):
        stream = theirs.create_stream()
        stream.accept_waveform(16000, signal)
        theirs.decode_stream(stream)
        result = stream.result
        marks = {token for token in result.tokens if token.startswith("<|")}
        expected = result.text
        for mark in marks:  # sherpa-onnx writes those within the text
            expected = expected.replace(mark, "")
        assert "".join(ours.text.split()) == "".join(expected.split())
        assert dict(ours.tags) == {
            "language": result.lang[2:-2],
            "emotion": result.emotion[2:-2],
            "event": result.event[2:-2],
            "itn": "withitn" if use_itn else "woitn",
        }
        assert ours.language == ("en" if language == "en" else "zh")
        assert len(ours.tokens) == len(result.timestamps)
        np.testing.assert_allclose([token.start_s for token in ours.tokens], result.timestamps, atol=1e-3)
    assert sum(len(each.tokens) for each in found) > 12


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"neg_mean": "1,x"}, "numbers with commas as neg_mean"),
        ({"lfr_window_shift": 9}, "do not fit together"),
        ({"inv_stddev": "1,2"}, "do not fit together"),
        ({"vocab_size": 15}, "has 16 tokens, but"),
        ({"lang_auto": "x"}, "lang_auto = 'x'; expected decimal numbers"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ExportError, match=said):
        export_sherpa_onnx(folder=write(tmp_path / "toy", **changes), output=tmp_path / "b")
