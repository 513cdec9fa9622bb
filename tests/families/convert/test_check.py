"""`check_precision`: drift with known answers, and inputs from files of every sort."""

import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
from onnx import TensorProto, helper

import graphs
from tritone.errors import BundleError, ExportError, InputError
from tritone.families.convert.calls import InputFiles
from tritone.families.convert.check import Limits, check_precision, open_side
from tritone.families.convert.convert import convert_onnx
from tritone.families.convert.drift import compare
from tritone.runtime import TensorSpec

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


class Fixed:
    """A graph that returns arrays, call by call."""

    def __init__(self, **outputs: list[object]) -> None:
        self._outputs = {name: [np.asarray(each) for each in arrays] for name, arrays in outputs.items()}
        self.inputs = {"x": TensorSpec(FLOAT, (None,))}
        self.outputs = {name: TensorSpec(arrays[0].dtype, arrays[0].shape) for name, arrays in self._outputs.items()}

    def __call__(self, inputs: object, outputs: list[str]) -> list[np.ndarray]:
        return [self._outputs[name].pop(0) for name in outputs]


CALLS = [{"x": np.zeros(1, np.float32)}]


def test_drift_is_what_arithmetic_says() -> None:
    first = Fixed(y=[[[3.0, 4.0], [1.0, 0.0]], [[0.0, 0.0]]], n=[[1, 2, 3, 4], [5]], s=[["a", "b"], ["c"]])
    other = Fixed(y=[[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0]]], n=[[1, 2, 3, 2], [5]], s=[["a", "x"], ["c"]])
    count, (y, n, s) = compare(first, other, CALLS * 2)
    assert (count, y.values, y.largest) == (2, 6, 1.0)
    assert y.mean == pytest.approx(2 / 6)
    assert y.size == pytest.approx(math.sqrt(26 / 6))
    assert y.cosine == 0.0  # of the second row; that of two rows of zeros is 1
    assert y.agreement == pytest.approx(2 / 3)
    assert (n.largest, n.mean, n.cosine, n.agreement) == (2.0, 2 / 5, None, 4 / 5)
    assert (s.largest, s.agreement) == (None, pytest.approx(2 / 3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_count_only_where_the_first_graph_has_others(bad: float) -> None:
    same = compare(Fixed(y=[[bad, 1.0]]), Fixed(y=[[bad, 1.0]]), CALLS)[1][0]
    assert (same.largest, same.cosine) == (0.0, 1.0)
    other = compare(Fixed(y=[[2.0, 1.0]]), Fixed(y=[[bad, 1.0]]), CALLS)[1][0]
    assert not other.is_finite
    assert Limits().broken_by(other) == ["y has numbers that are not finite, where the first graph's are"]


def test_limits_name_what_breaks_them() -> None:
    [drift] = compare(Fixed(y=[[[1.0, 0.0]]]), Fixed(y=[[[0.0, 1.0]]]), CALLS)[1]
    broken = Limits(max_difference=0.5, max_mean=0.5, min_cosine=0.9, min_agreement=0.9).broken_by(drift)
    assert [words.split(" of y")[0] for words in broken] == [
        "the largest difference",
        "the mean difference",
        "the least cosine",
        "the agreement",
    ]
    assert Limits(max_difference=1.0, max_mean=1.0, min_cosine=0.0, min_agreement=0.0).broken_by(drift) == []


def test_other_outputs_and_shapes_are_refused() -> None:
    with pytest.raises(ExportError, match="no output y; it has z"):
        compare(Fixed(y=[[1.0]]), Fixed(z=[[1.0]]), CALLS)
    with pytest.raises(ExportError, match="y is 1 in one graph and 2 in the other"):
        compare(Fixed(y=[[1.0]]), Fixed(y=[[1.0, 2.0]]), CALLS)
    with pytest.raises(ExportError, match="no inputs"):
        compare(Fixed(y=[[1.0]]), Fixed(y=[[1.0]]), [])


def test_two_files_are_compared_on_arrays(tmp_path: Path) -> None:
    one, other = graphs.scaled(tmp_path / "one.onnx", 2.0), graphs.scaled(tmp_path / "other.onnx", 2.5)
    np.savez(tmp_path / "x.npz", x=np.array([[1.0, -2.0]]))  # float64 becomes float32
    np.save(tmp_path / "three.npy", np.ones((3, 1, 2), np.float32))  # three calls
    files = InputFiles(paths=[tmp_path])
    result = check_precision(str(one), str(other), files, Limits(max_difference=0.9))
    assert result.calls == 4
    assert result.drift[0].largest == pytest.approx(1.0)
    assert result.broken == ["the largest difference of y is 1, the limit 0.9"]
    assert result.fields()["ok"] is False


def test_the_reference_rounds_float16_where_onnxruntime_does_not(tmp_path: Path) -> None:
    source = graphs.classifier(tmp_path / "model.onnx")
    half = convert_onnx(source, tmp_path / "half.onnx", target="fp16").path
    changes = [
        check_precision(str(source), side, None, Limits()).drift[0].largest
        for side in (str(half), f"{half},runtime=reference", f"{source},runtime=reference")
    ]
    assert changes[0] < changes[1] < 0.05
    assert changes[2] < 1e-5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{}/model.onnx,speed=3", "speed is not key=value"),
        ("{}/model.onnx,role=model", "role choose among the graphs of a bundle"),
        ("{}/model.onnx,threads=many", "threads is a number"),
    ],
)
def test_a_side_that_is_written_wrongly_is_refused(text: str, why: str, tmp_path: Path) -> None:
    graphs.scaled(tmp_path / "model.onnx", 2.0)
    with pytest.raises(ValueError, match=why):
        open_side(text.format(tmp_path))


