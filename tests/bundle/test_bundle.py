"""Opening, checking and writing bundles, also hostile ones."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy
from tritone.bundle import Bundle, BundleWriter, resolve, shipped_bundles
from tritone.bundle import bundle as bundle_module
from tritone.bundle.manifest import Manifest
from tritone.errors import BundleError


@pytest.fixture
def damaged(toy_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the toy bundle to damage."""
    return Path(shutil.copytree(toy_bundle, tmp_path / "damaged"))


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_an_opened_bundle_names_its_parts(toy_bundle: Path) -> None:
    bundle = Bundle.open(toy_bundle)
    assert bundle.manifest.name == "toy"
    assert bundle.manifest.frame_s == 0.04
    assert len(bundle.vocabulary) == len(toy.TOKENS)
    assert bundle.artifact("encoder") == toy_bundle / "encoder.onnx"
    assert bundle.artifact("streaming_encoder", precision="fp32") == toy_bundle / "streaming_encoder.onnx"
    assert set(bundle.files) == {path.name for path in toy_bundle.iterdir()}
    bundle.verify()


def test_an_absent_role_says_what_is_held_and_how_to_get_it(tmp_path: Path) -> None:
    bundle = Bundle.open(toy.write_toy_bundle(tmp_path / "offline", streaming=False))
    assert bundle.has("encoder")
    assert not bundle.has("streaming_encoder")
    with pytest.raises(BundleError, match=r"no graph for streaming_encoder.*holds encoder.*with --streaming"):
        bundle.artifact("streaming_encoder")


@pytest.mark.parametrize("name", ["encoder.onnx", "weights.bin", "tokens.txt"])
def test_a_missing_file_is_named(damaged: Path, name: str) -> None:
    (damaged / name).unlink()
    with pytest.raises(BundleError, match=f"the file {name} is missing"):
        Bundle.open(damaged)


def test_an_altered_file_is_named_by_verify(damaged: Path) -> None:
    weights = bytearray((damaged / "weights.bin").read_bytes())
    weights[100] ^= 1
    (damaged / "weights.bin").write_bytes(weights)
    with pytest.raises(BundleError, match=r"the file weights\.bin was altered or damaged"):
        Bundle.open(damaged).verify()


def test_a_newer_schema_asks_for_an_upgrade_whatever_else_changed(damaged: Path) -> None:
    edit(damaged, lambda manifest: manifest.update(schema_version=2, novelty={}, kind="telepathy"))
    with pytest.raises(BundleError, match=r"schema_version 2; this Tritone reads up to 1\. Upgrade"):
        Bundle.open(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("sample_rate"), "sample_rate: this field is required but absent"),
        (lambda m: m["vocabulary"].update(size=0), r"vocabulary\.size: Input should be greater than 0, got '0'"),
        (lambda m: m.update(flavour="mint"), "flavour: unknown field"),
        (lambda m: m["encoder"].update(min_samples="many"), r"encoder\.min_samples: .*got 'many'"),
        (lambda m: m["artifacts"][0].update(sha256=[]), r"artifacts\.0: .*2 files but 0 sha256 sums"),
        (lambda m: m.update(schema_version="one"), "schema_version: "),
        (lambda m: m["vocabulary"].update(size=39), r"holds 40 tokens, but vocabulary\.size in the manifest is 39"),
        (lambda m: m["vocabulary"].update(blank_id=40), r"vocabulary\.blank_id is 40, but the largest token id is 39"),
        (lambda m: m.update(sample_rate=1), r"sample_rate: .*greater than or equal to 1000"),
        (lambda m: m.update(name=""), "name: .*at least 1 character"),
        (lambda m: m["features"].update(low_freq=float("nan")), r"features\.low_freq: .*finite number"),
        (lambda m: m["streaming"].update(shift_samples=9999), r"streaming: .*would be skipped"),
        (lambda m: m["streaming"].update(window_samples=799, shift_samples=1), r"manifest: .*would give no frame"),
        (lambda m: m["streaming"]["states"][0].update(name="level"), r"streaming: .*names of their own"),
        (lambda m: m["streaming"]["states"][0].update(name="waveform"), r"streaming: .*names of their own"),
        (lambda m: m["streaming"].update(left_chunks=-1), r"streaming: .*left_chunks -1 .*only a flexible graph"),
        (lambda m: m["streaming"].update(left_chunks=-2), r"streaming\.left_chunks: .*greater than or equal to -1"),
        (
            lambda m: m["streaming"]["states"][1].update(shape=[2, "left_frames"]),
            r"streaming: .*axis left_frames \(\['level'\]\): only a flexible graph",
        ),
        (
            lambda m: m["streaming"]["states"][1].update(shape=["left_frames", "left_frames"]),
            r"states\.1: .*more than one axis left_frames",
        ),
        (lambda m: m["streaming"].update(trained={4: 0}), r"streaming: .*trained and frame_samples are of a flexible"),
        (lambda m: m["streaming"].update(frame_samples=9), r"streaming: .*trained and frame_samples are of a flexible"),
        (
            lambda m: m["streaming"].update(flexible=True, trained={"5": 0}),
            r"streaming: .*is not among what the model was trained for",
        ),
        (lambda m: m["streaming"]["states"][0].update(name="language"), r"streaming: .*names of their own"),
        (
            lambda m: m["streaming"].update(flexible=True, chunk_size=5),
            r"are \(2720, 2560\), but a flexible graph's follow from the chunk size: \(3360, 3200\)",
        ),
        (
            lambda m: m["streaming"].update(
                flexible=True, left_chunks=2**20, states=[{"name": "s", "shape": [16, "left_frames"], "dtype": "int64"}]
            ),
            r"streaming: .*take 536870912 bytes",
        ),
    ],
)
def test_a_wrong_field_is_named(damaged: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    edit(damaged, change)
    with pytest.raises(BundleError, match=message):
        Bundle.open(damaged)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"[1]", "must hold a JSON object, got a list"),
        (b"\xff\xfe\xfd", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " * (4 * 2**20 + 1), "a manifest has at most 4194304"),
    ],
)
def test_a_manifest_that_is_no_manifest_is_refused(damaged: Path, content: bytes, message: str) -> None:
    (damaged / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=message):
        Bundle.open(damaged)


