"""From a folder in sherpa-onnx's layout to a bundle.

    encoder*.onnx, decoder*.onnx, joiner*.onnx (or model*.onnx), tokens.txt
        ->  manifest.json, tokens.txt, and for each precision graphs that take waveforms

Nothing is traced and torch is not needed: features are written in front of the graphs that are there. Every graph is
run before the bundle is written, and compared with the one that it was made of. Of Whisper and Moonshine the weights
are read, see `tritone.families.{whisper,moonshine}.sherpa_onnx`; Moonshine needs torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Manifest, Precision
from tritone.errors import ExportError, MissingDependencyError
from tritone.families.export.report import ONNX_PACKAGES, bundle_bytes, provenance
from tritone.families.onnx.source import read_metadata
from tritone.families.sherpa_onnx.folder import ModelFiles, find_model, find_moonshine, find_streams
from tritone.families.sherpa_onnx.funasr import IMPORTERS as FUNASR
from tritone.families.sherpa_onnx.importer import SAMPLE_RATE, CtcImporter, Importer, TransducerImporter
from tritone.families.sherpa_onnx.measure import Leak
from tritone.families.sherpa_onnx.nemo import NemoCtcImporter, NemoTransducerImporter, is_nemo
from tritone.families.sherpa_onnx.punctuation import find_punctuation, import_punctuation
from tritone.families.whisper.export import export_whisper
from tritone.families.whisper.sherpa_onnx import find_files
from tritone.installing import pip_install
from tritone.pipelines.memory import record


@dataclass(frozen=True)
class ImportReport:
    """What was made.

    `differences`: of each encoder graph from the one that it was made of, as a share of the size of what comes out.
    `leaks`: of each offline encoder, see `Leak`. `notes`: what was taken for granted and should be known.
    """

    bundle: Bundle
    files: ModelFiles
    bytes: int
    differences: dict[str, float] = field(default_factory=dict)
    leaks: dict[str, Leak] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where the bundle is."""
        return self.bundle.path

    def lines(self, unit: str, original: str) -> list[str]:
        """The report for people; `unit` is of the differences from `original`."""
        return [
            f"{self.bundle.path}: {self.files.kind}, {self.bytes / 1e6:.2f} MB",
            *(
                f"  {graph}: largest difference from {original} {each:.2e} ({unit})"
                for graph, each in self.differences.items()
            ),
            *(f"  {graph}: {leak}" for graph, leak in self.leaks.items()),
            *(f"  {note}" for note in self.notes),
        ]


