"""Opening models in this process, whatever their kind and whatever somebody has of them.

tritone.load("demo-asr"), tritone.load("hf://owner/name"), tritone.load("ensemble.yaml")  ->  a Model
tritone.load_as(tritone.Embedder, "demo-speaker")                                         ->  an Embedder
"""

import logging
import os
import tempfile
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tritone.bundle.bundle import Bundle
from tritone.errors import InputError
from tritone.pipelines.graphs.placement import Placement
from tritone.pipelines.kind import kind_of
from tritone.pipelines.model import Model
from tritone.prepare import prepare

if TYPE_CHECKING:
    from tritone.pipelines.detector import Detector
    from tritone.pipelines.embedder import Embedder
    from tritone.pipelines.generic.model import GenericModel
    from tritone.pipelines.whisper.transcriber import Transcriber
    from tritone.pipelines.wiring.ensemble import Ensemble

Source = str | os.PathLike[str]
AnyModel = TypeVar("AnyModel", bound=Model)


def load(
    what: Source,
    *,
    device: str = "cpu",
    threads: int | None = None,
    runtime: str | None = None,
    precision: str | None = None,
    trust: bool = False,
    **options: Any,
) -> Any:
    """Load a model for use in this process, whatever somebody has of it; see docs/start/what.md.

    A bundle is loaded as it is. Anything else is exported into the user's cache once, which takes about a minute and
    reports its steps to the logger `tritone.prepare`.

    Args:
        what: a bundle's folder, the name of a shipped bundle, a checkpoint's file or folder of any family that
            `tritone export` has, a file of ONNX, TorchScript or torch.export, an address: hf://owner/name,
            s3://bucket/folder; or the file `*.yaml` of an ensemble (docs/serving/ensemble.md).
        device: `cpu`, `cuda` or `cuda:<index>`.
        threads: CPU threads per graph call; None takes every CPU this process may use.
        runtime: `onnxruntime`, `torch`, `torchscript` or `tensorrt`; None takes the bundle's first that can run on the
            device, but no engine of TensorRT. A Python function is a program, which runs only with `python`.
        precision: `fp32`, `fp16`, `bf16` or `int8`, as far as the bundle was exported with them; None takes the first.
            What is not a bundle is exported in it, with None in the one that suits the device.
        trust: take pickles from storage, and programs (TorchScript, functions that an ensemble names), too; code of who
            made them can hide in these.
        options: what the kind of model has. Of all that take audio: `max_audio_s`, the longest audio that the model
            gets at once, in seconds (300; Whisper models 7200, detectors 14400), and all that requests may ask for,
            which a call may ask for otherwise: see `SearchOptions`, of which `mode` is called `search` here,
            `DecodingOptions` of Whisper models, `EmbedOptions`, `ActivityOptions`. Further,

            of models that are searched frame by frame: `lm`, an n-gram language model, ARPA or KenLM binary, for all
            but greedy search, and `lm_unit`, what its words are: `word`, `token`, or `auto` to find out; `hotwords`,
            phrases and their weights, a file of them, or text as in a request; of streams `chunk_size`, encoder frames
            a step, `left_chunks`, the past chunks that a step sees, -1 for all, each as the bundle has it if not given,
            and `endpoints`, when an utterance ends and the next one begins; `vad`, the bundle of a voice activity
            detector by whose pauses `transcribe` cuts long recordings, which else it cuts into pieces that share some
            audio;

            of these and of speaker models: `compile`, sizes of calls to compile the network for, `auto` or such as
            `64x10,1x16.7` (rows x seconds), unless this machine has done so before, for runtime `torch`; without it
            what was compiled before is used;

            of Whisper models: `draft`, a smaller one with the same tokens that guesses greedy texts ahead, and
            `draft_precision`, in which it runs, its first if not given; results stay the same;

            of detectors: `chunk_size`, of streams, frames a step;

            of Python functions: `models`, loaded models that it may call, by the names that it has for them.

    Returns:
        A `Model`, of the class of its kind: a `Recognizer`, a `Transcriber` of a Whisper, an `Embedder`, a `Detector`,
        a `Punctuator` of texts, a `GenericModel` of arrays or an `Ensemble`. Each has `run`, `run_iter` and `stream`,
        and the verbs of its kind (`transcribe`, `embed`, `detect`, `infer`), as clients of a server have them.

    Raises:
        BundleError: the model is missing, damaged or too new, or is nothing that can be loaded.
        MissingDependencyError: the export needs an extra that is not installed.
        OperatorError: it cannot be exported, or there is no room for that.
        InputError: an option is out of range or not for this kind of model, or hotwords cannot be read; a model or
            a wire of an ensemble does not fit.
        LanguageModelError: there is no such language model; one that is damaged is reported when it is first needed.
        ValueError: there is no such device, runtime or precision, or `threads` is below 1.

    What the bundle or this machine does not have is reported when a graph is first needed.
    """
    options = {"threads": threads, "runtime": runtime, **options}
    return load_as(Model, what, device=device, precision=precision, trust=trust, **options)