@pytest.mark.parametrize(
    "name", ["../secret.onnx", "/etc/passwd", "a/../../secret.onnx", "..\\secret.onnx", "", "a\0b"]
)
def test_a_file_name_that_leaves_the_folder_is_refused(damaged: Path, name: str) -> None:
    (damaged.parent / "secret.onnx").touch()
    edit(damaged, lambda manifest: manifest["artifacts"][0].update(files=[name, "weights.bin"]))
    with pytest.raises(BundleError, match="names must stay inside the bundle"):
        Bundle.open(damaged)
    edit(damaged, lambda m: (m["artifacts"].pop(0), m["vocabulary"].update(file=name)))
    with pytest.raises(BundleError, match="names must stay inside the bundle"):
        Bundle.open(damaged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["streaming"].update(chunk_size=10**9), r"streaming\.chunk_size: .*less than or equal to 1048576"),
        (lambda m: m["streaming"].update(window_samples=10**12), r"streaming\.window_samples: .*less than or equal"),
        (lambda m: m["encoder"].update(tail_samples=10**12), r"encoder\.tail_samples: .*less than or equal"),
        (lambda m: m["encoder"].update(min_samples=10**400), r"encoder\.min_samples: "),
        (lambda m: m["features"].update(frame_shift=10**300), r"features\.frame_shift: "),
        (lambda m: m.update(sample_rate=10**12), r"sample_rate: .*less than or equal to 768000"),
        (
            lambda m: m["streaming"]["states"][0].update(shape=[2**20] * 3),
            r"streaming: .*take 9223372036854775812 bytes",
        ),
        (lambda m: m["streaming"]["states"][0].update(shape=[1] * 100), r"states\.0\.shape: .*at most 8 items"),
    ],
)
def test_numbers_that_would_take_all_memory_are_refused(
    damaged: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(damaged, change)
    with pytest.raises(BundleError, match=message):
        Bundle.open(damaged)


def test_names_that_no_file_can_have_are_missing_and_nothing_worse(damaged: Path) -> None:
    with pytest.raises(BundleError, match="there is no bundle folder"):
        Bundle.open("x" * 5000)
    edit(damaged, lambda manifest: manifest["artifacts"][0].update(files=["x" * 5000, "weights.bin"]))
    with pytest.raises(BundleError, match="is missing"):
        Bundle.open(damaged)


def test_a_manifest_that_is_a_pipe_or_a_device_is_refused_without_reading_it(damaged: Path) -> None:
    (damaged / "manifest.json").unlink()
    os.mkfifo(damaged / "manifest.json")
    with pytest.raises(BundleError, match="is not a regular file"):
        Bundle.open(damaged)
    (damaged / "manifest.json").unlink()
    (damaged / "manifest.json").symlink_to("/dev/zero")
    with pytest.raises(BundleError, match="is not a regular file"):
        Bundle.open(damaged)


def test_a_link_that_leaves_the_folder_is_refused(damaged: Path) -> None:
    (damaged / "weights.bin").rename(damaged.parent / "weights.bin")
    (damaged / "weights.bin").symlink_to(damaged.parent / "weights.bin")
    with pytest.raises(BundleError, match=r"weights\.bin is a link to .*, outside the bundle"):
        Bundle.open(damaged)


def test_a_bundle_reached_through_a_link_opens(toy_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(toy_bundle)
    assert Bundle.open(tmp_path / "link").manifest.name == "toy"


def test_what_is_not_a_bundle_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BundleError, match=r"is not a bundle: it has no manifest\.json"):
        Bundle.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="is a file; a bundle is a folder"):
        Bundle.open(tmp_path / "file")
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"no bundle folder 'demo'.*\(shipped: none in this installation\)"):
        Bundle.open("demo")


