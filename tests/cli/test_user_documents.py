"""The user documents against reality: their commands parse, their Python runs."""

import re
import shlex
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import soundfile
import typer

from pages import DOCUMENTS, NEEDS, ROOT, SHELL, blocks, command_lines, tritone_commands
from toy import SAMPLE_RATE, toy_waveform
from toy_speaker import DIM
from tritone.cli.main import app
from tritone.cli.shared.words import check_words
from tritone.gateway.server import GatewayServer
from tritone.server import TritonServer

# Examples with models, functions and pages of the reader, which shipped and toy bundles cannot stand for. Those of
# python-models.md run in tests/families/generic/test_python_export.py, that of bulk.md in tests/systems/test_ray.py.
READERS_OWN = re.compile(
    r"load\(\"(?:letters|measure|ensemble|spec)|^(?:async )?def |^    def |model\.stream\(|map_batches\("
    r"|^(?:RUNTIME|SCHEME|PROTOCOL) = ",
    re.MULTILINE,
)


def commands() -> list[tuple[str, str]]:
    """The command lines of `tritone` in blocks of shell."""
    return [
        (document.relative_to(ROOT).as_posix(), shlex.join(each))
        for document in DOCUMENTS
        for line in command_lines(document)
        for each in tritone_commands(line)
    ]


@cache  # hundreds of lines are of a few dozen commands
def command_of(*names: str) -> Any:
    return command_of(*names[:-1]).get_command(None, names[-1]) if names else typer.main.get_command(app)


@pytest.mark.parametrize(("document", "line"), commands())
def test_every_tritone_command_in_the_documents_is_accepted(document: str, line: str):
    command, names, (_, *words) = command_of(), [], shlex.split(line)
    # `tritone bench` has subcommands and is a command itself.
    while hasattr(command, "get_command") and not (command.invoke_without_command and words[0].startswith("-")):
        names.append(words.pop(0))
        command = command_of(*names)
        assert command is not None
    check_words(command, words)
    # Parses as a real call does, and raises on anything unknown, missing or malformed.
    command.make_context(line, words)


def test_what_a_line_needs_is_marked_in_one_way():
    marks = [(name, need) for each in SHELL for name, text in blocks(each) for need in NEEDS.findall(text)]
    assert {"README.md", "docs/start/steps.md"} <= {name for name, _ in marks}
    known = {"a GPU", "a cluster", "a container engine", "an account", "TensorFlow", "vLLM", "espeak-ng"}
    assert {need for _, need in marks} <= known


def test_the_readme_shows_the_whole_road():
    shown = [line.split()[1] for document, line in commands() if document == "README.md"]
    assert [
        name for name in ("export", "build", "serve", "transcribe", "embed", "score", "verify") if name not in shown
    ] == []


def test_the_options_beside_those_of_perf_analyzer_are_options_of_bench() -> None:
    text = (ROOT / "docs" / "serving" / "perf-analyzer.md").read_text(encoding="utf-8")
    section = text.partition("## Its options and ours")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    named = {option for _, ours, _ in rows for option in re.findall(r"`(--[\w-]+)`", ours)}
    assert len(named) > 25
    bench: Any = typer.main.get_command(app).get_command(None, "bench")  # type: ignore[attr-defined]
    assert named - {option for each in bench.params for option in (*each.opts, *each.secondary_opts)} == set()


def examples() -> list[tuple[str, str]]:
    found = blocks("python")  # those of examples/ run with their models in tests/examples
    return [each for each in found if not (each[0].startswith("examples/") or READERS_OWN.search(each[1]))]


@pytest.mark.parametrize(("document", "code"), blocks("python"))
def test_every_python_example_in_the_documents_compiles(document: str, code: str) -> None:
    compile(code, document, "exec")


@pytest.mark.parametrize(("document", "code"), examples())
def test_every_python_example_in_the_documents_runs(
    document: str,
    code: str,
    served_toy: TritonServer,
    served_gateway: GatewayServer,
    toy_bundle: Path,
    toy_speaker: Path,
    silero_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    detects = 'load("vad")' in code
    if "my-whisper" in code:
        _export_whisper(tmp_path / "my-whisper")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITONE_KEY", served_toy.options.key)
    for name in ("speech.wav", "interview.flac"):
        soundfile.write(name, toy_waveform("hello world"), SAMPLE_RATE, subtype="PCM_24")
    shutil.copy(ROOT / "tests" / "data" / "ngram" / "four.arpa", "lm.arpa")
    for written, real in (
        ("demo-asr", str(toy_bundle)),
        ("demo-speaker", str(toy_speaker)),
        *((("vad", str(silero_bundle)),) if detects else ()),
        ("localhost:8001", served_toy.grpc_address),
        ("localhost:8000", served_toy.http_address),
    ):
        code = code.replace(f'"{written}"', f'"{real}"').replace(f'"http://{written}"', f'"http://{real}"')
    code = code.replace("localhost:9000", f"127.0.0.1:{served_gateway.port}")
    # The toy bundle is served under its own name.
    exec(compile(code.replace("my-model", "toy"), document, "exec"), {"__name__": "example"})
    expected = "hello world" if "speech.wav" in code else "toy 16000"
    if "Diarizer(" in code:  # the toys' audio is no speech
        expected = "speakers: ()" if ".stream(" in code else "0 speakers in 0.5 s"
    elif "tidy(" in code:
        expected = "Call me at 5:30.\n"
    elif "embedder.embed(" in code:
        expected = f"(2, {DIM})\n1.000\n"  # both files say the same
    elif "client.embed" in code:
        expected = f"speech.wav ({DIM},)\n"
    elif ".identify(" in code:
        expected = "interview.flac: "
    elif "my-whisper" in code:
        expected = "language de: "
    elif "client.detect" in code or detects:  # the toys' audio is no speech
        expected = "at the end: ()" if "stream(" in code else "missing.wav failed: "
    assert expected in capsys.readouterr().out


def _export_whisper(output: Path) -> None:
    """A small random model; what it needs is imported for its page alone."""
    from families.whisper_models import random_model, write_folder
    from tritone.families.whisper.export import export_whisper

    export_whisper(checkpoint=write_folder(output.with_name("folder"), random_model()), output=output)