def load_as(
    kind: type[AnyModel],
    what: Source,
    *,
    device: str = "cpu",
    precision: str | None = None,
    trust: bool = False,
    **options: Any,
) -> AnyModel:
    """As `load`, and make sure of the kind: for commands that do one thing, and for who checks types.

    Args:
        kind: the class of model, such as `tritone.Embedder`.
        what, device, precision, trust, options: as of `load`.

    Raises:
        BundleError: the model is of another kind, too; the message says what it does.
    """
    given = {"device": device, "precision": precision, **options}
    if Path(what).suffix in (".yaml", ".yml") and Path(what).is_file():
        return cast(AnyModel, _ensemble(what, kind, given, trust))
    bundle = _bundle(what, device, precision, trust)
    own = kind_of(bundle)
    front: Any = own.front()
    if not issubclass(front, kind):
        raise kind.refused(bundle)
    known = front.loadable(own)
    given = {name: value for name, value in given.items() if value is not None or name in own.parameters}
    if unfit := sorted(set(given) - set(known)):
        raise InputError(f"{what} is of kind {own.name}, which has no {', '.join(unfit)}; it has {', '.join(known)}")
    placement = Placement(**{name: given.pop(name) for name in front.placed if name in given})
    if vad := given.pop("vad", None):
        from tritone.pipelines.detector import Detector

        given["detector"] = load_as(Detector, vad, threads=1)  # beside the model
    if draft := given.pop("draft", None):
        given["draft"] = _bundle(draft, device, given.get("draft_precision"), trust)
    return cast(AnyModel, front(bundle, placement=placement, **given))


def _bundle(what: Source, device: str, precision: str | None, trust: bool) -> Bundle:
    """The bundle of whatever somebody has of a model."""
    notify = logging.getLogger("tritone.prepare").info
    found = prepare(what, device=device, precision=precision, trust=trust, notify=notify)
    bundle = Bundle.open(found.path)
    if not found.verified:
        bundle.verify()  # damaged weights would not fail, they would give other words
    return bundle


def _ensemble(spec: Source, kind: type[Model], given: dict[str, Any], trust: bool) -> "Ensemble":
    """The models that a file wires to each other."""
    from tritone.pipelines.wiring.ensemble import Ensemble
    from tritone.pipelines.wiring.spec import read_spec
    from tritone.prepare.steps import bundles_of

    if not issubclass(Ensemble, kind):
        raise InputError(f"{spec} is the file of an ensemble, and {kind.__name__} is not what it becomes; use load")
    given = {name: value for name, value in given.items() if value is not None}
    if unfit := sorted(set(given) - {"device", "threads"}):
        raise InputError(f"{spec} is the file of an ensemble, for which there is no {', '.join(unfit)}")
    read = read_spec(os.fspath(spec))
    if not trust and read.has_functions:
        raise InputError(f"{spec} names Python functions, which run code: load it with trust=True if it is yours")
    made = tempfile.TemporaryDirectory(prefix="tritone-ensemble-")
    try:
        bundles = bundles_of(read, Path(spec).parent, Path(made.name))
        ensemble = Ensemble(read, bundles, **given)
    except BaseException:
        made.cleanup()
        raise
    weakref.finalize(ensemble, made.cleanup)  # functions may read their files as long as they are called
    return ensemble


def load_embedder(bundle: Source, **options: Any) -> "Embedder":
    """Until 0.3: `load` of a speaker model."""
    from tritone.pipelines.embedder import Embedder

    return _named("load_embedder", Embedder, bundle, options)


def load_detector(bundle: Source, **options: Any) -> "Detector":
    """Until 0.3: `load` of a voice activity detector."""
    from tritone.pipelines.detector import Detector

    return _named("load_detector", Detector, bundle, options)


def load_model(bundle: Source, **options: Any) -> "GenericModel":
    """Until 0.3: `load` of a generic model."""
    from tritone.pipelines.generic.model import GenericModel

    return _named("load_model", GenericModel, bundle, options)


def load_whisper(bundle: Source, **options: Any) -> "Transcriber":
    """Until 0.3: `load` of a Whisper model."""
    from tritone.pipelines.whisper.transcriber import Transcriber

    return _named("load_whisper", Transcriber, bundle, options)


def load_ensemble(spec: Source, *, trust: bool = True, **options: Any) -> "Ensemble":
    """Until 0.3: `load` of the file of an ensemble."""
    from tritone.pipelines.wiring.ensemble import Ensemble

    _warn("load_ensemble")
    return _ensemble(spec, Ensemble, options, trust)


def _named(name: str, kind: type[AnyModel], what: Source, options: dict[str, Any]) -> AnyModel:
    _warn(name, stacklevel=4)
    return load_as(kind, what, **options)


def _warn(name: str, stacklevel: int = 3) -> None:
    warnings.warn(f"tritone.{name} goes with 0.3: use tritone.load", DeprecationWarning, stacklevel=stacklevel)
