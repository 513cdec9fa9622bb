"""Families, kinds, runtimes, stores and protocols are folders that can be taken out: nobody else has their names."""

import http.client
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from tritone.corpus.clips import read_clips
from tritone.families.known import families
from tritone.gateway.protocols import all_protocols
from tritone.runtime.known import runtimes
from walls import PACKAGE, compared, imported, in_tables, occurs, tables

FAMILIES = sorted(path.parent.name for path in (PACKAGE / "families").glob("*/family.py"))
ORDINARY = {"generic", "hf"}
"""Folders whose names are ordinary words: only imports count."""
OF_KINDS = {"whisper", "moonshine", "wenet", "sherpa_onnx"}
"""Folders with the name of a kind or a protocol, which have walls of their own."""

TENSORS = "the names of tensors of NVIDIA's own deployment of it, a layout of repositories"
WRITTEN = "the rules of NVIDIA's package nemo-text-processing, as users name them"
LIGHTNING = "checkpoints that pyannote.audio's trainer wrote, of a network that is this family's"
LIBRARIES = "the names of NVIDIA's libraries, one of which an engine is built with"
UNREAD = "packages whose objects in a checkpoint are not made"
BACKENDS = "the names of Triton's own backends"
ALLOWED = {
    ("jasper", "cli/build.py"): TENSORS,
    ("jasper", "repository/ensemble.py"): TENSORS,
    ("jasper", "repository/stage_config.py"): TENSORS,
    ("jasper", "families/nemo/config.py"): "the key of a config that says that it is not this family's",
    ("nemo", "texts/nemo.py"): WRITTEN,
    ("nemo", "texts/options.py"): WRITTEN,
    ("nemo", "texts/tidy.py"): WRITTEN,
    ("pyannote", "families/wespeaker/checkpoint.py"): LIGHTNING,
    ("pyannote", "families/wespeaker/family.py"): LIGHTNING,
    ("pyannote", "families/wespeaker/lightning.py"): LIGHTNING,
    ("pyannote", "families/wespeaker/options.py"): LIGHTNING,
    ("pyannote", "cli/shared/turn_errors.py"): "the package pyannote.metrics, whose way of counting it is",
    ("tensorrt", "bundle/manifest.py"): LIBRARIES,
    ("tensorrt", "runtime/cuda/tensorrt.py"): LIBRARIES,
    ("torch", "families/export/hf_folder.py"): "keys of configs of transformers",
    ("torch", "families/pyannote/export.py"): UNREAD,
    ("torch", "families/wespeaker/lightning.py"): UNREAD,
    ("python", "loadtest/plans/build_options.py"): BACKENDS,
    ("python", "server/layout.py"): BACKENDS,
    ("az", "families/whisper/tokens.py"): "the code of the language Azerbaijani",
}
"""Files that may name a family, or have a table with the name of a runtime or a store; the list may only shrink."""
MOST_ALLOWED = 20


