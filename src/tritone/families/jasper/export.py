"""From upstream's files to a bundle.

Jasper_…_checkpoint.pt and its .yaml, or a .nemo archive
    ->  manifest.json, tokens.txt, and for each runtime and precision the graph of whole utterances
"""

from dataclasses import replace
from typing import Any

from tritone.bundle.manifest import Encoder, Precision, Role, Vocabulary
from tritone.errors import ExportError
from tritone.families.export.archive import ARCHIVE_SUFFIX
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.stages import stage_graphs
from tritone.families.export.tokens import tokens_of
from tritone.families.jasper.checkpoint import check_state, read_config, read_weights
from tritone.families.jasper.graphs import OfflineGraph
from tritone.families.jasper.model import Network
from tritone.families.jasper.options import JasperOptions
from tritone.families.layers.log_mel import LogMel, features_of


def export_jasper(**choices: Any) -> ExportReport:
    """Export a Jasper or QuartzNet model. Masked or not, a result never depends on other utterances.

    Args:
        choices: the fields of `JasperOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`; or int8 is asked for.
    """
    options = JasperOptions(**choices)
    return write_bundle(JasperModel(options), options)


class JasperModel(ExportedModel):
    """A trained Jasper or QuartzNet."""

    family = "jasper"

    def __init__(self, options: JasperOptions) -> None:
        """Read the files that the options name."""
        options.progress("reading the checkpoint")
        checkpoint, config = options.checkpoint, options.config
        if config is None and checkpoint.suffix != ARCHIVE_SUFFIX:
            raise ExportError(f"{checkpoint} needs a config: the .yaml that it was trained with (--config)")
        settings = read_config(config or checkpoint)
        self.options = options
        self.tokens = tokens_of(settings.labels)
        weights = read_weights(checkpoint, ema=options.ema)
        check_state(settings, weights.state, str(checkpoint))
        # Graphs hold batch norms folded into convolutions.
        self._parameters = sum(value.numel() for name, value in weights.state.items() if ".running_" not in name)
        self.settings = replace(settings, masked=settings.masked if options.masked is None else options.masked)
        self.network = Network.of(self.settings, weights.state)
        self.front_end = LogMel(self.settings.features)
        self.sample_rate = self.settings.features.sample_rate
        self.sources = {"checkpoint": checkpoint} | ({"config": config} if config else {})
        self.choices = {"ema": weights.averaged, "masked": self.settings.masked}
        if options.ema and not weights.averaged:
            self.notes = ("the checkpoint has no averaged weights; its plain ones were taken",)

    @property
    def parameters(self) -> int:
        return self._parameters

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        offline = OfflineGraph(in_precision(self.network, precision), self.front_end).eval()
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        return graphs | stage_graphs(offline) if self.options.stages else graphs

    def manifest(self) -> dict[str, Any]:
        settings, offline = self.settings, self.graphs["encoder"]
        assert isinstance(offline, OfflineGraph)
        return {
            "kind": "ctc",
            "features": features_of(settings.features),
            "encoder": Encoder(
                subsampling_rate=settings.subsampling_rate,
                output_dim=settings.blocks[-1].filters,
                min_samples=offline.min_samples,
                tail_samples=tail_samples(self.options, self.sample_rate),
            ),
            "vocabulary": Vocabulary(size=settings.num_classes, units="char", blank_id=settings.blank_id),
        }
