"""A whole NeMo model of a .nemo archive: encoder, CTC head, prediction and joint network.

FILE.nemo  ->  ModelConfig, tokens  ->  NemoModel with the archive's tensors
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from tritone.errors import ExportError
from tritone.families.export.archive import ARCHIVE_SUFFIX, open_member, open_weights, read_config
from tritone.families.export.checkpoint import load_checkpoint, require_fit, state_of, without
from tritone.families.export.precision import as_dtype
from tritone.families.export.tokens import BLANK, pieces_of, tokens_of
from tritone.families.layers.log_mel import LogMelConfig
from tritone.families.layers.mel import mel_banks
from tritone.families.nemo.config import ModelConfig, PromptConfig, parse_config
from tritone.families.nemo.encoder import ConformerEncoder
from tritone.families.nemo.transducer import Joint, Predictor

COUNTER = ".num_batches_tracked"  # matters in training alone
# What may be left out: the filters and the window of features, which the config says, too; augmentation, loss, scores.
TRAINING = ("preprocessor.*", "spec_augmentation.*", "spec_augment.*", "loss.*", "ctc_loss.*", "wer.*", "ctc_wer.*")
BANDS = "preprocessor.featurizer.fb"  # (1, bins, DFT bins), the filters that upstream computes with
MAX_BANDS_DIFFERENCE = 1e-4  # librosa's are at most 0.03; in float32 two ways to compute them differ by 1e-8


class CtcDecoder(nn.Module):
    """Upstream's ConvASRDecoder: a product for each frame, and log-softmax."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.decoder_layers = nn.Sequential(nn.Conv1d(width, classes, 1))

    def forward(self, encoded: Tensor) -> Tensor:
        """(batch, frames, width) -> log-probabilities (batch, frames, classes) float32."""
        layer = self.decoder_layers[0]
        assert isinstance(layer, nn.Conv1d)
        logits = nn.functional.linear(encoded, layer.weight[:, :, 0], layer.bias)
        return torch.log_softmax(as_dtype(logits, torch.float32), dim=2)


class PromptKernel(nn.Sequential):
    """Two layers that mix a language into encoder frames; upstream's `prompt_kernel`.

    Upstream puts a vector with a one at the language's place beside each frame; that picks a column of the first
    layer's weight, which is added here.
    """

    def __init__(self, width: int, config: PromptConfig) -> None:
        first, last = nn.Linear(width + config.count, config.hidden), nn.Linear(config.hidden, width)
        super().__init__(first, nn.ReLU(), last)
        self.width = width

    def forward(self, encoded: Tensor, language: Tensor) -> Tensor:  # type: ignore[override]
        """(batch, frames, width), numbers of languages (batch,) int64 -> (batch, frames, width)."""
        first, activation, last = self
        assert isinstance(first, nn.Linear)
        mixed = nn.functional.linear(encoded, first.weight[:, : self.width], first.bias)
        chosen = nn.functional.embedding(language, first.weight[:, self.width :].t())
        result: Tensor = last(activation(mixed + chosen.unsqueeze(1)))
        return result