def _outside(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_imports_a_family_or_has_its_name(family: str) -> None:
    module, name = f"tritone.families.{family}", family.replace("_", " ")
    seen = set()
    for path in _outside(PACKAGE / "families" / family):
        place = str(path.relative_to(PACKAGE))
        assert [each for each in imported(path) if f"{each}.".startswith(f"{module}.")] == [], place
        if family not in ORDINARY | OF_KINDS and occurs(name, path):
            seen.add((family, place))
    assert seen == {each for each in ALLOWED if each[0] == family}


def test_what_is_allowed_only_shrinks() -> None:
    assert len(ALLOWED) <= MOST_ALLOWED


@pytest.mark.parametrize("name", sorted(families()))
def test_a_family_says_where_its_document_is(name: str) -> None:
    assert (PACKAGE.parents[1] / families()[name].page).is_file()


RUNTIMES = sorted(path.parent.name for path in (PACKAGE / "runtime").glob("*/runtime.py"))
OTHER_PACKAGES = {"llvmlite", "numpy", "onnx", "onnxscript"}
"""Names of runtimes are those of packages, too: a table that has another package is one of packages."""


@pytest.mark.parametrize("folder", RUNTIMES)
def test_nobody_imports_a_runtime_or_has_its_name_in_a_table(folder: str) -> None:
    module = f"tritone.runtime.{folder}"
    names = {name for name, each in runtimes().items() if each.package == module}
    assert names
    seen = set()
    for path in _outside(PACKAGE / "runtime" / folder):
        place = str(path.relative_to(PACKAGE))
        assert [each for each in imported(path) if f"{each}.".startswith(f"{module}.")] == [], place
        assert not occurs(module.replace(".", " "), path), f"{place} has the name of the module {module}"
        if any(names & table and not OTHER_PACKAGES & table for table in tables(path)):
            seen.add((folder, place))
    assert seen == {each for each in ALLOWED if each[0] == folder}


STORES = sorted(path.parent.name for path in (PACKAGE / "storage").glob("*/scheme.py"))


@pytest.mark.parametrize("store", STORES)
def test_nobody_imports_a_store_or_has_its_scheme_in_a_table_or_compares_with_it(store: str) -> None:
    module, seen = f"tritone.storage.{store}", set()
    for path in _outside(PACKAGE / "storage" / store):
        place = str(path.relative_to(PACKAGE))
        assert [each for each in imported(path) if f"{each}.".startswith(f"{module}.")] == [], place
        assert store not in compared(path), place
        if store in in_tables(path):
            seen.add((store, place))
    assert seen == {each for each in ALLOWED if each[0] == store}


TAKEN_OUT = ("resemblyzer", "funasr", "nemo")
STORES_OUT = ("gs", "az", "hf")
IMPORT_ALL = """
import importlib, pkgutil, sys
import tritone
wrong = []
for each in pkgutil.walk_packages(tritone.__path__, "tritone.", onerror=lambda name: None):
    if each.name.endswith("._fused"):  # a library
        continue
    try:
        importlib.import_module(each.name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tritone"):
            wrong.append(f"{each.name}: {error}")
    except ImportError as error:
        wrong.append(f"{each.name}: {error}")
print("\\n".join(wrong))
print(len(tritone.load("demo-asr").transcribe([sys.argv[1]])[0].get().text))
"""
LOAD_ALL = """
import sys, tritone
for address in sys.argv[1:]:
    try:
        tritone.load(address)
    except tritone.TritoneError as error:
        print(error)
"""


Run = Callable[..., str]
COMMAND = ("-c", "from tritone.cli.main import app; app(prog_name='tritone')")


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., Run]:
    """Copies the package without some of its folders, tries all that is left, and runs more in the copy."""

    def taken_out(*folders: str, excused: Callable[[str], bool] = lambda line: False) -> Run:
        shutil.copytree(PACKAGE, tmp_path / "tritone", ignore=shutil.ignore_patterns("__pycache__"))
        for each in folders:
            shutil.rmtree(tmp_path / "tritone" / each)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"}

        def run(*words: str, code: int = 0) -> str:
            command = [sys.executable, *words]
            done = subprocess.run(
                command, env=environment, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=99
            )
            assert done.returncode == code, done.stdout + done.stderr
            return done.stdout + done.stderr if code else done.stdout

        wrong, length = run("-c", IMPORT_ALL, str(read_clips()[0].path)).rsplit("\n", 2)[:2]
        assert [line for line in wrong.splitlines() if line and not excused(line)] == []
        assert int(length) > 0
        assert "CTC" in run(*COMMAND, "inspect", "demo-asr")
        assert "transcribe" in run(*COMMAND, "--help")
        return run

    return taken_out


