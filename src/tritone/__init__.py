"""Tritone: trained speech models into production on NVIDIA Triton Inference Server.

tritone.load(WHAT).transcribe(["a.wav"])                recognition in this process: a bundle, a checkpoint, hf://…
tritone.load_whisper("whisper").transcribe(["a.wav"])   recognition by a Whisper model, in this process
tritone.load_embedder("demo-speaker").embed(["a.wav"])  a speaker's voice as a vector, in this process
tritone.load_detector("vad").segments("a.wav")          where a recording has speech, in this process
tritone.load_model("letters").infer({"image": array})   any other model, arrays by name
tritone.load("spec.yaml").infer({"text": array})        models that a file wires to an ensemble
tritone.Client("localhost:8001")                        each by a running server; AsyncClient in an event loop
"""

from typing import TYPE_CHECKING, Any

from tritone import errors
from tritone.errors import TritoneError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    __version__: str

    from tritone.activity import SpeechActivity, SpeechSegment
    from tritone.bundle.bundle import Bundle
    from tritone.client import AsyncClient, Client
    from tritone.pipelines.detector import Detector
    from tritone.pipelines.embed_options import EmbedOptions
    from tritone.pipelines.embedder import Embedder
    from tritone.pipelines.frames import FrameScores
    from tritone.pipelines.generic.model import Model
    from tritone.pipelines.live import Stream
    from tritone.pipelines.recognizer import Recognizer
    from tritone.pipelines.whisper.transcriber import Transcriber
    from tritone.pipelines.wiring.ensemble import Ensemble
    from tritone.runtime.python.signature import Models
    from tritone.search.activity import ActivityOptions
    from tritone.search.endpoint import EndpointRules
    from tritone.search.options import LmUnit, SearchMode, SearchOptions
    from tritone.transcript import Alternative, Span, Transcript

__all__ = [
    "ActivityOptions",
    "Alternative",
    "AsyncClient",
    "Client",
    "Detector",
    "EmbedOptions",
    "Embedder",
    "EndpointRules",
    "Ensemble",
    "FrameScores",
    "Model",
    "Models",
    "Recognizer",
    "SearchOptions",
    "Span",
    "SpeechActivity",
    "SpeechSegment",
    "Stream",
    "Transcriber",
    "Transcript",
    "TritoneError",
    "__version__",
    "errors",
    "load",
    "load_detector",
    "load_embedder",
    "load_ensemble",
    "load_model",
    "load_whisper",
]

# Imported on first use, so that `import tritone` costs nothing and the client works without the runtime.
LAZY = {
    "ActivityOptions": "tritone.search.activity",
    "Alternative": "tritone.transcript",
    "AsyncClient": "tritone.client",
    "Client": "tritone.client",
    "Detector": "tritone.pipelines.detector",
    "EmbedOptions": "tritone.pipelines.embed_options",
    "Embedder": "tritone.pipelines.embedder",
    "EndpointRules": "tritone.search.endpoint",
    "Ensemble": "tritone.pipelines.wiring.ensemble",
    "FrameScores": "tritone.pipelines.frames",
    "Model": "tritone.pipelines.generic.model",
    "Models": "tritone.runtime.python.signature",
    "Recognizer": "tritone.pipelines.recognizer",
    "SearchOptions": "tritone.search.options",
    "Span": "tritone.transcript",
    "SpeechActivity": "tritone.activity",
    "SpeechSegment": "tritone.activity",
    "Stream": "tritone.pipelines.live",
    "Transcriber": "tritone.pipelines.whisper.transcriber",
    "Transcript": "tritone.transcript",
}


def _opened(
    what: "str | os.PathLike[str]", *, device: str = "cpu", precision: str | None = None, trust: bool = False
) -> "Bundle":
    """The bundle of WHAT, exported if it is none, its checksums compared.

    Damaged weights would not fail, they would give other words.
    """
    import logging

    from tritone.bundle.bundle import Bundle
    from tritone.prepare import prepare

    found = prepare(
        what, device=device, precision=precision, trust=trust, say=logging.getLogger("tritone.prepare").info
    )
    opened = Bundle.open(found.path)
    if not found.verified:
        opened.verify()
    return opened


def _parameters(function: Any) -> "Mapping[str, Any]":
    """The keywords of a function with their defaults."""
    import inspect

    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.kind is each.KEYWORD_ONLY}


def _given(function: Any, values: "Mapping[str, Any]") -> dict[str, Any]:
    """The keywords that differ from their defaults."""
    return {name: values[name] for name, default in _parameters(function).items() if values[name] != default}


