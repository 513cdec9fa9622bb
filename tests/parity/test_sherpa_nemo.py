"""Results of sherpa-onnx and ours on the same folders of random NeMo models.

sherpa-onnx's features are near NeMo's: its frames lie 5 ms later and mirror the ends, and those of transducers have
another window and end at 7600 Hz. Here both get the same: the models are imported with that window and those bands, and
sherpa-onnx hears the audio 5 ms later, between zeros. Of a stream it drops the first frames; here it hears silence
there, and we put the features of that before the stream.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritone
from families.conftest import babble
from families.nemo_models import LABELS
from sherpa_nemo import SHIFT, WINDOW, nemo_folder, random_model, stream_encoder
from tritone.audio.fbank import LOG_FLOOR
from tritone.families.nemo import ready_made as nemo
from tritone.families.onnx import front_end
from tritone.families.ready_made import measure
from tritone.families.sherpa_onnx.export import export_sherpa_onnx

pytestmark = pytest.mark.slow

sherpa_onnx = pytest.importorskip("sherpa_onnx")

FRAMES = (8, 12, 25, 40)  # of the encoder, 80 ms each
THEIRS = {"window": "povey", "high_freq": -400.0}  # of transducers


def reference(folder: Path, kind: str) -> Any:
    files = {"tokens": str(folder / "tokens.txt"), "num_threads": 1}
    if kind == "ctc":
        return sherpa_onnx.OfflineRecognizer.from_nemo_ctc(model=str(folder / "model.onnx"), **files)
    files |= {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    return sherpa_onnx.OfflineRecognizer.from_transducer(model_type="nemo_transducer", **files)


def said(recognizer: Any, waveform: np.ndarray) -> list[tuple[str, float]]:
    stream = recognizer.create_stream()
    stream.accept_waveform(16000, np.concatenate([np.zeros(80, np.float32), waveform[:-160]]))
    recognizer.decode_stream(stream)
    result = stream.result
    return [(token, round(time, 2)) for token, time in zip(result.tokens, result.timestamps, strict=True)]


@pytest.mark.parametrize("kind", ["ctc", "rnnt", "tdt"])
def test_tokens_and_times_are_those_of_sherpa_onnx(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nemo_folder(tmp_path / "m", random_model(kind), LABELS, head="ctc" if kind == "ctc" else "transducer")
    if kind != "ctc":
        monkeypatch.setattr(nemo, "FEATURES", nemo.FEATURES.model_copy(update=THEIRS))
    export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    silence = np.zeros(1280, np.float32)
    waveforms = [np.concatenate([silence, babble(1280 * frames, seed=frames), silence]) for frames in FRAMES]
    theirs = reference(folder, kind)
    found = [
        [(token.text.replace("▁", " "), round(token.start_s, 2)) for token in result.tokens]
        for result in tritone.load(tmp_path / "b").transcribe(waveforms)
    ]
    assert found == [said(theirs, each) for each in waveforms]
    assert sum(map(len, found)) > 20


def test_streams_are_those_of_sherpa_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = nemo_folder(tmp_path / "m", random_model("rnnt"), LABELS, head="transducer")
    stream_encoder(folder / "encoder.onnx", 16)
    for module in (front_end, measure):
        monkeypatch.setattr(module, "LEAD", float(np.log(LOG_FLOOR)))
    export_sherpa_onnx(folder=folder, output=tmp_path / "b")
    waveform = 3 * babble(26000, seed=3) + 0.05 * np.random.default_rng(0).normal(size=26000).astype(np.float32)
    waveform[:40] = 0
    files = {part: str(folder / f"{part}.onnx") for part in ("encoder", "decoder", "joiner")}
    theirs = sherpa_onnx.OnlineRecognizer.from_transducer(tokens=str(folder / "tokens.txt"), num_threads=1, **files)
    stream = theirs.create_stream()
    before = np.zeros(160 * (WINDOW - SHIFT) + 80, np.float32)
    stream.accept_waveform(16000, np.concatenate([before, waveform]))
    steps = 0
    while theirs.is_ready(stream):
        theirs.decode_stream(stream)
        steps += 1
    with tritone.load(tmp_path / "b").stream() as live:
        found = [(token.text.replace("▁", " "), round(token.start_s / 0.08)) for token in live.accept(waveform).tokens]
    expected = [
        (token, round(time / 0.08))
        for token, time in zip(theirs.tokens(stream), theirs.timestamps(stream), strict=True)
    ]
    assert steps > 15
    assert [each for each in found if each[1] < steps] == expected
    assert len({token for token, _ in expected}) > 3
