"""The memory of models in a repository: the longest audio that fits, and sums that a machine has or has not."""

from pathlib import Path

import pytest

from toy_voice import write_espeak, write_toy_voice
from tritone.backend.settings import MEMORY_MB, Settings
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import CallSize, Memory
from tritone.errors import OperatorError, ServerSetupError
from tritone.families.piper.export import export_piper
from tritone.repository import ModelOptions, build_repository, check_settings
from tritone.repository import memory as repository_memory
from tritone.repository.config import from_text, to_text
from tritone.repository.memory import facts, fitted, memory_needs, total_bytes
from tritone.repository.models import models_of
from tritone.server import TritonServer
from tritone.server.checks import check_memory

MB = 10**6
GIB = 2**30


def settings_of(path: Path, name: str) -> Settings:
    return next(settings for each, _, settings, _ in models_of(path) if each == name)


@pytest.mark.parametrize("name", ["demo-asr", "demo-transducer", "demo-speaker"])
def test_a_shipped_model_with_its_usual_limits_fits_into_two_gigabytes(name: str, tmp_path: Path) -> None:
    build_repository([name], tmp_path, options=ModelOptions(threads=2))
    needs = memory_needs(tmp_path)
    assert name in needs
    assert total_bytes(needs) < 2 * GIB


def test_the_longest_audio_is_what_the_budget_is_enough_for(tmp_path: Path) -> None:
    bundle = Bundle.open("demo-transducer")
    longest = fitted(ModelOptions(), bundle, "offline").longest_s
    assert 30 < longest < 60
    assert fitted(ModelOptions(memory_mb=8000), bundle, "offline").longest_s == 120
    assert fitted(ModelOptions(), bundle, "streaming").longest_s == 120, "a stream may be of any length"
    assert fitted(ModelOptions(device="gpu"), bundle, "offline").longest_s == 120
    build_repository([bundle.path], tmp_path)
    settings = settings_of(tmp_path, "demo-transducer")
    assert settings.max_audio_s == longest
    assert settings.max_queued_s == pytest.approx(256 * MB / (16000 * 4 * 3), abs=0.1)
    (line,) = facts(tmp_path, {"demo-transducer"})
    assert f"{longest:g} s" in line
    assert f"{MEMORY_MB} MB" in line


def test_longer_audio_than_fits_is_refused_with_the_numbers_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"max_audio_s is 120.*needs \d{4} MB.*1200 MB is enough.*--memory-mb \d{4}"):
        build_repository(["demo-transducer"], tmp_path, options=ModelOptions(max_audio_s=120))
    with pytest.raises(ValueError, match=r"memory_mb is 50, but a process of this model takes.*--memory-mb"):
        build_repository(["demo-transducer"], tmp_path, options=ModelOptions(memory_mb=50))
    assert not list(tmp_path.iterdir())


def test_windows_of_long_audio_need_the_memory_of_a_window(tmp_path: Path) -> None:
    options = ModelOptions(memory_mb=200, max_audio_s=3600, window_s=3.0)
    assert fitted(options, Bundle.open("demo-speaker"), "embedding") == options


def test_a_sum_that_the_machine_has_not_is_refused_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_memory, "machine_bytes", lambda: 1000 * MB)
    options = ModelOptions(threads=2)
    with pytest.raises(OperatorError, match=r"demo-transducer \d+ MB.*has 1000 MB.*--overcommit"):
        build_repository(["demo-transducer"], tmp_path, options=options)
    assert not list(tmp_path.iterdir())
    build_repository(["demo-transducer"], tmp_path, options=options, overcommit=True)
    assert total_bytes(memory_needs(tmp_path)) > 1000 * MB


def test_a_voice_takes_the_memory_of_its_longest_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{write_espeak(tmp_path / 'bin')}:/usr/bin:/bin")
    bundle = export_piper(voice=write_toy_voice(tmp_path / "piper"), output=tmp_path / "ann").bundle
    sizes = ((4.0, 80), (8.0, 150), (20.0, 300))
    network = tuple(CallSize(seconds=seconds, bytes=megabytes * MB) for seconds, megabytes in sizes)
    artifact = bundle.manifest.artifacts[0].model_copy(
        update={"memory": Memory(process=200 * MB, network=network, search_per_second=0)}
    )
    (bundle.path / "manifest.json").write_text(
        bundle.manifest.model_copy(update={"artifacts": (artifact,)}).model_dump_json(by_alias=True, exclude_none=True),
        encoding="utf-8",
    )
    build_repository([bundle.path], tmp_path / "repository", options=ModelOptions(instances=2))
    assert memory_needs(tmp_path / "repository") == {"ann": round(2 * (200 + 1.15 * 300) * MB)}
    assert list(facts(tmp_path / "repository", {"ann"})) == [], "no audio is sent to it"


def test_a_model_that_nobody_measured_is_not_refused(toy_bundle: Path, tmp_path: Path) -> None:
    build_repository([toy_bundle], tmp_path)
    assert memory_needs(tmp_path) == {}
    assert total_bytes({}) == 0
    assert settings_of(tmp_path, "toy").max_audio_s == 120


def test_the_check_of_a_server_is_broken_or_a_warning() -> None:
    assert check_memory(10, machine=10).status == "ok"
    assert check_memory(11 * MB, machine=10 * MB).status == "broken"
    assert check_memory(11 * MB, overcommit=True, machine=10 * MB).status == "warning"


@pytest.mark.parametrize(
    ("told", "threads", "machine", "expected"),
    [(0, 1, None, 1200), (0, 16, None, 9600), (0, 16, 8000 * MB, 2000), (0, 16, 1000 * MB, 1200), (700, 16, None, 700)],
)
def test_a_model_without_a_budget_has_one_by_its_threads_and_machine(
    told: int, threads: int, machine: int | None, expected: float
) -> None:
    assert Settings(sample_rate=16000, memory_mb=told).memory_of(threads, machine) == expected


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("max_audio_s", "0.25", r"max_audio_s is 0\.25, but model_warmup sends \d.* s of audio.*Set max_audio_s to"),
        ("max_audio_s", "long", "max_audio_s must be a number, got 'long'"),
        ("max_streams", "0", "max_streams must be a number above 0, got 0"),
        ("max_audios", "1", "unknown model parameter 'max_audios'"),
    ],
)
def test_an_edited_setting_that_cannot_be_is_an_error_before_the_server_starts(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    """Triton ends by SIGSEGV when a model refuses its warm-up."""
    build_repository(["demo-asr"], tmp_path)
    check_settings(tmp_path)
    path = tmp_path / "demo-asr" / "config.pbtxt"
    config = from_text(path.read_text(encoding="utf-8"))
    config.parameters[name].string_value = text
    path.write_text(to_text(config), encoding="utf-8")
    with pytest.raises(OperatorError, match=told) as error:
        check_settings(tmp_path)
    assert str(path) in str(error.value)
    with pytest.raises(ServerSetupError, match=told):
        TritonServer(tmp_path).start()
