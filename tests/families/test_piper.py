"""Voices of Piper: their two files become a bundle, and nothing else does."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import tritone
from toy_voice import IDS, sound, write_espeak, write_toy_voice
from tritone.bundle import Bundle
from tritone.cli.main import app
from tritone.errors import BundleError, ExportError, MissingDependencyError, OperatorError
from tritone.families.piper.export import export_piper
from tritone.kinds.synthesis.pipeline import phoneme_ids, synthesis_of
from tritone.repository import build_repository


@pytest.fixture(autouse=True)
def _espeak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{write_espeak(tmp_path / 'bin')}:/usr/bin:/bin")


def test_a_voice_becomes_a_bundle_that_speaks_as_its_graph_does(tmp_path: Path) -> None:
    voice = write_toy_voice(tmp_path / "piper")
    found = CliRunner().invoke(app, ["export", "piper", str(voice), "--output", str(tmp_path / "ann")])
    assert found.exit_code == 0, found.output
    assert "largest difference from the original 0.00e+00" in found.stderr
    bundle = Bundle.open(tmp_path / "ann")
    manifest = bundle.manifest
    assert (manifest.kind, manifest.name, manifest.sample_rate) == ("synthesis", "ann", 22050)
    written = json.loads((tmp_path / "ann" / "manifest.json").read_text(encoding="utf-8"))
    assert "encoder" not in written
    assert written["synthesis"]["language"] == "en-US"
    spoken = tritone.load(bundle.path).speak("Abc.")
    np.testing.assert_array_equal(spoken.waveform, sound("abc."))


def with_noise(voice: Path, drawing: dict[str, object]) -> Path:
    """Add noise to a toy voice: its output, in half the bits where `drawing` says so, and nodes that draw."""
    model = onnx.load(voice)
    graph = model.graph
    graph.node[-1].output[0] = "clean"
    node = helper.make_node
    operator, dtype = str(drawing.pop("op", "RandomNormalLike")), drawing.get("dtype", TensorProto.FLOAT)
    graph.node.extend(
        [
            node("Cast", ["clean"], ["shaped"], to=dtype),
            node(operator, ["shaped"], ["drawn"], **drawing),
            node(operator, ["shaped"], ["other"], **drawing),
            node("Sub", ["drawn", "other"], ["apart"]),
            node("Cast", ["apart"], ["loud"], to=TensorProto.FLOAT),
            node("Slice", ["scales", "first", "second"], ["scale"]),
            node("Mul", ["loud", "scale"], ["noise"]),
            node("Add", ["clean", "noise"], ["output"]),
        ]
    )
    for name, number in (("first", 0), ("second", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    onnx.save(model, voice)
    return voice


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_a_text_sounds_the_same_at_every_call_and_in_every_process(tmp_path: Path, dtype: int) -> None:
    quiet = {"noise_scale": 0.01, "length_scale": 1, "noise_w": 0.0}
    path = with_noise(write_toy_voice(tmp_path / "piper", inference=quiet), {"dtype": dtype, "seed": 1.0})
    bundle = export_piper(voice=path, output=tmp_path / "ann").bundle
    voice, again = tritone.load(bundle.path), tritone.load(bundle.path)
    spoken = voice.speak("Abc, it rains.").waveform
    voice.speak("Something else.")
    np.testing.assert_array_equal(voice.speak("Abc, it rains.").waveform, spoken)
    np.testing.assert_array_equal(again.speak("Abc, it rains.").waveform, spoken)
    noise = spoken - sound("abc, it rains.")
    # The difference of two tables' places, of which each has the variance 1.
    assert noise.std() == pytest.approx(0.01 * 2**0.5, rel=0.1)
    assert abs(noise.mean()) < 1e-3


@pytest.mark.parametrize("drawing", [{"op": "RandomUniformLike"}, {"mean": 1.0}, {"scale": 0.5}])
def test_a_graph_that_draws_other_noise_is_refused(tmp_path: Path, drawing: dict[str, object]) -> None:
    voice = with_noise(write_toy_voice(tmp_path / "piper"), drawing)
    with pytest.raises(ExportError, match="draws noise that voices of Piper have not"):
        export_piper(voice=voice, output=tmp_path / "ann")


def test_a_voice_may_give_the_lengths_of_phonemes_beside_its_sound(tmp_path: Path) -> None:
    path = write_toy_voice(tmp_path / "piper")
    model = onnx.load(path)
    model.graph.node.append(helper.make_node("Identity", ["repeats"], ["durations"]))
    model.graph.output.insert(0, helper.make_tensor_value_info("durations", TensorProto.INT64, [1]))
    onnx.save(model, path)
    bundle = export_piper(voice=path, output=tmp_path / "ann").bundle
    np.testing.assert_array_equal(tritone.load(bundle.path).speak("Abc.").waveform, sound("abc."))


def test_a_voice_is_loaded_without_an_export_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITONE_CACHE", str(tmp_path / "cache"))
    voice = tritone.load(write_toy_voice(tmp_path / "piper"))
    assert isinstance(voice, tritone.Voice)
    assert voice.speak("a").audio_s == pytest.approx(len(sound("a")) / 22050)


def test_numbers_of_phonemes_have_pads_between_them_and_marks_at_both_ends(tmp_path: Path) -> None:
    changes = {"phoneme_map": {"x": ["k", "s"]}, "phoneme_id_map": IDS | {"a": [7, 8]}}
    report = export_piper(voice=write_toy_voice(tmp_path / "piper", **changes), output=tmp_path / "ann")
    voice = synthesis_of(report.bundle)
    begin, end, pad = IDS["^"][0], IDS["$"][0], IDS["_"][0]
    b, k, s = (IDS[each][0] for each in "bks")
    assert phoneme_ids("ab", voice) == [begin, pad, 7, 8, pad, b, pad, end]
    assert phoneme_ids("xb", voice) == [begin, pad, k, pad, s, pad, b, pad, end]
    assert phoneme_ids("Ωb", voice) == [begin, pad, b, pad, end], "what the voice does not know is left out"


def test_speakers_have_names_or_numbers(tmp_path: Path) -> None:
    named = export_piper(voice=write_toy_voice(tmp_path / "one", ["ann", "ben"]), output=tmp_path / "named")
    assert synthesis_of(named.bundle).speakers == {"ann": 0, "ben": 1}
    plain = write_toy_voice(tmp_path / "two", ["ann", "ben"], speaker_id_map={})
    assert synthesis_of(export_piper(voice=plain, output=tmp_path / "numbered").bundle).speakers == {"0": 0, "1": 1}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phoneme_type": "text"}, "phoneme_type|espeak-ng"),
        ({"phoneme_id_map": {"a": [1]}}, "no number of _ \\^ \\$"),
        ({"espeak": {"voice": "--help"}}, "espeak_voice|pattern"),
        ({"audio": {}}, "required but absent"),
        ({"num_speakers": 3}, "takes input, input_lengths, scales .* 3 speakers takes .* sid"),
    ],
)
def test_configurations_that_are_none_are_refused(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    voice = write_toy_voice(tmp_path / "piper", **changes)
    with pytest.raises(ExportError, match=expected):
        export_piper(voice=voice, output=tmp_path / "ann")
    assert not (tmp_path / "ann").exists()


def test_a_voice_without_its_second_file_and_a_graph_of_something_else_are_refused(tmp_path: Path) -> None:
    voice = write_toy_voice(tmp_path / "piper")
    beside = voice.with_name("voice.onnx.json")
    text = beside.read_text(encoding="utf-8")
    beside.unlink()
    with pytest.raises(ExportError, match=r"voice\.onnx\.json.*two files"):
        export_piper(voice=voice, output=tmp_path / "ann")
    beside.write_text(text[:-20], encoding="utf-8")
    with pytest.raises(ExportError, match="is not the configuration of a voice"):
        export_piper(voice=voice, output=tmp_path / "ann")
    beside.write_text(text, encoding="utf-8")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "other",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8), voice)
    with pytest.raises(ExportError, match="takes x and has 1 outputs; a voice of Piper"):
        export_piper(voice=voice, output=tmp_path / "ann")


def test_a_machine_without_espeak_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voice = write_toy_voice(tmp_path / "piper")
    bundle = export_piper(voice=voice, output=tmp_path / "ann").bundle
    monkeypatch.setenv("PATH", str(tmp_path))
    for attempt in (
        lambda: export_piper(voice=voice, output=tmp_path / "ben"),
        lambda: tritone.load(bundle.path).speak("a"),
        lambda: build_repository([bundle.path], tmp_path / "repository"),
    ):
        with pytest.raises(MissingDependencyError, match=r"apt-get install espeak-ng \(GPL 3"):
            attempt()


def test_a_voice_that_espeak_does_not_have_is_named(tmp_path: Path) -> None:
    voice = write_toy_voice(tmp_path / "piper", espeak={"voice": "nobody"})
    with pytest.raises(OperatorError, match=r"'nobody' does not work.*does not exist"):
        export_piper(voice=voice, output=tmp_path / "ann")


def test_manifests_of_two_minds_are_refused(tmp_path: Path) -> None:
    bundle = export_piper(voice=write_toy_voice(tmp_path / "piper"), output=tmp_path / "ann").bundle
    path = bundle.path / "manifest.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    for change, expected in (
        ({"kind": "ctc"}, "has no part `synthesis`"),
        (
            {"encoder": {"subsampling_rate": 1, "output_dim": 1, "min_samples": 1}},
            "kind is 'synthesis', which has no part `encoder`",
        ),
        ({"synthesis": None}, "required but absent"),
    ):
        path.write_text(json.dumps(written | change), encoding="utf-8")
        with pytest.raises(BundleError, match=expected):
            tritone.load(bundle.path)