def test_a_graph_of_a_bundle_is_chosen_by_its_role(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="several graphs, choose one: role=encoder"):
        open_side("demo-asr")
    with pytest.raises(BundleError, match="no such graph: role=encoder"):
        open_side("demo-asr,role=joiner")
    result = check_precision("demo-asr,role=decoder", "demo-asr,role=decoder,threads=1", None, Limits())
    assert result.broken == []


def test_audio_is_a_waveform_with_its_length(tmp_path: Path) -> None:
    for name, seconds in (("a.wav", 0.5), ("b.wav", 0.25)):
        soundfile.write(tmp_path / name, np.full(round(8000 * seconds), 0.5), 8000)
    inputs = {"waveform": TensorSpec(FLOAT, (None, None)), "num_samples": TensorSpec(INT, (None,))}
    [call] = InputFiles(paths=[tmp_path], rows=2, sample_rate=8000).calls(inputs)
    assert call["num_samples"].tolist() == [4000, 2000]
    assert call["waveform"].shape == (2, 4000)
    assert not call["waveform"][1, 2000:].any()


@pytest.mark.parametrize(("shape", "dtype"), [((None, 8, 12, 3), FLOAT), ((2, 3, 8, 12), np.dtype(np.uint8))])
def test_images_have_the_layout_size_and_type_of_the_input(
    shape: tuple[int | None, ...], dtype: np.dtype, tmp_path: Path
) -> None:
    from PIL import Image

    Image.new("RGB", (24, 16), (255, 0, 51)).save(tmp_path / "red.png")
    [call] = InputFiles(paths=[tmp_path]).calls({"image": TensorSpec(dtype, shape)})
    image = call["image"]
    assert image.dtype == dtype
    assert image.shape == tuple(size or 1 for size in shape)
    pixel = image[0, 1, 1] if shape[3] == 3 else image[0, :, 1, 1]
    np.testing.assert_allclose(pixel, [1.0, 0.0, 0.2] if dtype == FLOAT else [255, 0, 51], atol=1e-6)


def test_texts_are_strings_or_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "good": 1, "film": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "list.txt").write_text("good film\n\nbad\n", encoding="utf-8")
    files = InputFiles(paths=[tmp_path / "list.txt"], rows=2, tokenizer=tmp_path / "tokenizer.json")
    [strings] = files.calls({"text": TensorSpec(np.dtype(object), (None, 1))})
    assert strings["text"].tolist() == [["good film"], ["bad"]]
    names = ("input_ids", "attention_mask")
    [call] = files.calls({name: TensorSpec(INT, (None, 3)) for name in names})
    assert call["input_ids"].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert call["attention_mask"].tolist() == [[1, 1, 0], [1, 0, 0]]
    [call] = files.calls({name: TensorSpec(INT, (None, 1)) for name in names})
    assert call["input_ids"].tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.wav", b"", "recordings go into a graph that takes one float input"),
        ("x.png", b"", "images go into"),
        ("x.txt", b"text", "texts go into"),
        ("x.npz", b"PK", "not an array file"),
        ("x.pdf", b"", "none of the files that inputs are read from"),
    ],
)
def test_files_that_do_not_fit_are_refused(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    inputs = {name: TensorSpec(INT, (None, None, None)) for name in "ab"}
    with pytest.raises(InputError, match=why):
        list(InputFiles(paths=[tmp_path / name]).calls(inputs))
    with pytest.raises(InputError, match="there is no file or folder"):
        list(InputFiles(paths=[tmp_path / "nowhere"]).calls(inputs))


def test_pickled_arrays_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([object()]))
    with pytest.raises(InputError, match="has objects in it"):
        list(InputFiles(paths=[tmp_path / "x.npz"]).calls({"x": TensorSpec(FLOAT, (None,))}))


def test_arrays_that_do_not_fit_say_what_would(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 5), np.float32))
    inputs = {"x": TensorSpec(FLOAT, (None, 4))}
    with pytest.raises(InputError, match=r"x is float32 2x5; the graph takes float32 \?x4"):
        list(InputFiles(paths=[tmp_path / "x.npz"]).calls(inputs))


def test_graphs_with_other_inputs_cannot_be_compared(tmp_path: Path) -> None:
    one = graphs.scaled(tmp_path / "one.onnx", 2.0)
    with pytest.raises(InputError, match="take different inputs: x and image"):
        check_precision(str(one), str(graphs.images(tmp_path / "two.onnx")), None, Limits())
    value = [helper.make_tensor_value_info(name, TensorProto.INT64, [None, None]) for name in "xy"]
    ids = graphs.save(tmp_path / "ids.onnx", [helper.make_node("Identity", ["x"], ["y"])], value[:1], value[1:], {})
    with pytest.raises(InputError, match="no array fits both"):
        check_precision(str(one), str(ids), None, Limits())