def test_a_shipped_bundle_opens_by_name_and_a_wrong_name_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_module, "SHIPPED", tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    toy.write_toy_bundle(tmp_path / "toy-a")
    toy.write_toy_bundle(tmp_path / "toy-b")
    (tmp_path / "unfinished").mkdir()
    assert list(shipped_bundles()) == ["toy-a", "toy-b"]
    assert resolve("toy-b") == tmp_path / "toy-b"
    assert Bundle.open("toy-a").path == tmp_path / "toy-a"
    with pytest.raises(BundleError, match=r"'toy-c'.*\(shipped: toy-a, toy-b\)"):
        resolve("toy-c")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def crash() -> None:
        with BundleWriter(tmp_path / "new") as writer:
            (writer.folder / "encoder.onnx").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_that_names_unwritten_files_is_not_committed(toy_bundle: Path, tmp_path: Path) -> None:
    manifest = Bundle.open(toy_bundle).manifest
    with BundleWriter(tmp_path / "new") as writer:
        writer.write_tokens(toy.TOKENS)
        with pytest.raises(BundleError, match=r"encoder\.onnx is missing"):
            writer.commit(manifest)
    assert list(tmp_path.iterdir()) == []


def test_an_older_bundle_is_replaced_whole(tmp_path: Path) -> None:
    toy.write_toy_bundle(tmp_path / "b", name="old")
    toy.write_toy_bundle(tmp_path / "b", streaming=False, name="new")
    assert Bundle.open(tmp_path / "b").manifest.name == "new"
    assert {path.name for path in (tmp_path / "b").iterdir()} == {
        "manifest.json",
        "tokens.txt",
        "encoder.onnx",
        "weights.bin",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("told", ["README.md", "evaluation.json"])
def test_a_model_card_is_part_of_no_bundle_but_goes_with_the_one_it_tells_about(tmp_path: Path, told: str) -> None:
    bundle = toy.write_toy_bundle(tmp_path / "b", name="old")
    (bundle / told).write_text("All about old.", encoding="utf-8")
    assert told not in Bundle.open(bundle).files
    toy.write_toy_bundle(bundle, name="new")
    assert Bundle.open(bundle).manifest.name == "new"
    assert not (bundle / told).exists()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_readme_alone_does_not_make_a_folder_replaceable(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("My project.", encoding="utf-8")
    with pytest.raises(BundleError, match="has content and is not a bundle"):
        BundleWriter(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "My project."


def test_a_folder_with_other_content_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(BundleError, match="has content and is not a bundle"):
        BundleWriter(tmp_path)
    bundle = toy.write_toy_bundle(tmp_path / "b")
    (bundle / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BundleError, match=r"a bundle and other files \(notes\.txt\)"):
        BundleWriter(bundle)
    assert (bundle / "notes.txt").read_text(encoding="utf-8") == "mine"
    with pytest.raises(BundleError, match="not a folder"):
        BundleWriter(tmp_path / "thesis.tex")


def test_a_new_bundle_can_be_read_by_others(tmp_path: Path) -> None:
    (tmp_path / "sibling").mkdir()  # made with the rights that this process gives by default
    bundle = toy.write_toy_bundle(tmp_path / "deep" / "er" / "b")
    assert bundle.stat().st_mode == (tmp_path / "sibling").stat().st_mode


def test_a_manifest_survives_the_disk(toy_bundle: Path) -> None:
    manifest = Bundle.open(toy_bundle).manifest
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