@pytest.mark.slow
def test_families_and_stores_are_taken_out_for_real(without: Callable[..., Run]) -> None:
    """Three families, three more by the seed of the day, and stores: all else is imported, printed and loaded."""
    seed = date.today().isoformat()
    others = [each for each in FAMILIES if each not in TAKEN_OUT and each != "generic"]
    gone = [*TAKEN_OUT, *random.Random(seed).sample(others, 3)]
    sys.stdout.write(f"seed {seed}: {', '.join(gone)} are taken out\n")
    run = without(*(f"families/{each}" for each in gone), *(f"storage/{each}" for each in STORES_OUT))
    listed = re.findall(
        r"^  ([a-z][a-z-]+) ", run(*COMMAND, "export", "--help").partition("Commands:")[2], re.MULTILINE
    )
    names = {each: each.replace("_", "-") for each in FAMILIES}
    assert set(names.values()) - set(listed) - {"generic"} == {names[each] for each in gone}
    assert "s3://BUCKET/FOLDER, or a folder" in " ".join(run(*COMMAND, "repo", "push", "--help").split())
    told = run("-c", LOAD_ALL, *(f"{each}://owner/name" for each in STORES_OUT)).splitlines()
    for each, message in zip(STORES_OUT, told, strict=True):
        head, _, known = message.partition(" is not supported here. ")
        assert head == f"{each}://owner/name: a path with the scheme {each}://"
        assert set(re.findall(r"(\w+)://", known)) == {"s3"}


OPEN = """
import sys
from pathlib import Path
from tritone.errors import BundleError
from tritone.runtime import describe_graph, obstacle, open_graph
from tritone.runtime.known import runtimes
print(*runtimes())
for use in (open_graph, describe_graph):
    try:
        use(Path("model.pt2"))
    except (ValueError, BundleError) as error:
        print(error)
print(obstacle("torch", "cpu"))
"""


@pytest.mark.slow
def test_runtimes_are_taken_out_for_real(without: Callable[..., Run], tmp_path: Path) -> None:
    """All but onnxruntime, which the shipped models are for."""
    gone = [each for each in RUNTIMES if each != "onnx"]
    run = without(*(f"runtime/{each}" for each in gone))
    (tmp_path / "model.pt2").write_bytes(b"PK\x03\x04" + bytes(100))
    names, file, described, name = run("-c", OPEN).splitlines()
    assert names == "onnxruntime"
    assert file == "graphs are files .onnx, of the runtimes that are here; got model.pt2"
    assert "no runtime that is here has files .pt2: there is onnxruntime" in described
    assert name == "there is no such runtime here, but onnxruntime"
    words = (*COMMAND, "transcribe", "--model", "demo-asr", "--runtime", "torch", str(read_clips()[0].path))
    assert "runtime must be one of onnxruntime, got 'torch'" in " ".join(run(*words, code=2).split())


# Protocols of the gateway.

