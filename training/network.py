"""The network in training: Tritone's WeNet model, joint CTC and attention loss, feature statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.units import BLANK_ID, SOS_EOS_ID
from tritone.families.wenet.config import parse_config
from tritone.families.wenet.encoder import Encoder
from tritone.families.wenet.model import AsrModel

IGNORED = -1  # target of padded positions
VARIANCE_FLOOR = 1e-20  # WeNet's, when it reads global_cmvn


class ShiftedEncoder(Encoder):
    """The encoder with its first frame at any position, so that training meets the positions of long streams.

    WeNet's position term belongs to the key's absolute position. A network that only ever saw the first 16 s would be
    at a loss in the second minute of a stream.
    """

    first_position = 0

    def _embed(self, feats: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super()._embed(feats, offset + self.first_position)


class Network(nn.Module):
    """Holds `model`, an `AsrModel` whose state_dict is what final.pt holds; `encoder` and `cmvn` are parts of it."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        parsed = parse_config(config)
        self.model = AsrModel(parsed)
        self.encoder = ShiftedEncoder(parsed.encoder, parsed.uses_cmvn)
        if self.encoder.global_cmvn is None:
            raise ValueError("the recipe normalises features: its config needs cmvn and cmvn_conf.cmvn_file")
        self.cmvn = self.encoder.global_cmvn
        self.model.encoder = self.encoder
        for module in self.model.modules():
            # PyTorch draws embeddings with deviation 1, and the decoder multiplies them by sqrt(width) on top.
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


class Objective:
    """Joint loss: ctc_weight · CTC + (1 - ctc_weight) · attention, each a mean over tokens.

    Means over tokens instead of WeNet's over utterances, because batches hold utterances of similar length and a batch
    of long ones would otherwise weigh many times more.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        settings = config.get("model_conf") or {}
        self.ctc_weight = float(settings.get("ctc_weight", 0.5))
        self.reverse_weight = float(settings.get("reverse_weight", 0.0))
        self.smoothing = float(settings.get("lsm_weight", 0.0))

    def __call__(
        self,
        model: AsrModel,
        feats: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        frames_cpu: Tensor,
        num_tokens_cpu: Tensor,
        chunk: int,
        left: int,
    ) -> dict[str, Tensor]:
        """Losses of a batch.

        Args:
            feats, lengths: (batch, frames, bins) and valid frames (batch,).
            tokens: (batch, length), zero-padded.
            frames_cpu, num_tokens_cpu: encoder frames and tokens (batch,) in CPU memory, where CTC wants them: fetching
                them from the GPU would make it wait in the middle of every step.
            chunk, left: chunk size and left chunks in encoder frames and chunks, -1 for all.
        """
        num_tokens = num_tokens_cpu.to(tokens.device, non_blocking=True)
        encoded, lengths = model.encoder(feats, lengths, chunk, left)
        log_probs = model.ctc(encoded)
        per_utterance = F.ctc_loss(
            log_probs.transpose(0, 1),
            tokens,
            frames_cpu,
            num_tokens_cpu,
            BLANK_ID,
            reduction="none",
            zero_infinity=True,
        )
        # One more token an utterance, so that empty ones count for something.
        total = (num_tokens.sum() + num_tokens.numel()).to(encoded.dtype)
        ctc = per_utterance.sum() / total
        left_in, left_out = with_sos_eos(tokens, num_tokens)
        right_in, right_out = with_sos_eos(reverse(tokens, num_tokens), num_tokens)
        left_logits, right_logits = model.decode(encoded, lengths, left_in, right_in)
        if right_logits is None:
            raise ValueError("the recipe trains a bitransformer decoder; decoder in its config is something else")
        attention = self._attention_loss(left_logits, left_out)
        right = self._attention_loss(right_logits, right_out)
        attention = (1.0 - self.reverse_weight) * attention + self.reverse_weight * right
        loss = self.ctc_weight * ctc + (1.0 - self.ctc_weight) * attention
        with torch.no_grad():
            known = left_out != IGNORED
            accuracy = ((left_logits.argmax(dim=-1) == left_out) & known).sum() / known.sum()
        return {"loss": loss, "ctc": ctc.detach(), "attention": attention.detach(), "accuracy": accuracy}

    def _attention_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, label_smoothing=self.smoothing
        )


def with_sos_eos(tokens: Tensor, num_tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Decoder input [<sos>, tokens] padded with <eos>, and targets [tokens, <eos>] padded with `IGNORED`."""
    length = tokens.shape[1]
    places = torch.arange(length + 1, device=tokens.device)
    ends = num_tokens.unsqueeze(1)
    inputs = F.pad(tokens, (1, 0), value=SOS_EOS_ID)
    inputs = torch.where(places <= ends, inputs, SOS_EOS_ID)
    targets = F.pad(tokens, (0, 1), value=IGNORED)
    targets = torch.where(places < ends, targets, torch.where(places == ends, SOS_EOS_ID, IGNORED))
    return inputs, targets


def reverse(tokens: Tensor, num_tokens: Tensor) -> Tensor:
    """Turn each row's valid tokens round; the padding stays behind them."""
    places = torch.arange(tokens.shape[1], device=tokens.device)
    source = num_tokens.unsqueeze(1) - 1 - places
    return torch.where(source >= 0, tokens.gather(1, source.clamp(min=0)), tokens)


def write_cmvn(sums: np.ndarray, squares: np.ndarray, frames: int) -> dict[str, Any]:
    """WeNet's JSON statistics: sums over frames, not averages."""
    return {"mean_stat": sums.tolist(), "var_stat": squares.tolist(), "frame_num": int(frames)}


def read_cmvn(statistics: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and inverse deviation per bin, float32, computed as WeNet does."""
    count = float(statistics["frame_num"])
    mean = np.array(statistics["mean_stat"]) / count
    variance = np.maximum(np.array(statistics["var_stat"]) / count - mean**2, VARIANCE_FLOOR)
    return mean.astype(np.float32), (1.0 / np.sqrt(variance)).astype(np.float32)
