"""CT-Transformers of sherpa-onnx's folders: punctuation of texts.

model.onnx (model.int8.onnx), whose metadata have the words and the marks  ->  manifest.json, tokens.txt, the graphs
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from onnx import TensorProto

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Manifest, Precision
from tritone.errors import BundleError, ExportError
from tritone.families.export.report import ONNX_PACKAGES, provenance
from tritone.families.onnx.source import Source, read_metadata, read_source
from tritone.kinds.punctuation.part import PunctuationPart
from tritone.pipelines.graphs.contract import check_graph
from tritone.runtime import open_graph

CT_TRANSFORMER = "ct_transformer"
FILES: Mapping[Precision, str] = {"fp32": "model.onnx", "int8": "model.int8.onnx"}
NONE = "_"  # the mark of words that have none behind them
FULL_STOP = "\u3002"


def find_punctuation(folder: Path) -> dict[Precision, Path]:
    """The graphs of such a model by their precisions; none if the folder has something else."""
    found = {precision: folder / name for precision, name in FILES.items() if (folder / name).is_file()}
    if not found or (folder / "tokens.txt").is_file():
        return {}
    return found if read_metadata(next(iter(found.values()))).get("model_type") == CT_TRANSFORMER else {}


def import_punctuation(
    graphs: Mapping[Precision, Path], output: Path, name: str | None, progress: Callable[[str], None]
) -> Bundle:
    """Import a CT-Transformer.

    Raises:
        ExportError: a graph is damaged or another one, or its metadata do not have words and marks.
        BundleError: the output folder is in use for something else.
    """
    with BundleWriter(output) as writer:
        tokens, part, artifacts = None, None, []
        for precision, path in graphs.items():
            progress(f"reading {path.name}")
            source = read_source(path)
            _check_tensors(source)
            words, found = _words(source), _described(source)
            if tokens not in (None, words) or part not in (None, found):
                raise ExportError(f"{path} has other words or marks than the graphs beside it; are they of one model?")
            tokens, part = words, found
            shutil.copyfile(path, writer.folder / path.name)
            artifacts.append(writer.artifact("model", path.name, precision=precision))
        assert tokens is not None
        assert part is not None
        try:
            writer.write_tokens(tokens)
        except ValueError as error:
            raise ExportError(f"{path}: {error}") from error
        sources = {each.name: each for each in graphs.values()}
        manifest = Manifest(
            name=name or output.resolve().name,
            kind="punctuation",
            parts=(part.tensors, part),
            artifacts=tuple(artifacts),
            provenance=provenance("sherpa-onnx", sources, {"model_type": CT_TRANSFORMER}, ONNX_PACKAGES),
        )
        for artifact in artifacts:
            path = writer.folder / artifact.files[0]
            try:
                check_graph(open_graph(path), Bundle(writer.folder, manifest), "model", path)
            except BundleError as error:
                raise ExportError(str(error).replace(" Export the bundle again.", "")) from error
        return writer.commit(manifest)


def _check_tensors(source: Source) -> None:
    inputs = [(each.name, each.dtype, len(each.shape)) for each in source.inputs]
    wanted = [("inputs", TensorProto.INT32, 2), ("text_lengths", TensorProto.INT32, 1)]
    if inputs != wanted or [each.name for each in source.outputs] != ["logits"]:
        shown = ", ".join(map(str, (*source.inputs, *source.outputs)))
        raise ExportError(
            f"{source.path} has {shown}; a CT-Transformer has inputs (any, any) and text_lengths (any) of int32, and "
            "gives logits"
        )


def _words(source: Source) -> list[str]:
    words = _listed(source, "tokens")
    if len(words) != source.integer("vocab_size") or len(set(words)) < len(words):
        raise ExportError(f"{source.path}: the metadata have {len(set(words))} words, and vocab_size is another number")
    return words


def _described(source: Source) -> PunctuationPart:
    marks, words = _listed(source, "punctuations"), _listed(source, "tokens")
    unknown = source.metadata.get("unk_symbol", "<unk>")
    if unknown not in words or FULL_STOP not in marks or len(marks) > 64:
        raise ExportError(
            f"{source.path}: the metadata have the marks {str(marks)[:200]} and {unknown[:80]!r} for unknown words; "
            f"expected some with {FULL_STOP}, and a word of the vocabulary"
        )
    return PunctuationPart(
        marks=tuple("" if mark == NONE else "<" if mark.startswith("<") else mark[:4] for mark in marks),
        full_stop=marks.index(FULL_STOP),
        unknown=words.index(unknown),
    )


def _listed(source: Source, key: str) -> list[str]:
    if not source.metadata.get(key):
        raise ExportError(f"{source.path}: the metadata have no {key}, which sherpa-onnx's exporter writes")
    return source.metadata[key].split("|")