PROTOCOLS = sorted(path.parent.name for path in (PACKAGE / "gateway" / "protocols").glob("*/protocol.py"))
ORDINARY_PROTOCOLS = {"page", "stream"}
"""Folders whose names are ordinary words: only imports count."""
ALSO_OTHERS = {
    "openai": {
        "families": "the makers of Whisper's checkpoints",
        "pipelines/whisper/options.py": "the makers of Whisper, whose defaults these are",
        "gateway/upstreams": "servers that speak OpenAI's API, which are asked here",
        "gateway/callers.py": "the subprotocol in which browsers send keys, whatever they ask",
    },
    "sherpa_onnx": {"families": "folders of ready-made graphs"},
    "wenet": {"families": "a toolkit and its checkpoints"},
}
"""What else has the name of a protocol, and where; the list may only shrink."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_imports_a_protocol_or_has_its_name(protocol: str) -> None:
    module, others = f"tritone.gateway.protocols.{protocol}", ALSO_OTHERS.get(protocol, {})
    seen = set()
    for path in _outside(PACKAGE / "gateway" / "protocols" / protocol):
        place = str(path.relative_to(PACKAGE))
        assert [each for each in imported(path) if f"{each}.".startswith(f"{module}.")] == [], place
        if protocol not in ORDINARY_PROTOCOLS and occurs(protocol.replace("_", " "), path):
            seen.add(next((each for each in others if f"{place}/".startswith(f"{each}/")), place))
    assert seen == set(others)


@pytest.mark.slow
def test_protocols_are_taken_out_for_real(tmp_path: Path) -> None:
    """Vosk's, and two more by the seed of the day: a gateway has the ports of all others, and answers them."""
    seed = date.today().isoformat()
    gone = ["vosk", *random.Random(seed).sample([each for each in PROTOCOLS if each != "vosk"], 2)]
    sys.stdout.write(f"seed {seed}: {', '.join(gone)} are taken out\n")
    shutil.copytree(PACKAGE, tmp_path / "tritone", ignore=shutil.ignore_patterns("__pycache__"))
    for each in gone:
        shutil.rmtree(tmp_path / "tritone" / "gateway" / "protocols" / each)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"}
    command = [sys.executable, "-c", "from tritone.cli.main import app; app(prog_name='tritone')", "gateway"]
    pages = dict(all_protocols())
    left = {name: each for name, each in pages.items() if each.package.rpartition(".")[2] not in gone}

    said = subprocess.run([*command, "--help-all"], env=environment, capture_output=True, encoding="utf-8", check=True)
    flags = {name: f"--{each.port_name.replace('_', '-')}" for name, each in pages.items() if each.port}
    offered = set(re.findall(r"--[a-z-]+-port", said.stdout)) - {"--metrics-port"}
    assert offered == {flag for name, flag in flags.items() if name in left}

    ports = [word for name, flag in flags.items() if name in left for word in (flag, "0")]
    serving = [*command, "--port", "0", "--url", "http://127.0.0.1:9", *ports]
    process = subprocess.Popen(
        serving, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    )
    try:
        assert process.stdout is not None
        line = next(each for each in process.stdout if each.startswith("Serving on"))
        assert {name for name in flags if f"  {name} 127.0.0.1:" in line} == flags.keys() & left.keys()
        address = line.split()[2].rstrip(",").removeprefix("http://")
        paths = {path for each in left.values() for path in each.paths}
        assert {path for path in paths if "{" not in path and not _answers(address, path)} == set()
        none = {path for each in pages.values() for path in each.paths} - paths
        assert {path for path in none if "{" not in path and _answers(address, path)} == set()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _answers(address: str, path: str) -> bool:
    """Is a path known, of HTTP or of a WebSocket of whatever subprotocol?"""
    try:
        connect(f"ws://{address}{path}", subprotocols=[Subprotocol("realtime-token.any")]).close()
        return True
    except InvalidStatus as error:
        if error.response.status_code != 404:
            return True
    return any(_status(address, method, path) != 404 for method in ("GET", "POST"))


def _status(address: str, method: str, path: str) -> int:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path)
        return connection.getresponse().status


# Kinds of models.

