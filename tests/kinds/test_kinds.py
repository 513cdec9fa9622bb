"""What kinds ask of a manifest, and who may know their names."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from toy import write_toy_bundle
from toy_speaker import write_toy_speaker
from toy_transducer import write_toy_transducer
from tritone.bundle import Bundle
from tritone.bundle.manifest import Transducer
from tritone.errors import BundleError
from tritone.kinds import kind_of

STATE = {"name": "h", "shape": [4], "dtype": "float32"}
SOURCES = Path(__file__).parents[2] / "src" / "tritone"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kinds")
    return {
        "ctc": write_toy_bundle(folder / "ctc"),
        "transducer": write_toy_transducer(folder / "transducer"),
        "embedding": write_toy_speaker(folder / "embedding"),
    }


@pytest.mark.parametrize("kind", ["ctc", "transducer", "embedding"])
def test_a_bundle_has_the_kind_of_its_manifest(bundles: dict[str, Path], kind: str) -> None:
    assert kind_of(Bundle.open(bundles[kind])).name == kind


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("ctc", {"transducer": {"context_size": 1, "start": [0]}}, "a transducer, and nothing else, has the part"),
        ("ctc", {"embedding": {}}, "an embedding, and nothing else, has the part `embedding`"),
        ("transducer", {"transducer": None}, "a transducer, and nothing else, has the part `transducer`"),
        ("transducer", {"transducer": {"context_size": 1, "start": [999]}}, r"start is \[999\], but the largest token"),
        ("embedding", {"embedding": None}, "an embedding, and nothing else, has the part `embedding`"),
        ("embedding", {"decoder": {"bidirectional": False}}, "has neither `streaming` nor `decoder`"),
    ],
)
def test_a_manifest_without_the_parts_of_its_kind_is_refused(
    bundles: dict[str, Path], tmp_path: Path, kind: str, changes: dict[str, Any], told: str
) -> None:
    copy = Path(shutil.copytree(bundles[kind], tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    (copy / "manifest.json").write_text(json.dumps(manifest | changes), encoding="utf-8")
    with pytest.raises(BundleError, match=rf"{re.escape(str(copy))}: .*{told}.*export the bundle again"):
        kind_of(Bundle.open(copy))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"context_size": 2, "start": [0, 0], "states": [STATE]}, "a predictor with states sees one token at a time"),
        ({"durations": [0, 1]}, "durations need a predictor with states"),
        ({"durations": [0, 0], "states": [STATE]}, "and one of them above 0"),
        ({"states": [STATE, STATE]}, "states of a predictor need names of their own"),
        ({"states": [STATE | {"shape": [2**20, 2**10]}]}, "the states of one predictor take 4294967296 bytes"),
    ],
)
def test_states_of_a_predictor_that_cannot_be_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Transducer.model_validate({"context_size": 1, "start": [0], **changes})


def test_nobody_outside_compares_a_kind_with_a_name() -> None:
    """`kind == "ctc"`, or a table by such names, belongs into the kind."""
    asks = re.compile(r"""kind\s*(==|!=|\bin\b|\bnot in\b)\s*[("'\[{]*\s*["'](ctc|transducer|embedding)""")
    rooms = ("pipelines", "backend", "repository", "bundle")
    found = [
        f"{path.relative_to(SOURCES)}:{number}"
        for room in rooms
        for path in sorted((SOURCES / room).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if asks.search(line)
    ]
    assert not found
