"""NeMo's RNNTDecoder, an LSTM, and RNNTJoint, with upstream's parameter names.

    token, state of each row              ->  predictor_out (rows, joint), next state
    encoder_out, predictor_out (rows, J)  ->  logits (rows, tokens and blank, then durations)

Source of method and names: NeMo, nemo/collections/asr/modules/rnnt.py and nemo/collections/common/parts/rnn.py.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.families.export.precision import as_dtype
from tritone.families.nemo.config import Activation, TransducerConfig

ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
GATES = 4  # input, forget, cell, output, in torch's order


class Lstm(nn.Module):
    """Layers of an LSTM, one token at a time, with the names of `torch.nn.LSTM`.

    Written as products, which all runtimes have in all precisions.
    """

    def __init__(self, size: int, layers: int) -> None:
        super().__init__()
        self.layers = layers
        for layer in range(layers):
            for name in ("ih", "hh"):
                self.register_parameter(f"weight_{name}_l{layer}", nn.Parameter(torch.zeros(GATES * size, size)))
                self.register_parameter(f"bias_{name}_l{layer}", nn.Parameter(torch.zeros(GATES * size)))

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, size), states (rows, layers, size) -> the last layer's output, and the next states."""
        hiddens, cells = [], []
        for layer in range(self.layers):
            given = (
                F.linear(value, getattr(self, f"weight_{name}_l{layer}"), getattr(self, f"bias_{name}_l{layer}"))
                for name, value in (("ih", x), ("hh", hidden[:, layer]))
            )
            entering, forgetting, new, leaving = sum(given).chunk(GATES, dim=1)  # type: ignore[union-attr]
            kept = torch.sigmoid(forgetting) * cell[:, layer] + torch.sigmoid(entering) * torch.tanh(new)
            x = torch.sigmoid(leaving) * torch.tanh(kept)
            hiddens.append(x)
            cells.append(kept)
        return x, torch.stack(hiddens, dim=1), torch.stack(cells, dim=1)


class _Recurrent(nn.Module):
    """Upstream's `dec_rnn`: dropout, which matters in training alone, around an LSTM."""

    def __init__(self, config: TransducerConfig) -> None:
        super().__init__()
        self.lstm = Lstm(config.hidden, config.layers)


class Predictor(nn.Module):
    """Prediction network; upstream's `decoder`."""

    def __init__(self, config: TransducerConfig, num_tokens: int) -> None:
        super().__init__()
        self.config = config
        embed = nn.Embedding(num_tokens + config.blank_as_pad, config.hidden)
        self.prediction = nn.ModuleDict({"embed": embed, "dec_rnn": _Recurrent(config)})

    @property
    def embed(self) -> nn.Embedding:
        """A vector for each token, and with `blank_as_pad` one of zeros for the blank."""
        layer = self.prediction["embed"]
        assert isinstance(layer, nn.Embedding)
        return layer

    def forward(self, context: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(rows, 1) int64, a negative id for no token; states as of `Lstm` -> (rows, hidden), and the next states."""
        recurrent = self.prediction["dec_rnn"]
        assert isinstance(recurrent, _Recurrent)
        x = self.embed(context[:, 0].clamp(min=0)) * as_dtype(context >= 0, self.embed.weight.dtype)
        return recurrent.lstm(x, hidden, cell)


class Joint(nn.Module):
    """Joint network: out(activation(enc(encoder) + pred(predictor)))."""

    def __init__(self, config: TransducerConfig, encoder_dim: int, num_tokens: int) -> None:
        super().__init__()
        self.pred = nn.Linear(config.hidden, config.joint)
        self.enc = nn.Linear(encoder_dim, config.joint)
        # Upstream's dropout, where there is one, moves the number of the layer after it.
        between = [nn.Identity()] if config.dropout_layer else []
        last = nn.Linear(config.joint, num_tokens + 1 + len(config.durations))
        self.joint_net = nn.Sequential(ACTIVATIONS[config.activation](), *between, last)

    @property
    def dim(self) -> int:
        """Width of what is joined."""
        return self.enc.out_features

    def forward(self, encoder_out: Tensor, predictor_out: Tensor) -> Tensor:
        """(rows, dim) of both, projected, float32 -> logits (rows, tokens, blank and durations) float32."""
        # Summed in float32: what both are given in.
        joined = as_dtype(encoder_out + predictor_out, self.enc.weight.dtype)
        return as_dtype(self.joint_net(joined), torch.float32)
