import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from load_reports import STAMP
from tritone.report import stamp
from tritone.report.stamp import Stamp

TWO_GPUS = """\
0, GPU-aaaa-1111, NVIDIA H200, 143771, 570.12
1, GPU-bbbb-2222, NVIDIA H200, 143771, 570.12
"""


@pytest.fixture
def fake_tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | Exception]:
    """What external programs answer, by their name; those not named are not installed."""
    answers: dict[str, str | Exception] = {}

    def output(*command: str) -> str:
        answer = answers.get(command[0], FileNotFoundError(command[0]))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(stamp, "_output", output)
    return answers


def test_a_stamp_survives_json() -> None:
    here = replace(Stamp.here(), gpus=("NVIDIA H200 (140 GiB)",))
    assert Stamp(**json.loads(json.dumps(asdict(here)))) == here


def test_a_stamp_of_here_names_this_machine_and_the_installed_packages() -> None:
    here = Stamp.here("tritone bench run")
    assert here.command == "tritone bench run"
    assert here.cores >= 1
    assert here.memory_gib > 0
    assert here.processor
    assert {"tritone", "numpy", "onnxruntime"} <= set(here.versions)
    assert "not-installed" not in here.versions


def test_old_stamps_without_newer_fields_can_be_read() -> None:
    fields = asdict(STAMP)
    for name in ("gpus", "driver", "server"):
        del fields[name]
    assert Stamp(**fields) == STAMP


def test_gpus_are_named_with_their_memory(
    fake_tools: dict[str, str | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_tools["nvidia-smi"] = TWO_GPUS
    here = Stamp.here()
    assert here.gpus == ("NVIDIA H200 (140 GiB)", "NVIDIA H200 (140 GiB)")
    assert here.driver == "570.12"
    assert "2 x NVIDIA H200 (140 GiB) (driver 570.12)" in here.summary()


@pytest.mark.parametrize(
    ("visible", "count"),
    [("0", 1), ("1,0", 2), ("GPU-bbbb", 1), ("", 0), ("-1", 0), ("0,7,1", 1), ("GPU-", 0)],
)
def test_only_gpus_that_cuda_may_use_count(
    visible: str, count: int, fake_tools: dict[str, str | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    # "0,7,1": CUDA ignores everything after an index that it does not know; "GPU-" is ambiguous
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    fake_tools["nvidia-smi"] = TWO_GPUS
    assert len(Stamp.here().gpus) == count


@pytest.mark.parametrize(
    "trouble",
    [
        FileNotFoundError("nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 5),
        subprocess.CalledProcessError(9, "nvidia-smi"),
        "",
        "No devices were found",
    ],
)
def test_without_a_working_driver_there_are_no_gpus(
    trouble: str | Exception, fake_tools: dict[str, str | Exception]
) -> None:
    fake_tools["nvidia-smi"] = trouble
    here = Stamp.here()
    assert (here.gpus, here.driver, here.commit) == ((), "", "")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], capture_output=True, encoding="utf-8", check=True
    )
    return done.stdout.strip()


def test_a_checkout_tells_its_commit_and_whether_its_code_was_changed(tmp_path: Path) -> None:
    (tmp_path / "src" / "tritone").mkdir(parents=True)
    code = tmp_path / "src" / "tritone" / "a.py"
    code.write_text("1\n", encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    (tmp_path / "notes.txt").write_text("not code", encoding="utf-8")
    assert stamp._commit(tmp_path) == commit
    code.write_text("2\n", encoding="utf-8")
    assert stamp._commit(tmp_path) == f"{commit} with changes"


def test_an_installed_package_has_no_commit_even_inside_of_another_checkout(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    assert stamp._commit(tmp_path / "lib") == ""
    assert stamp._commit(tmp_path) == ""


def test_rows_and_summary_leave_out_what_is_unknown() -> None:
    assert "GPUs" not in dict(STAMP.rows())
    assert dict(STAMP.of_server("triton 2.51.0 on loopback").rows())["server"] == "triton 2.51.0 on loopback"
    assert STAMP.summary() == (
        "2026-01-02 03:04 UTC, commit 1a2b3c4; A processor, 4 cores, 16.0 GiB, An OS, Python 3.11.7, "
        "tritone 0.1.0, onnxruntime 1.20.0; load average before: 0.1"
    )


def test_committed_serving_figures_still_make_the_committed_page(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).resolve().parents[2]
    monkeypatch.syspath_prepend(str(root))
    from benchmarks.measure import to_markdown
    from benchmarks.serving import INTRODUCTION, TITLE

    folder = root / "docs" / "performance"
    findings = json.loads((folder / "serving.json").read_text(encoding="utf-8"))
    page = (folder / "serving.md").read_text(encoding="utf-8")
    assert to_markdown(findings, TITLE, INTRODUCTION) == page