class NemoModel(nn.Module):
    """The network; `state_dict()` has upstream's names until `fold` is called.

    `ctc`: the CTC head, None if there is none; `predictor`, `joint`: likewise, of a transducer; `prompt_kernel`: of a
    model that takes the language.
    """

    def __init__(self, config: ModelConfig, num_tokens: int) -> None:
        super().__init__()
        self.config, self.num_tokens = config, num_tokens
        self.encoder = ConformerEncoder(config.encoder)
        width, settings = self.encoder.output_dim, config.transducer
        self.predictor = None if settings is None else Predictor(settings, num_tokens)
        self.joint = None if settings is None else Joint(settings, width, num_tokens)
        self.ctc = CtcDecoder(width, num_tokens + 1) if config.ctc else None
        self.prompt_kernel = None if config.prompts is None else PromptKernel(width, config.prompts)

    def upstream_parts(self) -> dict[str, nn.Module]:
        """The parts under the prefixes that upstream's state dicts have for them."""
        parts = {
            "encoder.": self.encoder,
            "decoder.": self.ctc if self.predictor is None else self.predictor,
            "joint.": self.joint,
            "ctc_decoder.": None if self.predictor is None else self.ctc,
            "prompt_kernel.": self.prompt_kernel,
        }
        return {prefix: part for prefix, part in parts.items() if part is not None}

    def upstream_state(self) -> dict[str, Tensor]:
        """All tensors by upstream's names, without counters."""
        return {
            prefix + name: value
            for prefix, part in self.upstream_parts().items()
            for name, value in part.state_dict().items()
            if not name.endswith(COUNTER)
        }

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        num_tokens: int,
        state: Mapping[str, Tensor],
        origin: str,
        spelled: Callable[[str], str] = str,
    ) -> "NemoModel":
        """Make a network of an archive's tensors, ready to run.

        Args:
            origin: where the tensors come from, for errors.
            spelled: the name that a tensor of NeMo's has in `state`.

        Raises:
            ExportError: tensors and config do not fit each other; names all that do not.
        """
        with torch.device("meta"):  # what a config asks for takes no memory before it is known to be there
            model = cls(config, num_tokens)
        kept = without(state, TRAINING)
        wanted = {spelled(name): tuple(value.shape) for name, value in model.upstream_state().items()}
        require_fit(wanted, kept, origin, "its config")
        for prefix, part in model.upstream_parts().items():
            own = {
                name: torch.tensor(0) if name.endswith(COUNTER) else kept[spelled(prefix + name)].float()
                for name in part.state_dict()
            }
            part.load_state_dict(own, assign=True)
        model.encoder.fold()
        return model.eval().requires_grad_(False)


def read_archive(path: Path) -> tuple[NemoModel, list[str]]:
    """Read a .nemo archive.

    Returns:
        The network, and its tokens in the order of their ids, the blank last.

    Raises:
        ExportError: a file is missing, damaged or unsupported, or does not fit another.
        MissingDependencyError: sentencepiece is needed and not installed.
    """
    if not path.is_file():
        raise ExportError(f"archive not found: {path}")
    content = read_config(path)
    try:
        config = parse_config(content)
    except ExportError as error:
        raise ExportError(f"{path}: {error}") from error
    tokens = _tokens(path, config)
    with open_weights(path) as file:
        loaded = load_checkpoint(
            path,
            plain="Restore the model in NeMo and save it again with model.save_to.",
            usual=f"{ARCHIVE_SUFFIX} archive",
            file=file,
        )
    state = state_of(loaded, path).tensors
    if BANDS in state:
        check_bands(state[BANDS], config.features, path)
    return NemoModel.of(config, len(tokens) - 1, state, str(path)), tokens


def _tokens(path: Path, config: ModelConfig) -> list[str]:
    if config.tokenizer is None:
        if not config.labels:
            raise ExportError(f"{path}: the config has neither a tokenizer nor a list of labels")
        return tokens_of(config.labels)
    with open_member(path, config.tokenizer) as file:
        pieces = pieces_of(file.read(), f"{config.tokenizer} in {path}")
    if config.labels and len(config.labels) != len(pieces):
        raise ExportError(
            f"{path}: the tokenizer has {len(pieces)} pieces, but the config lists {len(config.labels)}; they are not "
            "of one model"
        )
    return [*pieces, BLANK]


def check_bands(stored: Tensor, config: LogMelConfig, path: Path) -> None:
    """Compare the filters that an archive holds with those that are computed of its config."""
    made = mel_banks(config.n_filt, config.sample_rate, config.n_fft, config.low_freq, config.high_freq).T
    found = stored.float().numpy()
    if found.shape != (1, *made.shape) or not np.abs(found[0] - made).max() <= MAX_BANDS_DIFFERENCE:
        raise ExportError(
            f"{path}: {BANDS}, the mel filters that the model was trained with, are not those of its config "
            "(`preprocessor`), so its features would be others. Please report this with the config."
        )
