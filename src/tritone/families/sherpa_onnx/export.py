"""From a folder in sherpa-onnx's layout to a bundle.

    encoder*.onnx, decoder*.onnx, joiner*.onnx (or model*.onnx), tokens.txt
        ->  manifest.json, tokens.txt, and for each precision graphs that take waveforms

Nothing is traced and torch is not needed: features are written in front of the graphs that are there. Every graph is
run before the bundle is written, and compared with the one that it was made of. Families may read graphs of their own
models in another way: by an importer of theirs, or by their weights (`Family.reader`, `Family.recognise`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritone.bundle.bundle import Bundle, BundleWriter
from tritone.bundle.manifest import Manifest, Precision
from tritone.errors import ExportError
from tritone.families.export.report import ONNX_PACKAGES, ExportReport, bundle_bytes, provenance
from tritone.families.known import export_elsewhere, families
from tritone.families.onnx.source import read_metadata
from tritone.families.ready_made.folder import ModelFiles, encoder_of_pair, find_model
from tritone.families.ready_made.importer import SAMPLE_RATE, CtcImporter, Importer, TransducerImporter
from tritone.families.ready_made.measure import Leak
from tritone.families.sherpa_onnx.punctuation import find_punctuation, import_punctuation
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
) -> ImportReport | ExportReport:
    """Import a model of sherpa-onnx; of a folder that another family's export reads, as that does.

    Args:
        folder: with the ONNX files and tokens.txt.
        output: the bundle's folder; an older bundle there is replaced.
        variant: which model, where the folder holds several; see `find_model`.
        precisions: those to take; by default all that there are. The first is the bundle's default. Where weights are
            read, those to make, by default float32.
        tokens: the token table, if it is not in the folder.
        name: of the model; by default the output folder's name.
        tail_padding_ms: silence that serving appends to every utterance.
        progress: called with what is done next.

    Raises:
        ExportError: the folder holds no model that can be imported, or a damaged one; the message says why.
        BundleError: the output folder is in use for something else.
        MissingDependencyError: weights are read, which needs torch, and that is not installed.
        ValueError: a precision is unknown or given twice.
    """
    given = {
        **{"folder": folder, "output": output, "name": name, "variant": variant, "precisions": precisions},
        **{"tokens": tokens, "tail_padding_ms": tail_padding_ms, "progress": progress},
    }
    if (report := export_elsewhere("sherpa-onnx", folder, given)) is not None:
        return report
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
    if (encoder := encoder_of_pair(folder)) is not None:
        metadata = read_metadata(encoder)
        for each in families().values():
            if each.reader_of("pair", metadata):
                if variant is not None or tokens is not None:
                    raise ExportError(f"{folder} is for `tritone export {each.name}`: leave out variant and tokens")
                known = {"output": output, "name": name, "tail_padding_ms": tail_padding_ms, "progress": progress}
                return each.exporter({})(folder=folder, precisions=precisions or ("fp32",), **known)
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
                parts=made.parts(),
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
    kind, usual = ("ctc", CtcImporter) if files.kind == "ctc" else ("transducer", TransducerImporter)
    metadata = read_metadata(first["model" if kind == "ctc" else "encoder"])
    readers = (each.reader_of(kind, metadata) for each in families().values())
    return next((each for each in readers if each), usual)
