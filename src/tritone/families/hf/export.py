"""From a folder of transformers to a bundle.

config.json, processor_config.json, vocab.json, …, model.safetensors
    ->  manifest.json, tokens.txt, and for each runtime and precision the graph of whole utterances
"""

from pathlib import Path
from typing import Any

from tritone.bundle.manifest import Encoder, Features, Precision, Role, Vocabulary
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
from tritone.families.hf.features import Samples
from tritone.families.hf.graphs import OfflineGraph
from tritone.families.hf.model import Network
from tritone.families.hf.options import HfOptions
from tritone.families.hf.tokenizer import VOCAB, read_tokenizer

EXTRACTOR = "Wav2Vec2FeatureExtractor"
LANGUAGE_MODELS = "language_model"  # the folder of Wav2Vec2ProcessorWithLM
RATES = (1000, 768_000)  # Hz, what manifests allow


def export_hf(**choices: Any) -> ExportReport:
    """Export a CTC model of transformers: wav2vec 2.0, HuBERT, WavLM, data2vec, UniSpeech, UniSpeech-SAT, MMS.

    Args:
        choices: the fields of `HfOptions`.

    Raises:
        ExportError: a file is missing, damaged or unsupported; or as of `write_bundle`, with its other errors.
        ValueError: see `ExportOptions`.
    """
    options = HfOptions(**choices)
    return write_bundle(HfModel(options), options)


class HfModel(ExportedModel):
    """A trained CTC model in a folder of transformers."""

    family = "hf"

    def __init__(self, options: HfOptions) -> None:
        """Read the folder of the options."""
        options.progress("reading the model")
        self.options = options
        folder = options.folder
        if not folder.is_dir():
            raise ExportError(f"folder not found: {folder}; give one that transformers' save_pretrained wrote")
        self.settings = parse_config(read_json(folder / CONFIG), str(folder / CONFIG))
        normalize, self.sample_rate = _read_extractor(folder)
        self.network = self._read_network(folder)
        self.settings = self.network.config
        self.front_end = Samples(normalize)
        self.table = read_tokenizer(folder, self.settings.vocab_size, options.language)
        self.tokens = self.table.tokens
        self.sources |= {"config": folder / CONFIG, "vocabulary": folder / VOCAB}
        self.choices = {"model_type": self.settings.model_type, "normalize": normalize, "language": options.language}
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
        if self.settings.pad_token_id not in (None, self.table.blank_id):
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
            "features": Features(
                kind="samples",
                frame_length=1,
                frame_shift=1,
                num_mel_bins=1,
                window="rectangular",
                preemphasis=0.0,
                sample_scale=1.0,
                normalize="all-features" if self.front_end.normalize else "none",
            ),
            "encoder": Encoder(
                subsampling_rate=self.settings.stride,
                output_dim=self.settings.hidden_size,
                min_samples=self.settings.reach,
                tail_samples=tail_samples(self.options, self.sample_rate),
            ),
            "vocabulary": Vocabulary(
                size=self.settings.vocab_size,
                units="char",
                connect_symbol=table.connect_symbol,
                blank_id=table.blank_id,
                unk_id=table.unk_id,
                sos_id=table.sos_id,
                eos_id=table.eos_id,
            ),
        }


def _read_extractor(folder: Path) -> tuple[bool, int]:
    """Whether waveforms are normalised, and the sample rate in Hz.

    Raises:
        ExportError: the file is missing, or it is of another kind of features.
    """
    content, path = read_extractor(folder)
    kind = content.get("feature_extractor_type", EXTRACTOR)
    normalize, rate = content.get("do_normalize", True), content.get("sampling_rate", 16000)
    if kind != EXTRACTOR or content.get("feature_size", 1) != 1:
        raise ExportError(f"{path} is of a {kind} of size {content.get('feature_size', 1)}; expected {EXTRACTOR} of 1")
    if not isinstance(normalize, bool) or not isinstance(rate, int) or not RATES[0] <= rate <= RATES[1]:
        raise ExportError(f"{path} has do_normalize {normalize!r} and sampling_rate {rate!r}; expected a bool and Hz")
    return normalize, rate
