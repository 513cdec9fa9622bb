"""CT-Transformer: which mark stands behind each word of a text.

    config.yaml, model.pt, tokens.json (and jieba_usr_dict)
        ->  ids of words  ->  scores of marks  ->  manifest.json, tokens.txt, graphs

The encoder is that of a Paraformer, over words. Source: funasr/models/ct_transformer/model.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tritone.audio import Waveform
from tritone.bundle.manifest import Precision, Role
from tritone.errors import ExportError
from tritone.families.export.checkpoint import require_fit
from tritone.families.export.drift import Movement, distribution_drift
from tritone.families.export.exportable import EXAMPLE_BATCH, ExportableGraph, Graphs, Run
from tritone.families.export.frame import ExportedModel
from tritone.families.export.precision import as_dtype, in_precision
from tritone.families.export.report import Choice
from tritone.families.export.settings import Section
from tritone.families.funasr.checkpoint import CONFIG, TOKENS, WEIGHTS, read_state, read_tokens
from tritone.families.funasr.config import OF_ENCODER, OF_MODEL, TRAINING, EncoderConfig, encoder_of
from tritone.families.funasr.layers import Encoder
from tritone.families.funasr.options import FunasrOptions
from tritone.kinds.punctuation.part import PunctuationPart
from tritone.runtime import Graph

CT_TRANSFORMER = "CTTransformer"
DICTIONARY = "jieba_usr_dict"  # of words of several characters, in folders of such models
NONE = "_"  # the mark of words that have none behind them
MAX_MARKS = 64
OF_MODEL_CONF = (
    *("ignore_id", "embed_unit", "att_unit", "dropout_rate", "punc_list", "punc_weight", "sentence_end_id", "sos"),
    "eos",
)


class CtTransformer(nn.Module):
    """The network of model.pt; `state_dict()` has upstream's names."""

    def __init__(self, config: EncoderConfig, vocab_size: int, marks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, config.input_size)
        self.encoder = Encoder(config)
        self.decoder = nn.Linear(config.output_size, marks)

    @classmethod
    def of(
        cls, config: EncoderConfig, state: Mapping[str, Tensor], vocab_size: int, marks: int, origin: str
    ) -> "CtTransformer":
        """Make a network of the tensors of model.pt.

        Raises:
            ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
        """
        with torch.device("meta"):  # the sizes are a stranger's; memory is taken by tensors that are there
            network = cls(config, vocab_size, marks)
        wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        require_fit(wanted, state, origin, f"its config and {vocab_size} tokens")
        network.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
        return network.requires_grad_(False).eval()

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Scores (batch, words, marks) of ids (batch, words) int64, of which each row has `lengths` (batch,) int64."""
        return self.decoder(self.encoder(as_dtype(self.embed(ids), torch.float32), lengths))


class PunctuationGraph(ExportableGraph):
    """Texts of several lengths: inputs (batch, words) int32, text_lengths (batch,) int32."""

    compared = ("logits",)
    counted = None

    def __init__(self, network: CtTransformer) -> None:
        super().__init__()
        self.network = network

    @property
    def outputs(self) -> list[str]:
        return ["logits"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {"inputs": {0: "batch", 1: "words"}, "text_lengths": {0: "batch"}}

    def example(self) -> dict[str, Tensor]:
        return self._texts(EXAMPLE_BATCH, 23)

    def trials(self) -> Iterator[Run]:
        """Rows of all words; then a long one."""
        yield Run([self._texts(3, 17)])
        yield Run([self._texts(1, 211)])

    def _texts(self, rows: int, words: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(rows * words)
        ids = torch.randint(self.network.embed.num_embeddings, (rows, words), generator=random)
        return {"inputs": ids.to(torch.int32), "text_lengths": torch.full((rows,), words, dtype=torch.int32)}

    def forward(self, inputs: Tensor, text_lengths: Tensor) -> tuple[Tensor, ...]:
        return (as_dtype(self.network(inputs.to(torch.int64), text_lengths.to(torch.int64)), torch.float32),)


class PunctuationModel(ExportedModel):
    """A trained CT-Transformer."""

    family = "funasr"
    sample_rate = 16000  # of nothing: it hears no audio

    def __init__(self, options: FunasrOptions, content: Mapping[str, Any]) -> None:
        """Read the folder of the options, whose config.yaml has this content.

        Raises:
            ExportError: a file is missing, damaged or unsupported.
        """
        if options.stages or options.tail_padding_ms:
            raise ExportError("a punctuation model hears no audio: leave stages and tail padding out")
        self.options = options
        self.sources: dict[str, Path] = {name: options.folder / name for name in (CONFIG, WEIGHTS, TOKENS)}
        self.choices: dict[str, Choice] = {"model": CT_TRANSFORMER}
        self.tokens = read_tokens(self.sources[TOKENS])
        root = Section("config", content, (*OF_MODEL, *TRAINING, DICTIONARY))
        root.choice("encoder", ["SANMEncoder"])
        part = root.section("model_conf", OF_MODEL_CONF)
        unit = part.whole("embed_unit", 128, least=1)
        encoder = root.section("encoder_conf", (*OF_ENCODER, "input_size"))
        if encoder.whole("input_size", unit) != unit:
            raise ExportError(f"config.encoder_conf.input_size should be model_conf.embed_unit, {unit}")
        config = encoder_of(encoder, unit, 1e-12, "pe")
        if part.whole("att_unit", 256) != config.output_size or config.after_blocks:
            raise ExportError(f"config.model_conf.att_unit should be the encoder's output_size, {config.output_size}")
        unknown = str(
            root.part("tokenizer_conf", ("unk_symbol", "token_list", "split_with_space")).get("unk_symbol", "<unk>")
        )
        if unknown not in self.tokens:
            raise ExportError(
                f"tokens {self.sources[TOKENS]} do not have {unknown[:80]!r}, which stands for unknown words"
            )
        dictionary = options.folder / DICTIONARY
        if dictionary.is_file():
            self.sources[DICTIONARY] = dictionary
            self.files = {DICTIONARY: dictionary}
        self.punctuation = described(
            part.get("punc_list", None),
            part.whole("sentence_end_id", 3),
            self.tokens.index(unknown),
            dictionary.is_file(),
        )
        weights, marks = self.sources[WEIGHTS], len(self.punctuation.marks)
        self.network = CtTransformer.of(config, read_state(weights), len(self.tokens), marks, str(weights))

    def graphs_in(self, precision: Precision, explicit: bool) -> Graphs:
        return {"model": PunctuationGraph(in_precision(self.network, precision, explicit=explicit)).eval()}

    def drift(self, role: Role, opened: Graph, recordings: Sequence[Waveform]) -> Movement:
        graph = self.graphs["model"]
        return distribution_drift(
            (_log_softmax(expected), _log_softmax(found))
            for run in graph.trials()
            for step in run.steps
            for expected, found in zip(
                graph(*step.values())[0].numpy(),
                opened({name: value.numpy() for name, value in step.items()}, ["logits"])[0],
                strict=True,
            )
        )

    def manifest(self) -> dict[str, Any]:
        return {
            "kind": "punctuation",
            "generic": self.punctuation.tensors,
            "punctuation": self.punctuation,
        }


def described(marks: Any, full_stop: int, unknown: int, has_dictionary: bool) -> PunctuationPart:
    """That part of the manifest.

    Raises:
        ExportError: the marks are no texts of which one ends sentences.
    """
    is_list = isinstance(marks, list) and 2 <= len(marks) <= MAX_MARKS and all(isinstance(each, str) for each in marks)
    if not is_list or not 0 <= full_stop < len(marks) or marks[full_stop] in ("", NONE):
        raise ExportError(
            f"the marks are {str(marks)[:200]}, and {full_stop} ends sentences; expected a list of texts with one of it"
        )
    return PunctuationPart(
        marks=tuple("" if mark == NONE else "<" if mark.startswith("<") else mark[:4] for mark in marks),
        full_stop=full_stop,
        unknown=unknown,
        dictionary=DICTIONARY if has_dictionary else None,
    )


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(np.array(scores)), dim=-1).numpy()
