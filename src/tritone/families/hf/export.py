"""From a folder of transformers to a bundle.

config.json, processor_config.json, vocab.json, …, model.safetensors
    ->  manifest.json, tokens.txt, and for each runtime and precision the graph of whole utterances
"""

from pathlib import Path
from typing import Any

from tritone.bundle.manifest import Encoder, Precision, Role, Vocabulary
from tritone.errors import ExportError
from tritone.families.export.exportable import ExportableGraph, Graphs
from tritone.families.export.frame import ExportedModel, tail_samples, write_bundle
from tritone.families.export.hf_folder import CONFIG, read_extractor, weight_files
from tritone.families.export.json_files import read_json
from tritone.families.export.precision import in_precision
from tritone.families.export.report import ExportReport
from tritone.families.export.stages import stage_graphs
from tritone.families.hf.checkpoint import adapter_file, read_adapter, read_state
from tritone.families.hf.config import parse_config
from tritone.families.hf.features import read_front_end
from tritone.families.hf.graphs import OfflineGraph
from tritone.families.hf.model import Network
from tritone.families.hf.options import HfOptions
from tritone.families.hf.tokenizer import read_pieces, read_tokenizer
from tritone.families.known import export_elsewhere

LANGUAGE_MODELS = "language_model"  # the folder of Wav2Vec2ProcessorWithLM


def export_hf(**choices: Any) -> ExportReport:
    """Export a model of transformers with CTC (wav2vec 2.0, HuBERT, … `config.PREFIXES`), or as another family does.

    Args:
        choices: the fields of `HfOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = HfOptions(**choices)
    if not options.folder.is_dir():
        raise ExportError(f"folder not found: {options.folder}; give one that transformers' save_pretrained wrote")
    if (report := export_elsewhere("hf", options.folder, choices)) is not None:
        made: ExportReport = report
        return made
    options.progress("reading the model")
    return write_bundle(HfModel(options), options)


class HfModel(ExportedModel):
    """A trained CTC model in a folder of transformers."""

    family = "hf"

    def __init__(self, options: HfOptions) -> None:
        """Read the folder of the options."""
        self.options = options
        folder = options.folder
        self.settings = parse_config(read_json(folder / CONFIG), str(folder / CONFIG))
        self.front_end, self.sample_rate = read_front_end(*read_extractor(folder), self.settings)
        self.network = self._read_network(folder)
        self.settings = self.network.config
        if (blank := self.settings.blank_piece) is not None:
            self.table = read_pieces(folder, self.settings.vocab_size, blank)
        else:
            self.table = read_tokenizer(folder, self.settings.vocab_size, options.language)
        self.tokens = self.table.tokens
        self.sources |= {"config": folder / CONFIG, "vocabulary": self.table.origin}
        self.choices = {
            "model_type": self.settings.model_type,
            "normalize": self.front_end.described().normalize != "none",
            "language": options.language,
        }
        self.notes = tuple(self._noted(folder))

    def _read_network(self, folder: Path) -> Network:
        """The network, with the adapter of the language if one is asked for."""
        files = weight_files(folder)
        self.sources: dict[str, Path] = {each.name: each for each in files}
        state = read_state(files, self.settings.model_type)
        if (language := self.options.language) is not None:
            if self.settings.language_adapter is None:
                raise ExportError(f"{folder} has no adapters of languages (adapter_attn_dim); leave out --language")
            file = adapter_file(folder, language)
            self.sources[file.name] = file
            state |= read_adapter(file, self.settings.model_type)
            # Each language has its own number of tokens.
            self.settings = self.settings.model_copy(update={"vocab_size": state["lm_head.weight"].shape[0]})
        return Network.of(self.settings, state, str(folder))

    def _noted(self, folder: Path) -> list[str]:
        notes = []
        if self.table.nameless:
            notes.append(
                f"{len(self.table.nameless)} outputs have no token in the vocabulary; their texts are like "
                f"{self.table.tokens[self.table.nameless[0]]}"
            )
        if self.settings.blank_piece is None and self.settings.pad_token_id not in (None, self.table.blank_id):
            notes.append(
                f"the blank is the tokenizer's pad token, id {self.table.blank_id}, as in upstream's decoding; "
                f"config.json has pad_token_id {self.settings.pad_token_id}"
            )
        if (folder / LANGUAGE_MODELS).is_dir():
            notes.append(
                f"{folder / LANGUAGE_MODELS} is not part of the bundle; give its file to --lm of transcribe and build"
            )
        return notes

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        network = in_precision(self.network, precision, explicit=explicit)
        offline = OfflineGraph(network, self.front_end, self.sample_rate).eval()
        graphs: dict[Role, ExportableGraph] = {"encoder": offline}
        return graphs | stage_graphs(offline) if self.options.stages else graphs

    def manifest(self) -> dict[str, Any]:
        table = self.table
        return {
            "kind": "ctc",
            "features": self.front_end.described(),
            "encoder": Encoder(
                subsampling_rate=self.settings.stride,
                output_dim=self.settings.hidden_size,
                min_samples=self.front_end.least_samples(self.settings.reach),
                tail_samples=tail_samples(self.options, self.sample_rate),
            ),
            "vocabulary": Vocabulary(
                size=self.settings.vocab_size,
                units=table.units,
                connect_symbol=table.connect_symbol,
                blank_id=table.blank_id,
                unk_id=table.unk_id,
                sos_id=table.sos_id,
                eos_id=table.eos_id,
            ),
        }