def load(
    what: "str | os.PathLike[str]",
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    compile: str | None = None,
    max_audio_s: float = 300.0,
    search: "SearchMode" = "greedy",
    beam: int = 0,
    nbest: int = 1,
    ctc_weight: float | None = None,
    reverse_weight: float | None = None,
    lm: "str | os.PathLike[str] | None" = None,
    lm_unit: "LmUnit" = "auto",
    lm_weight: float | None = None,
    word_bonus: float = 0.0,
    hotwords: "str | os.PathLike[str] | Mapping[str, float] | None" = None,
    language: str = "",
    blank_penalty: float = 0.0,
    temperature: float = 1.0,
    max_symbols: int | None = None,
    max_states: int = 64,
    max_contexts: int = 8,
    chunk_size: int | None = None,
    left_chunks: int | None = None,
    endpoints: "EndpointRules | None" = None,
    vad: "str | os.PathLike[str] | None" = None,
    task: str | None = None,
    prompt: str | None = None,
    word_times: "bool | str | None" = None,
    trust: bool = False,
) -> Any:
    """Load a model for use in this process, whatever somebody has of it; see docs/start/what.md.

    A bundle is loaded as it is. Anything else is exported into the user's cache once, which takes about a minute and
    tells of its steps to the logger `tritone.prepare`.

    Args:
        what: a bundle's folder, the name of a shipped bundle, a checkpoint's file or folder of any family that
            `tritone export` has, a file of ONNX, TorchScript or torch.export, an address: hf://owner/name,
            s3://bucket/folder; or the file `*.yaml` of an ensemble.
        device: `cpu`, `cuda` or `cuda:<index>`.
        threads: CPU threads per graph call; None takes every CPU this process may use.
        runtime: `onnxruntime`, `torch`, `torchscript` or `tensorrt`; None takes the bundle's first that can run on the
            device, but no engine of TensorRT.
        precision: `fp32`, `fp16`, `bf16` or `int8`, as far as the bundle was exported with them; None takes the first.
            What is not a bundle is exported in it, with None in the one that suits the device.
        compile: sizes of calls to compile the network for, `auto` or such as `64x10,1x16.7` (rows x seconds), unless
            this machine has done so before; with None what was compiled before is used. For runtime `torch`.
        max_audio_s: the longest audio that the model gets at once, in seconds; `transcribe` cuts what is longer.
        search, beam, nbest, ctc_weight, reverse_weight, lm_weight, word_bonus, language, blank_penalty, temperature,
            max_symbols, max_states, max_contexts: how to search, see `SearchOptions`; a call may ask for others.
        lm: an n-gram language model, ARPA or KenLM binary, for all but greedy search.
        lm_unit: what its words are: `word`, `token`, or `auto` to find out.
        hotwords: phrases and their weights; a file of them, or text as in a request.
        chunk_size: of streams, encoder frames a step; None takes the bundle's.
        left_chunks: of streams, the past chunks that a step sees; -1 for all, None takes the bundle's.
        endpoints: when an utterance in a stream ends and the next one begins; None leaves a stream whole.
        vad: the bundle of a voice activity detector, by whose pauses `transcribe` cuts long recordings; None cuts them
            into pieces that share some audio.
        task, prompt, word_times: of Whisper models, as `language` is, which they find out if it is empty: `transcribe`
            or `translate`, text that comes before, whether words get times; a call may ask for others.
        trust: take pickles from storage, and programs (TorchScript, functions that an ensemble names), too; code of who
            made them can hide in these.

    Returns:
        What this kind of model has: a `Recognizer`, a `Transcriber` of a Whisper, an `Embedder`, a `Detector`, a
        `Model` of arrays or an `Ensemble`. Each has `run` and `run_iter`, the verbs of its kind by one name
        (`transcribe`, `embed`, `detect`, `infer`).

    Raises:
        BundleError: the model is missing, damaged or too new, or is nothing that can be loaded.
        MissingDependencyError: the export needs an extra that is not installed.
        OperatorError: it cannot be exported, or there is no room for that.
        InputError: an option of the search is out of range, or hotwords cannot be read.
        LanguageModelError: there is no such language model; one that is damaged is told when it is first needed.
        ValueError: there is no such device, runtime or precision, or `threads` is below 1.

    What the bundle or this machine does not have is told when a graph is first needed.
    """
    from pathlib import Path

    from tritone.errors import InputError, LanguageModelError
    from tritone.pipelines.graphs.placement import Placement
    from tritone.pipelines.recognizer import Recognizer
    from tritone.pipelines.searching.base import SearchSettings
    from tritone.search.hotwords import load_hotwords
    from tritone.search.options import SearchOptions

    given = _given(load, locals())
    if Path(what).suffix in (".yaml", ".yml") and Path(what).is_file():
        if unfit := sorted(set(given) - {"device", "threads", "trust"}):
            raise InputError(f"{what} is the file of an ensemble, for which there is no {', '.join(unfit)}")
        return load_ensemble(what, device=device, threads=threads, trust=trust)
    opened = _opened(what, device=device, precision=precision, trust=trust)
    manifest = opened.manifest
    loaders: dict[str, Any] = {"embedding": load_embedder, "voice-activity": load_detector, "generic": load_model}
    if manifest.whisper is not None or manifest.kind in loaders:
        loader = load_whisper if manifest.whisper is not None else loaders[manifest.kind]
        taken = ("language", "task", "prompt", "word_times") if loader is load_whisper else ()
        own = {"device", "threads", "runtime", "precision", *_parameters(loader), *taken}
        if unfit := sorted(set(given) - own - {"trust"}):
            raise InputError(f"{what} is of kind {manifest.kind}, which has no {', '.join(unfit)}")
        return loader(opened.path, **{name: value for name, value in given.items() if name != "trust"})
    if whispers := [name for name in ("task", "prompt", "word_times") if name in given]:
        raise InputError(f"{', '.join(whispers)} is for Whisper models; {what} is of kind {manifest.kind}")
    if lm is not None and not Path(lm).is_file():
        raise LanguageModelError(f"there is no language model {lm}; give the path of an ARPA or KenLM file")
    options = SearchOptions(
        mode=search,
        beam=beam,
        nbest=nbest,
        ctc_weight=ctc_weight,
        reverse_weight=reverse_weight,
        lm_weight=lm_weight,
        word_bonus=word_bonus,
        hotwords=load_hotwords(hotwords),
        language=language,
        blank_penalty=blank_penalty,
        temperature=temperature,
        max_symbols=max_symbols,
        max_states=max_states,
        max_contexts=max_contexts,
    )
    return Recognizer(
        opened,
        placement=Placement(device=device, threads=threads, runtime=runtime, precision=precision, compile=compile),
        max_audio_s=max_audio_s,
        search=SearchSettings(options=options, lm=None if lm is None else Path(lm), lm_unit=lm_unit),
        chunk_size=chunk_size,
        left_chunks=left_chunks,
        endpoints=endpoints,
        detector=None if vad is None or vad == "" else load_detector(vad, threads=1),  # beside the model
    )


