"""The shipped models on real speech through a real Triton: their cards' promises, with room for other machines."""

import io
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

import tritone
from e2e.real_speech import SAMPLE_RATE, Recording, listed, need, tarred
from serving import quiet_options
from tritone.client import Client
from tritone.evaluate.score import count_errors, pool
from tritone.pipelines import Step
from tritone.repository import ModelOptions, build_repository
from tritone.server import TritonServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    repository = tmp_path_factory.mktemp("demo") / "repository"
    build_repository(["demo-asr"], repository, options=ModelOptions(max_streams=16))
    with TritonServer(repository, quiet_options()) as running, Client(running.grpc_address) as connected:
        yield connected


def word_error_rate(recordings: Sequence[Recording], texts: Sequence[str]) -> float:
    counts = pool(count_errors(r.text.split(), text.split()) for r, text in zip(recordings, texts, strict=True))
    return counts.rate


def offline_texts(client: Client, recordings: Sequence[Recording]) -> list[str]:
    results = client.transcribe([r.waveform for r in recordings], sample_rate=SAMPLE_RATE)
    assert all(result.ok for result in results)
    return [result.text for result in results]


def streaming_texts(client: Client, recordings: Sequence[Recording]) -> list[str]:
    def stream(recording: Recording) -> str:
        with client.stream(sample_rate=SAMPLE_RATE) as running:
            for piece in np.array_split(recording.waveform, max(1, len(recording.waveform) // 9000)):
                running.accept(piece)
            return running.finish().text

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(stream, recordings))


def test_digit_strings_of_the_public_test_set(client: Client) -> None:
    recordings = listed("fsdd", "strings")[::2]  # sorted by speaker: some of each
    offline = word_error_rate(recordings, offline_texts(client, recordings))
    streaming = word_error_rate(recordings, streaming_texts(client, recordings))
    assert offline <= 0.03
    assert streaming <= offline + 0.015


def test_unseen_speakers_of_the_an4_test_set(client: Client) -> None:
    recordings = tarred("an4", "test")
    offline = word_error_rate(recordings, offline_texts(client, recordings))
    streaming = word_error_rate(recordings, streaming_texts(client, recordings))
    assert offline <= 0.06
    assert streaming <= 0.08


def test_isolated_digits_that_end_at_their_last_sound(client: Client) -> None:
    recordings = tarred("fsdd", "test")
    assert word_error_rate(recordings, offline_texts(client, recordings)) <= 0.03


def test_the_transducer_hears_unseen_speakers_too() -> None:
    recordings = tarred("an4", "test")[::2]  # sorted by speaker: some of each
    recognizer = tritone.load("demo-transducer", search="modified-beam")
    offline = word_error_rate(recordings, [t.text for t in recognizer.transcribe([r.waveform for r in recordings])])
    pipeline = recognizer.streaming
    slots = [pipeline.open() for _ in recordings]
    pieces = [(slot, np.array_split(r.waveform, 3)) for slot, r in zip(slots, recordings, strict=True)]
    for part in range(3):
        last = pipeline.advance([Step(slot, parts[part], final=part == 2) for slot, parts in pieces])
    streaming = word_error_rate(recordings, [transcript.text for transcript in last])
    assert offline <= 0.06
    assert streaming <= 0.08


def test_200_recordings_say_the_same_alone_in_any_batch_and_in_any_order() -> None:
    recognizer = tritone.load("demo-asr")
    waveforms = [r.waveform for r in itertools.chain(tarred("an4", "test"), listed("fsdd", "strings"))][:200]
    assert len(waveforms) == 200
    alone = [recognizer.transcribe([waveform])[0].text for waveform in waveforms]
    order = np.random.default_rng(0).permutation(len(waveforms))
    shuffled = recognizer.transcribe([waveforms[i] for i in order])
    assert [t.text for t in shuffled] == [alone[i] for i in order]


@pytest.mark.parametrize(
    ("form", "subtype", "rate"), [("WAV", "PCM_16", 8000), ("FLAC", "PCM_16", 44100), ("OGG", "OPUS", 48000)]
)
def test_a_recording_says_the_same_in_other_files_and_at_other_rates(form: str, subtype: str, rate: int) -> None:
    path = need("fsdd", "strings", "flac", "fsddtest-george-000.flac")
    waveform, own_rate = soundfile.read(path, dtype="float32")
    recognizer = tritone.load("demo-asr")
    [expected] = recognizer.transcribe([path])
    file = io.BytesIO()
    converted = tritone.audio.files.resample(waveform, own_rate, rate)
    soundfile.write(file, np.stack([converted, converted], axis=1), rate, format=form, subtype=subtype)
    file.seek(0)
    [found] = recognizer.transcribe([tritone.audio.files.read_audio(file, SAMPLE_RATE)])
    assert found.text == expected.text


def test_silence_and_noise_say_nothing_or_next_to_nothing(client: Client) -> None:
    recordings = [r for r in tarred("noise") if "silence" in r.name]
    texts = offline_texts(client, recordings)
    assert sum(bool(text) for text in texts) <= len(texts) // 5


def test_digits_of_a_voice_outside_every_training_set(client: Client) -> None:
    [name] = [path.name for path in need("samples", "en").glob("*10001-90210-01803*")]
    waveform = tritone.audio.files.read_audio(need("samples", "en", name), SAMPLE_RATE)
    recording = Recording(name, waveform, "one zero zero zero one nine oh two one oh zero one eight zero three")
    assert word_error_rate([recording], offline_texts(client, [recording])) <= 0.2