def export_sherpa_onnx(
    *,
    folder: Path,
    output: Path,
    variant: str | None = None,
    precisions: Sequence[Precision] | None = None,
    tokens: Path | None = None,
    name: str | None = None,
    tail_padding_ms: float = 0.0,
    progress: Callable[[str], None] = lambda step: None,
) -> ImportReport:
    """Import a model of sherpa-onnx.

    Args:
        folder: with the ONNX files and tokens.txt.
        output: the bundle's folder; an older bundle there is replaced.
        variant: which model, where the folder holds several; see `find_model`.
        precisions: those to take; by default all that there are. The first is the bundle's default. Of Whisper,
            Moonshine and Paraformers for streams those to make, by default float32.
        tokens: the token table, if it is not in the folder.
        name: of the model; by default the output folder's name.
        tail_padding_ms: silence that serving appends to every utterance.
        progress: called with what is done next.

    Raises:
        ExportError: the folder holds no model that can be imported, or a damaged one; the message says why.
        BundleError: the output folder is in use for something else.
        MissingDependencyError: the folder holds a Moonshine or a Paraformer for streams, and torch is not installed.
        ValueError: a precision is unknown or given twice.
    """
    if (whisper := find_files(folder)) is not None:
        if variant is not None or tokens is not None or tail_padding_ms:
            raise ExportError(
                f"{folder} holds a Whisper model, with its tokens in {whisper.tokens.name} and windows of one length: "
                "leave out variant, tokens and tail padding"
            )
        report = export_whisper(
            checkpoint=folder, output=output, name=name, precisions=precisions or ("fp32",), progress=progress
        )
        files = ModelFiles("whisper", "", {}, whisper.tokens)
        return ImportReport(report.bundle, files, report.bytes, report.differences, notes=report.notes)
    if (moonshine := find_moonshine(folder)) is not None:
        if variant is not None or tokens is not None or tail_padding_ms:
            raise ExportError(f"{folder} holds a Moonshine: leave out variant, tokens and tail padding")
        try:
            from tritone.families.export.frame import write_bundle
            from tritone.families.hf.options import HfOptions
            from tritone.families.moonshine.export import MoonshineModel
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"importing Moonshine needs {error.name}, which is not installed: {pip_install('export')}"
            ) from error
        options = HfOptions(
            folder=folder, output=output, name=name, precisions=precisions or ("fp32",), progress=progress
        )
        progress("reading the model")
        report = write_bundle(MoonshineModel(options), options)
        files = ModelFiles("encoder-decoder", "", {}, moonshine.tokens)
        return ImportReport(report.bundle, files, report.bytes, report.differences, notes=report.notes)
    if (streams := find_streams(folder)) is not None:
        if variant is not None or tokens is not None:
            raise ExportError(f"{folder} holds a Paraformer for streams: leave out variant and tokens")
        try:
            from tritone.families.funasr.export import export_funasr
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"importing Paraformers for streams needs {error.name}, which is not installed: {pip_install('export')}"
            ) from error
        report = export_funasr(
            folder=folder,
            output=output,
            name=name,
            precisions=precisions or ("fp32",),
            tail_padding_ms=tail_padding_ms,
            progress=progress,
        )
        files = ModelFiles("paraformer", "", {}, streams.tokens)
        return ImportReport(report.bundle, files, report.bytes, report.differences, notes=report.notes)
    if found := find_punctuation(folder):
        if tokens is not None or tail_padding_ms:
            raise ExportError(
                f"{folder} holds a punctuation model, which has its words: leave tokens and tail padding out"
            )
        if missing := set(precisions or found) - set(found):
            raise ExportError(f"{folder} has no graph in {', '.join(sorted(missing))}, only in {', '.join(found)}")
        chosen = {each: found[each] for each in precisions or found}
        bundle = import_punctuation(chosen, output, name, progress)
        return ImportReport(bundle, ModelFiles("punctuation", "", {}, folder), bundle_bytes(bundle))
    files = find_model(folder, variant=variant, precisions=precisions, tokens=tokens)
    with BundleWriter(output) as writer:
        made = _importer(files)(files, writer, progress)
        for precision in files.graphs:
            made.add(precision)
        progress("writing the bundle")
        writer.write_tokens(made.tokens)
        sources = {path.name: path for graphs in files.graphs.values() for path in graphs.values()}
        bundle = writer.commit(
            Manifest(
                name=name or output.resolve().name,
                kind=made.kind or files.kind,
                sample_rate=SAMPLE_RATE,
                features=made.features,
                encoder=made.encoder(round(tail_padding_ms * SAMPLE_RATE / 1000)),
                vocabulary=made.vocabulary(),
                streaming=made.streaming(),
                transducer=made.transducer(),
                artifacts=tuple(made.artifacts),
                provenance=provenance(
                    "sherpa-onnx",
                    {**sources, "tokens": files.tokens},
                    {
                        "model_type": made.model_type,
                        "variant": files.variant,
                        "precisions": ",".join(files.graphs),
                        "tail_padding_ms": tail_padding_ms,
                    },
                    ONNX_PACKAGES,
                ),
            )
        )
    progress("measuring the memory of calls")
    bundle = record(bundle)
    return ImportReport(bundle, files, bundle_bytes(bundle), made.differences, made.leaks)


def _importer(files: ModelFiles) -> type[Importer]:
    """What reads a model: networks of other makers have another interface."""
    first = next(iter(files.graphs.values()))
    if files.kind == "ctc":
        metadata = read_metadata(first["model"])
        usual = NemoCtcImporter if is_nemo(metadata) else CtcImporter
        return FUNASR.get(str(metadata.get("model_type")), usual)
    return NemoTransducerImporter if is_nemo(read_metadata(first["encoder"])) else TransducerImporter