def load_embedder(
    bundle: "str | os.PathLike[str]",
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    compile: str | None = None,
    max_audio_s: float = 300.0,
    window_s: float = 0.0,
    shift_s: float = 0.0,
) -> "Embedder":
    """Load a bundle of a speaker model, for embeddings in this process.

    Args:
        bundle: a bundle folder, the name of a shipped bundle, or what `load` takes.
        device, threads, runtime, precision, compile: as of `load`.
        max_audio_s: the longest audio that `embed` accepts, in seconds.
        window_s, shift_s: see `EmbedOptions`; a call may ask for others.

    Raises:
        BundleError: the bundle is missing, damaged or too new, or its model makes no embeddings.
        InputError: the windows are out of range.
        ValueError: there is no such device, runtime or precision, or `threads` is below 1.

    What the bundle or this machine does not have is told when the graph is first needed.
    """
    from tritone.pipelines.embed_options import EmbedOptions
    from tritone.pipelines.embedder import Embedder
    from tritone.pipelines.graphs.placement import Placement

    opened = _opened(bundle, device=device, precision=precision)
    return Embedder(
        opened,
        placement=Placement(device=device, threads=threads, runtime=runtime, precision=precision, compile=compile),
        max_audio_s=max_audio_s,
        options=EmbedOptions(window_s=window_s, shift_s=shift_s),
    )


def load_detector(
    bundle: "str | os.PathLike[str]",
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    max_audio_s: float = 14400.0,
    threshold: float = 0.5,
    end_threshold: float | None = None,
    min_speech_s: float = 0.25,
    min_silence_s: float = 0.1,
    padding_s: float = 0.03,
    max_segment_s: float = 0.0,
    chunk_size: int | None = None,
) -> "Detector":
    """Load a bundle of a voice activity detector, for use in this process.

    Args:
        bundle: a bundle folder, or what `load` takes.
        device, threads, runtime, precision: as of `load`.
        max_audio_s: the longest recording that `detect` accepts, in seconds. Streams have no limit.
        threshold, end_threshold, min_speech_s, min_silence_s, padding_s, max_segment_s: how segments are found, see
            `ActivityOptions`; a call may ask for others.
        chunk_size: of streams, frames a step; None takes the bundle's.

    Raises:
        BundleError: the bundle is missing, damaged or too new, or its model does something else.
        InputError: an option is out of its range.
        ValueError: there is no such device, runtime or precision, or `threads` is below 1.

    What the bundle or this machine does not have is told when a graph is first needed.
    """
    from tritone.pipelines.detector import Detector
    from tritone.pipelines.graphs.placement import Placement
    from tritone.search.activity import ActivityOptions

    opened = _opened(bundle, device=device, precision=precision)
    return Detector(
        opened,
        placement=Placement(device=device, threads=threads, runtime=runtime, precision=precision),
        max_audio_s=max_audio_s,
        options=ActivityOptions(
            threshold=threshold,
            end_threshold=end_threshold,
            min_speech_s=min_speech_s,
            min_silence_s=min_silence_s,
            padding_s=padding_s,
            max_segment_s=max_segment_s,
        ),
        chunk_size=chunk_size,
    )


