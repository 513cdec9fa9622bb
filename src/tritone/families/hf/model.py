"""The network: feature extractor, encoder and CTC head, and how upstream's tensors become it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tritone.families.export.checkpoint import require_fit
from tritone.families.hf.config import AnyConfig, GraniteConfig, LasrConfig
from tritone.families.hf.conformer import ConformerEncoder, Convolution
from tritone.families.hf.granite import GraniteConvolution, GraniteEncoder
from tritone.families.hf.lasr import LasrConvolution, LasrEncoder, LasrSubsampling
from tritone.families.hf.layers import Encoder, FeatureExtractor, FeatureProjection
from tritone.families.layers.ctc import token_log_probs

POSITIONS = "encoder.positions.embedding.weight"
FIRST_POSITIONS = "encoder.layers.0.attention.rel_attn_embed.weight"  # upstream has them in the first layer


class Network(nn.Module):
    """Samples or mel bands to log-probabilities; its tensors have upstream's names without `wav2vec2.` and the like."""

    fused = False

    def __init__(self, config: AnyConfig) -> None:
        super().__init__()
        self.config = config
        self.feature_extractor: nn.Module | None = None
        self.feature_projection: nn.Module | None = None
        self.encoder: nn.Module
        if isinstance(config, LasrConfig):
            self.feature_extractor, self.encoder = LasrSubsampling(config), LasrEncoder(config)
        elif isinstance(config, GraniteConfig):
            self.encoder = GraniteEncoder(config)
        else:
            self.feature_extractor = None if config.takes_fbank else FeatureExtractor(config)
            self.feature_projection = FeatureProjection(config)
            self.encoder = ConformerEncoder(config) if config.is_conformer else Encoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)

    @classmethod
    def of(cls, config: AnyConfig, state: Mapping[str, Tensor], origin: str) -> "Network":
        """Make a network of tensors as `checkpoint.read_state` returns them.

        Raises:
            ExportError: tensors are missing, misshapen, not finite or unknown; see `require_fit`.
        """
        with torch.device("meta"):  # the sizes are a stranger's; memory is taken by tensors that are there
            network = cls(config)
        if isinstance(network.encoder, GraniteEncoder) and _is_one(state, "lm_head.", "encoder.out."):
            network.encoder.out = network.lm_head
        state = {POSITIONS if name == FIRST_POSITIONS else name: value for name, value in state.items()}
        wanted = {name: value for name, value in network.state_dict().items() if value.is_floating_point()}
        require_fit({name: tuple(value.shape) for name, value in wanted.items()}, state, origin, "its config")
        network.load_state_dict({name: value.float() for name, value in state.items()}, strict=False, assign=True)
        for name, buffer in network.named_buffers():
            if buffer.is_meta:  # a counter of training
                network.get_submodule(name.rpartition(".")[0]).register_buffer(name.rpartition(".")[2], None)
        for part in network.modules():
            if isinstance(part, Convolution | LasrConvolution | GraniteConvolution):
                part.fold()
        return network.requires_grad_(False).eval()

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in."""
        return self.lm_head.weight.dtype

    def forward(self, x: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode features (batch, frames, bins), which may be samples, of which each row has `frames` (batch,) int64.

        Returns:
            Log-probabilities (batch, frames, tokens) float32, frames of each row (batch,) int64, and the encoder's
            result (batch, frames, width).
        """
        if self.feature_extractor is not None:
            x, frames = self.feature_extractor(x, frames)
        encoded = self.encoder(x if self.feature_projection is None else self.feature_projection(x), frames)
        if isinstance(self.encoder, GraniteEncoder):
            frames = self.encoder.num_frames(frames)
        return token_log_probs(self.lm_head, encoded, fused=self.fused), frames, encoded


def _is_one(state: Mapping[str, Tensor], one: str, other: str) -> bool:
    """Whether two layers are the same tensors."""
    pairs = [(one + end, other + end) for end in ("weight", "bias")]
    return all(a in state and b in state and torch.equal(state[a], state[b]) for a, b in pairs)
