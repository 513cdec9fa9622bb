"""From FunASR's folder to a bundle.

config.yaml, model.pt, am.mvn, *.bpe.model
    ->  manifest.json, tokens.txt, and for each runtime and precision the graph of whole utterances
"""

from typing import Any

from tritone.bundle.manifest import Encoder, Precision, Vocabulary
from tritone.errors import ExportError
from tritone.families.export.exportable import Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.settings import read_config_file
from tritone.families.export.tokens import read_pieces
from tritone.families.funasr.checkpoint import (
    CONFIG,
    PIECES,
    STATISTICS,
    WEIGHTS,
    one_file,
    read_state,
    read_statistics,
)
from tritone.families.funasr.config import SENSE_VOICE_TAGS, parse_config
from tritone.families.funasr.front_end import StackedFbank
from tritone.families.funasr.graphs import OfflineGraph
from tritone.families.funasr.model import LANGUAGES, PLAIN, USUAL_LANGUAGE, WRITTEN, SenseVoice
from tritone.families.funasr.options import FunasrOptions


def export_funasr(**choices: Any) -> ExportReport:
    """Export a model of FunASR: SenseVoice-Small.

    Args:
        choices: the fields of `FunasrOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = FunasrOptions(**choices)
    return write_bundle(SenseVoiceModel(options), options)


class SenseVoiceModel(ExportedModel):
    """A trained SenseVoice-Small."""

    family = "funasr"

    def __init__(self, options: FunasrOptions) -> None:
        """Read the folder of the options."""
        options.progress("reading the model")
        self.options = options
        folder = options.folder
        if not folder.is_dir():
            raise ExportError(f"folder not found: {folder}; give one of FunASR's models, with {CONFIG} and {WEIGHTS}")
        if options.stages:
            raise ExportError("this model is told the language of each utterance, which stages are not: leave them out")
        self.sources = {name: folder / name for name in (CONFIG, WEIGHTS, STATISTICS)}
        self.sources["tokens"] = one_file(folder, PIECES, "a sentencepiece model")
        self.settings = parse_config(read_config_file(self.sources[CONFIG]))
        self.sample_rate = self.settings.front_end.sample_rate
        self.front_end = StackedFbank(
            self.settings.front_end, *read_statistics(self.sources[STATISTICS], self.settings.front_end.size)
        )
        self.tokens = read_pieces(self.sources["tokens"])
        self.network = SenseVoice.of(
            self.settings, read_state(self.sources[WEIGHTS]), len(self.tokens), str(self.sources[WEIGHTS])
        )
        self.choices = {"model": self.settings.model}
        self.notes = (
            f"the model is told the language of each utterance: option language, {USUAL_LANGUAGE} if none is given; it "
            f"knows {', '.join(LANGUAGES)}. With option use_itn it writes figures and punctuation",
        )

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        return {"encoder": OfflineGraph(network, self.front_end).eval()}

    def manifest(self) -> dict[str, Any]:
        assert self.tokens is not None
        return {
            "kind": "ctc",
            "features": self.front_end.described(),
            "encoder": Encoder(
                subsampling_rate=self.settings.front_end.step,
                output_dim=self.settings.encoder.output_size,
                min_samples=self.front_end.min_samples,
                tail_samples=tail_samples(self.options, self.sample_rate),
                languages=LANGUAGES,
                language=USUAL_LANGUAGE,
                text_forms=(PLAIN, WRITTEN),
                tags=SENSE_VOICE_TAGS,
            ),
            "vocabulary": Vocabulary(
                size=len(self.tokens), units="bpe", blank_id=self.settings.blank_id, has_marks=True
            ),
        }