def load_model(
    bundle: "str | os.PathLike[str]",
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    models: "Mapping[str, Model] | None" = None,
) -> "Model":
    """Load a bundle of a generic model, which takes and returns arrays by name, in this process.

    Args:
        bundle: a bundle folder, or what `load` takes.
        device, threads, runtime, precision: as of `load`. A Python function is a program, which runs only with the
            runtime `python`.
        models: loaded models that a Python function may call, by the names that it has for them.

    Raises:
        BundleError: the bundle is missing, damaged or too new, or of another kind; or it calls a model that is not
            among `models`.
        ValueError: there is no such device, runtime or precision, or `threads` is below 1.

    What the bundle or this machine does not have is told when the graph is first needed.
    """
    from tritone.pipelines.generic.model import Model
    from tritone.pipelines.graphs.placement import Placement

    opened = _opened(bundle, device=device, precision=precision)
    placement = Placement(device=device, threads=threads, runtime=runtime, precision=precision)
    return Model(opened, placement=placement, models=models)


def load_ensemble(
    spec: "str | os.PathLike[str]", *, device: str = "cpu", threads: int | None = None, trust: bool = True
) -> "Ensemble":
    """Load the models that a file wires to each other, in this process; see docs/serving/ensemble.md.

    Python functions that it names are imported, which runs code of their modules.

    Args:
        spec: the file.
        device, threads: as of `load`.
        trust: whether it may name functions.

    Raises:
        InputError: the file cannot be read, a model of it cannot be used, or the wires do not fit; says what.
        MissingDependencyError: a function needs a package that is not here.
    """
    import os
    import tempfile
    import weakref
    from pathlib import Path

    from tritone.errors import InputError
    from tritone.families.generic.steps import bundles_of
    from tritone.pipelines.wiring.ensemble import Ensemble
    from tritone.pipelines.wiring.spec import read_spec

    read = read_spec(os.fspath(spec))
    if not trust and read.has_functions:
        raise InputError(f"{spec} names Python functions, which run code: load it with trust=True if it is yours")
    made = tempfile.TemporaryDirectory(prefix="tritone-ensemble-")
    try:
        bundles = bundles_of(read, Path(spec).parent, Path(made.name))
        ensemble = Ensemble(read, bundles, device=device, threads=threads)
    except BaseException:
        made.cleanup()
        raise
    weakref.finalize(ensemble, made.cleanup)  # functions may read their files as long as they are called
    return ensemble


def load_whisper(
    bundle: "str | os.PathLike[str]",
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    max_audio_s: float = 7200.0,
    **decoding: Any,
) -> "Transcriber":
    """Load a bundle of a Whisper model, for recordings of any length in this process.

    Args:
        bundle: a bundle folder, or what `load` takes.
        device, threads, runtime, precision: as of `load`.
        max_audio_s: the longest recording that `transcribe` accepts, in seconds.
        decoding: how to transcribe where a call asks for nothing else: `language="de"`, `beam=5`, and all other names
            of docs/models/export-whisper.md.

    Raises:
        BundleError: the bundle is missing, damaged or too new, or holds no Whisper model.
        InputError: an option of decoding is unknown or out of range.
        ValueError: there is no such device, runtime or precision, or `threads` is below 1.

    What the bundle or this machine does not have is told when the graphs are first needed.
    """
    from tritone.pipelines.graphs.placement import Placement
    from tritone.pipelines.whisper.options import DecodingOptions
    from tritone.pipelines.whisper.transcriber import Transcriber

    opened = _opened(bundle, device=device, precision=precision)
    return Transcriber(
        opened,
        placement=Placement(device=device, threads=threads, runtime=runtime, precision=precision),
        max_audio_s=max_audio_s,
        options=DecodingOptions().changed(decoding),
    )


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("tritone")
    elif name in LAZY:
        from importlib import import_module

        value = getattr(import_module(LAZY[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