RECOGNISERS = {"ctc", "transducer", "paraformer", "whisper", "encoder_decoder"}
"""Kinds whose pipelines, searches and options several rooms share."""
MADE = "makes bundles of the kind"
SHARED = "a pipeline that stands below kinds, and reads the kind's part"
OPTION = "the command, or the option of commands, that is for models of the kind"
MAY_IMPORT_A_KIND = {
    "embedding": {
        "cli/shared/speaker_options.py": OPTION,
        "families/export/embedding.py": MADE,
        "families/wespeaker/onnx_model.py": MADE,
        "pipelines/embedder.py": SHARED,
        "pipelines/embedding.py": SHARED,
    },
    "voice_activity": {},
    "diarization": {"families/nemo/diarization.py": MADE, "families/nemo/diarization_export.py": MADE},
    "segmentation": {
        "cli/shared/speaker_options.py": OPTION,
        "families/pyannote/export.py": MADE,
        "families/pyannote/onnx_model.py": MADE,
    },
    "punctuation": {
        "cli/shared/punctuation.py": OPTION,
        "families/funasr/punctuation.py": MADE,
        "families/sherpa_onnx/punctuation.py": MADE,
    },
    "synthesis": {
        "__init__.py": "the public face, which imports it on first use",
        "cli/speak.py": OPTION,
        "families/piper/config.py": MADE,
        "families/piper/export.py": MADE,
    },
}
"""Files that may import a kind, with the reason; the lists may only shrink."""
VERBS = "verbs of clients, by what a model answers"
MODES = "modes of serving, two of which are called as kinds"
NULLS = "names that files of models with audio have had from the first, as null where there is no such part"
CAPTIONS = "marks of texts, or a language's, which have the same name"
MAY_NAME_A_KIND: dict[str, dict[str, str]] = {
    "embedding": {
        "bundle/manifest.py": NULLS,
        "pipelines/wiring/wires.py": MODES,
        "search/device/stateless.py": "the name of a tensor",
        "client/models.py": VERBS,
        "demo/run.py": VERBS,
        "loadtest/plans/generator.py": VERBS,
        "loadtest/senders/wire.py": VERBS,
        "pipelines/kind.py": MODES,
        "repository/memory.py": MODES,
    },
    "voice_activity": {},
    "diarization": {
        "bundle/manifest.py": NULLS,
        "client/models.py": VERBS,
        "cli/shared/speaker_options.py": VERBS,
        "pipelines/kind.py": VERBS,
    },
    "segmentation": {"bundle/manifest.py": NULLS, "client/models.py": VERBS, "pipelines/kind.py": VERBS},
    "punctuation": {
        "kinds/encoder_decoder/part.py": CAPTIONS,
        "loadtest/options.py": CAPTIONS,
        "pipelines/whisper/options.py": CAPTIONS,
    },
    "synthesis": {
        "client/models.py": VERBS,
        "pipelines/kind.py": MODES,
        "repository/config.py": MODES,
        "repository/memory.py": MODES,
    },
}
"""Files that have a kind's name in a table or compare with it, with the reason; the lists may only shrink."""
KINDS = sorted(path.parent.name for path in (PACKAGE / "kinds").glob("*/kind.py"))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - RECOGNISERS - {"generic"}))
def test_nobody_imports_a_kind_or_has_its_name_in_a_table(kind: str) -> None:
    module, name = f"tritone.kinds.{kind}", kind.replace("_", "-")
    outside = {str(path.relative_to(PACKAGE)): path for path in _outside(PACKAGE / "kinds" / kind)}
    importing = {
        place for place, path in outside.items() if any(f"{each}.".startswith(f"{module}.") for each in imported(path))
    }
    assert importing == set(MAY_IMPORT_A_KIND[kind])
    elsewhere = ("families/", "gateway/", "evaluate/")  # which have walls of their own, or mean marks of texts
    naming = {
        place
        for place, path in outside.items()
        if name in in_tables(path) | compared(path) and not place.startswith(elsewhere)
    }
    assert naming == set(MAY_NAME_A_KIND[kind])


KINDS_TAKEN_OUT = ("segmentation", "synthesis", "punctuation", "diarization")


@pytest.mark.slow
def test_kinds_are_taken_out_for_real(without: Callable[..., Run]) -> None:
    """All else is imported, printed, inspected and loaded; who imports a kind by the table above does without."""
    allowed = {place for kind in KINDS_TAKEN_OUT for place in MAY_IMPORT_A_KIND[kind]}
    makers = {"/".join(place.split("/")[:2]) for place in allowed if place.startswith("families/")}

    def excused(line: str) -> bool:
        place = f"{line.partition(':')[0].removeprefix('tritone.').replace('.', '/')}.py"
        of_kinds = any(f"'tritone.kinds.{each}" in line for each in KINDS_TAKEN_OUT)
        return of_kinds and (place in allowed or place.startswith(tuple(makers)))

    run = without(*(f"kinds/{each}" for each in KINDS_TAKEN_OUT), excused=excused)
    for words in ("export", "transcribe", "diarize"):
        assert "Usage:" in run(*COMMAND, words, "--help")
    assert "speaker" in run(*COMMAND, "inspect", "demo-speaker")
