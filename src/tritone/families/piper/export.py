"""From a voice of Piper to a bundle.

    VOICE.onnx, VOICE.onnx.json  ->  manifest.json, model.onnx

The network stays as it is; its tensors get the names of ours, its samples one axis, and its noise is the same at every
call. Both graphs are run before the bundle is written, without noise, and compared.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tritone.bundle.bundle import BundleWriter
from tritone.bundle.manifest import Manifest
from tritone.errors import ExportError
from tritone.families.export.report import ONNX_PACKAGES, ExportReport, bundle_bytes, provenance
from tritone.families.graphs.onnx_file import OnnxSource, renamed
from tritone.families.onnx.forms import weights_of
from tritone.families.onnx.source import Source, read_source
from tritone.families.onnx.trial import largest_difference, opened, run
from tritone.families.piper.config import read_config
from tritone.families.piper.noise import fix_noise
from tritone.kinds.synthesis.part import SynthesisPart
from tritone.kinds.synthesis.phonemes import Espeak
from tritone.kinds.synthesis.pipeline import phoneme_ids
from tritone.pipelines.memory import record

NAMES = {"input": "phonemes", "input_lengths": "num_phonemes", "scales": "scales", "sid": "speaker"}
"""Piper's inputs, and what they are called in bundles."""
SOUND, OUTPUT = "output", "waveform"
TRIAL = "hɛloʊ wɜːld"
MAX_DIFFERENCE = 1e-5  # of samples; the networks are the same
GRAPH = "model.onnx"


def export_piper(
    *,
    voice: Path,
    output: Path,
    name: str | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> ExportReport:
    """Export a voice of Piper.

    Args:
        voice: its ONNX file; the file beside it, of the same name and `.json`, says what it takes.
        output: the bundle's folder; an older bundle there is replaced.
        name: of the model; by default the output folder's name.
        progress: called with what is done next.

    Raises:
        ExportError: a file is missing or damaged, or no voice of Piper that speaks by espeak-ng.
        MissingDependencyError: this machine has no espeak-ng, without which no text can be spoken.
        BundleError: the output folder is in use for something else.
    """
    voice = Path(voice)
    beside = voice.with_name(f"{voice.name}.json")
    progress(f"reading {voice.name} and {beside.name}")
    config, synthesis = read_config(beside)
    Espeak(synthesis.espeak_voice)
    source = read_source(voice)
    _check(source, synthesis)
    model = _ours(source)
    with BundleWriter(output) as writer:
        (writer.folder / GRAPH).write_bytes(model.SerializeToString())
        progress(f"comparing the graph with {voice.name}")
        difference = _difference(source, synthesis, writer.folder / GRAPH)
        progress("writing the bundle")
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind="synthesis",
                sample_rate=config.audio.sample_rate,
                parts=(synthesis,),
                artifacts=(writer.artifact("model", GRAPH),),
                provenance=provenance("piper", {voice.name: voice, beside.name: beside}, {}, ONNX_PACKAGES),
            )
        )
    progress("measuring the memory of calls")
    bundle = record(bundle)
    parameters = sum(int(np.prod(each.dims)) for each in weights_of(model))
    return ExportReport(bundle, parameters, bundle_bytes(bundle), {GRAPH: difference})


def _check(source: Source, synthesis: SynthesisPart) -> None:
    """Make sure that a graph takes what voices of Piper take."""
    wanted = [name for name in NAMES if name != "sid" or synthesis.speakers]
    found = [each.name for each in source.inputs]
    if sorted(found) != sorted(wanted) or (len(source.outputs) != 1 and _sound(source).name != SOUND):
        raise ExportError(
            f"{source.path} takes {', '.join(found)} and has {len(source.outputs)} outputs; a voice of Piper with "
            f"{len(synthesis.speakers) or 'one'} speaker{'s' if synthesis.speakers else ''} takes {', '.join(wanted)} "
            f"and has one, or one that is called {SOUND}"
        )
    kinds = {"scales": (TensorProto.FLOAT, 1), "input": (TensorProto.INT64, 2)}
    for each in source.inputs:
        dtype, axes = kinds.get(each.name, (TensorProto.INT64, 1))
        if (each.dtype, len(each.shape)) != (dtype, axes):
            raise ExportError(f"{source.path}: the input {each} is not that of a voice of Piper")
    if _sound(source).dtype != TensorProto.FLOAT:
        raise ExportError(f"{source.path}: the output {_sound(source)} is no float32")


def _sound(source: Source) -> Any:
    """The output with the samples: the only one, or that of the name, beside which newer voices have lengths."""
    return next((each for each in source.outputs if each.name == SOUND), source.outputs[0])


def _ours(source: Source) -> Any:
    """The graph with our names, noise that is always the same, and samples (batch, samples)."""
    names = {each.name: NAMES[each.name] for each in source.inputs if NAMES[each.name] != each.name}
    model = renamed(OnnxSource(source.path, source.model, ()), names)
    graph = model.graph
    if OUTPUT in {name for node in graph.node for name in node.output}:
        raise ExportError(f"{source.path} has a tensor {OUTPUT} already; it is no voice of Piper")
    fix_noise(model)
    graph.node.append(helper.make_node("Flatten", [_sound(source).name], [OUTPUT], axis=1))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", "samples"]))
    return model


def _difference(source: Source, synthesis: SynthesisPart, path: Path) -> float:
    """The largest difference of our graph's samples from the original's."""
    ids = phoneme_ids(TRIAL, synthesis)
    scales = np.array([0, synthesis.length, 0], np.float32)  # without noise, of which Piper draws other at every call
    inputs = {"input": np.array([ids]), "input_lengths": np.array([len(ids)]), "scales": scales}
    if synthesis.speakers:
        inputs["sid"] = np.array([max(synthesis.speakers.values())])
    (wanted,) = run(opened(source.path), source, inputs, [_sound(source).name])
    (found,) = run(opened(path), source, {NAMES[name]: value for name, value in inputs.items()}, [OUTPUT])
    difference = largest_difference(found, wanted.reshape(1, -1), GRAPH)
    if difference > MAX_DIFFERENCE or not found.size:
        raise ExportError(f"{GRAPH} differs from {source.path} by {difference:.2g}, the limit is {MAX_DIFFERENCE:g}")
    return difference
