"""What kinds ask of a manifest, and who may know their names."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toy import write_toy_bundle
from toy_speaker import write_toy_speaker
from toy_transducer import write_toy_transducer
from tritone.bundle import Bundle
from tritone.bundle.manifest import SHARED, Manifest
from tritone.errors import BundleError
from tritone.kinds import kind_named, kind_of
from tritone.kinds.transducer.part import TransducerPart
from tritone.pipelines.kind import built_in

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
        ("ctc", {"transducer": {"context_size": 1, "start": [0]}}, "which has no part `transducer`"),
        ("ctc", {"embedding": {}}, "which has no part `embedding`"),
        ("transducer", {"transducer": None}, "which needs the part `transducer`"),
        ("transducer", {"transducer": {"context_size": 1, "start": [999]}}, r"start is \[999\], but the largest token"),
        ("embedding", {"embedding": None}, "which needs the part `embedding`"),
        ("embedding", {"decoder": {"bidirectional": False}}, "which has no part `decoder`"),
    ],
)
def test_a_manifest_without_the_parts_of_its_kind_is_refused(
    bundles: dict[str, Path], tmp_path: Path, kind: str, changes: dict[str, Any], told: str
) -> None:
    copy = Path(shutil.copytree(bundles[kind], tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    (copy / "manifest.json").write_text(json.dumps(manifest | changes), encoding="utf-8")
    with pytest.raises(BundleError, match=rf"{re.escape(str(copy))}.*: .*{told}.*export the bundle again"):
        kind_of(Bundle.open(copy))


# An example of each part that a manifest may have or not.
ATTENDING = {"text_context": 8, "layers": 1, "heads": 1, "head_dim": 1, "eot": 1}
STEP = {"chunk_size": 1, "lookahead": 0, "last_frames": 1, "fifo_length": 1, "update_period": 1}
IDS = {"name": "inputs", "type": "INT32", "dims": [-1], "sample": [8]}
LENGTHS = {"name": "text_lengths", "type": "INT32", "dims": [1], "reshape": [], "sample": [1]}
SCORES = {"name": "logits", "type": "FP32", "dims": [-1, 2]}
PARTS: dict[str, Any] = {
    "sample_rate": 16000,
    "features": {},
    "encoder": {"subsampling_rate": 4, "output_dim": 7, "min_samples": 640},
    "generic": {"inputs": [IDS, LENGTHS], "outputs": [SCORES], "max_batch_size": 64},
    "serving": {},
    "punctuation": {"marks": ["", "."], "full_stop": 1, "unknown": 0},
    "vocabulary": {"size": 8, "units": "char", "blank_id": 0},
    "streaming": {
        **{"chunk_size": 1, "left_chunks": 0, "window_samples": 640, "shift_samples": 640, "states": []},
        **{"flexible": True, "trained": {"1": 0}},
    },
    "decoder": {"bidirectional": False},
    "transducer": {"context_size": 1, "start": [0]},
    "embedding": {},
    "whisper": {**ATTENDING, "window_frames": 8, "sot": 2, "no_timestamps": 3, "timestamp_begin": 4},
    "encoder_decoder": {**ATTENDING, "max_samples": 8, "max_positions": 8, "form": "gelu", "prompt": [2]},
    "diarization": {"speakers": 2, "recordings": STEP, "streams": [{**STEP, "chunk_size": 2}]},
    "hotwords": {"no_bias": None},
    "segmentation": {"window_samples": 400, "field_samples": 400, "speakers": 3, "at_once": 2},
    "synthesis": {"espeak_voice": "en", "phonemes": {"_": [0], "^": [1], "$": [2]}},
    "encoder.languages": {"en": 0},
    "encoder.text_forms": (0, 1),
    "encoder.tags": ("language",),
}
SPEECH = {"sample_rate", "features", "encoder", "vocabulary"}
ASKED = {"encoder.languages", "encoder.text_forms"}
# Of each kind, the parts that it needs, and those that it may have.
KINDS: dict[str, tuple[set[str], set[str]]] = {
    "ctc": (SPEECH, {"streaming", "decoder", "encoder.tags"} | ASKED),
    "transducer": (SPEECH | {"transducer"}, {"streaming"} | ASKED),
    "paraformer": (SPEECH, {"streaming", "hotwords"} | ASKED),
    "embedding": ({"sample_rate", "features", "encoder", "embedding"}, set()),
    "whisper": (SPEECH | {"whisper"}, set()),
    "encoder-decoder": (SPEECH | {"encoder_decoder"}, set()),
    "voice-activity": ({"sample_rate", "features", "encoder", "streaming"}, set()),
    "diarization": ({"sample_rate", "features", "encoder", "streaming", "diarization"}, set()),
    "segmentation": ({"sample_rate", "features", "encoder", "segmentation"}, set()),
    "punctuation": ({"generic", "punctuation"}, {"serving"}),
    "synthesis": ({"sample_rate", "synthesis"}, set()),
    "generic": ({"generic"}, {"serving"}),
}


def described(kind: str, parts: set[str]) -> dict[str, Any]:
    """The content of a manifest that has these parts and no others."""
    content: dict[str, Any] = {"name": "m", "kind": kind, "artifacts": [], "provenance": {"family": "toy"}}
    content |= {part: PARTS[part] for part in parts if "." not in part}
    if asked := {part.partition(".")[2]: PARTS[part] for part in parts if "." in part}:
        content["encoder"] = PARTS["encoder"] | asked | ({"language": "en"} if "languages" in asked else {})
    return content


def faults(kind: str, parts: set[str]) -> set[str]:
    try:
        Manifest.model_validate(described(kind, parts))
    except ValidationError as error:
        return {each["msg"] for each in error.errors()}
    return set()


def test_every_kind_and_every_part_of_a_manifest_is_in_these_tables() -> None:
    assert KINDS.keys() == set(built_in())
    own = {part.key for kind in KINDS for part in kind_named(kind).parts.own}
    assert {name for name in PARTS if "." not in name} == {*SHARED, *own}


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_a_kind_does_not_have_is_refused_and_one_that_it_needs_is_missed(kind: str) -> None:
    needs, may_have = KINDS[kind]
    for part in PARTS:
        whole = needs | {part} | ({"encoder"} if "." in part else set())
        refused = f"unknown field: kind is {kind!r}, which has no part `{part}`" in faults(kind, whole)
        assert refused == (part not in needs | may_have), part
    for part in needs:
        said = f"this field is required but absent: kind is {kind!r}, which needs the part `{part}`"
        assert faults(kind, needs - {part}) == {said}


@pytest.mark.parametrize("kind", KINDS)
def test_a_manifest_is_written_as_it_was_before_its_parts_were_the_kinds_own(kind: str) -> None:
    """Files of models with audio have a null for each part that there was then and that they have not."""
    needs, _ = KINDS[kind]
    written = list(Manifest.model_validate(described(kind, needs)).model_dump())
    ends = ["artifacts", "provenance"]
    if "generic" in needs:
        middle = ["generic", "serving", *(["punctuation"] if kind == "punctuation" else [])]
    else:
        middle = [
            "sample_rate",
            *(each for each in ("features", "encoder") if each in needs),
            "vocabulary",
            "streaming",
        ]
        middle += ["decoder", "transducer", "embedding", "whisper", "encoder_decoder", "diarization", "hotwords"]
        middle += ["segmentation", *(each for each in ("synthesis",) if each in needs)]
    assert written == ["schema_version", "name", "kind", *middle, *ends]


def test_a_bundle_of_an_unknown_kind_can_be_read_and_keeps_its_parts(tmp_path: Path) -> None:
    content = described("telepathy", {"sample_rate"}) | {"waves": {"length": 3}}
    (tmp_path / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    bundle = Bundle.open(tmp_path)
    assert bundle.manifest.model_dump()["waves"] == {"length": 3}
    with pytest.raises(BundleError, match=r"is of kind 'telepathy'; known are .*ctc"):
        kind_of(bundle)


@pytest.mark.parametrize("bundle", ["demo-asr", "demo-transducer", "demo-speaker"])
def test_a_shipped_bundle_with_a_part_of_another_kind_is_refused_from_its_file(tmp_path: Path, bundle: str) -> None:
    copy = Path(shutil.copytree(SOURCES / "bundles" / bundle, tmp_path / bundle))
    written = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    assert kind_of(Bundle.open(copy)).fault(Bundle.open(copy).manifest) is None
    _, may_have = KINDS[written["kind"]]
    for part in {name for name in PARTS if "." not in name} - may_have - {name for name in written if written[name]}:
        (copy / "manifest.json").write_text(json.dumps(written | {part: PARTS[part]}), encoding="utf-8")
        with pytest.raises(BundleError):
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
        TransducerPart.model_validate({"context_size": 1, "start": [0], **changes})


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
