"""icefall's streaming zipformer or conformer transducer as the trainer sees it: loss, greedy search, icefall's files.

The joint loss is `transducer_weight` · transducer + `ctc_weight` · CTC, which helps the encoder to start. This CTC
gives each token one frame: it is the same lattice with logits that depend on the frame alone. Its head is not shipped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

from training.corpus import SAMPLE_RATE, SERVED_TAIL_S
from training.dataset import Batch
from training.files import save_torch
from training.lattice import lattice_loss, transducer_loss
from training.pieces import Pieces
from training.recipe import Recipe
from training.scoring import Transcriber, padded_batches
from tritone.families.icefall.conformer import ConformerConfig
from tritone.families.icefall.model import IcefallConfig, IcefallModel
from tritone.families.icefall.stateless import PredictorConfig
from tritone.families.icefall.zipformer import StackConfig, ZipformerConfig
from tritone.families.layers.fbank import Fbank

BLANK_ID = 0
PADDING = -23.025850929940457  # log(1e-10), the feature value that stands for no sound
FLUSH_FRAMES = 13  # feature frames of it that follow a stream
HERE = Path(__file__).parent


class TransducerSystem:
    """See `systems.System`. Chunks and history are in encoder frames of 20 ms (zipformer) or 40 ms (conformer)."""

    def __init__(self, config: dict[str, Any], recipe: Recipe, device: torch.device) -> None:
        self.config, self.recipe, self.device = config, recipe, device
        settings = config["transducer"]
        self.units = Pieces(HERE / settings["bpe_model"])
        self.model = IcefallModel.from_config(model_config(config, len(self.units))).to(device)
        embedding = self.model.predictor.embedding
        self.model.predictor.embedding = DenseEmbedding(
            embedding.num_embeddings, embedding.embedding_dim, _weight=embedding.weight
        )
        self.features = Fbank(snip_edges=False, sample_scale=1.0, high_freq=-400.0).to(device)
        self.one_per_frame = bool(settings["one_per_frame"])
        self.weights = {"transducer": float(settings["transducer_weight"]), "ctc": float(settings["ctc_weight"])}
        # feature frames of a served chunk
        self.chunk_frames = recipe.chunk_served * (2 if "zipformer" in config else 4)

    def prepare(self, features: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Nothing to prepare: icefall's networks take features as they are."""

    def draw_chunk(self, rng: np.random.Generator) -> tuple[int, int]:
        """Full context, the served setting, or one of the recipe's choices."""
        recipe, draw = self.recipe, rng.random()
        if draw < recipe.full_share:
            return -1, -1
        if draw < recipe.full_share + recipe.served_share:
            return recipe.chunk_served, recipe.left_served
        chunk, left = recipe.chunk_choices[int(rng.integers(len(recipe.chunk_choices)))]
        return chunk, left

    def mask_value(self, feats: Tensor, lengths: Tensor) -> Tensor:
        """The batch's mean, as the features are not normalised."""
        valid = (torch.arange(feats.shape[1], device=feats.device) < lengths.unsqueeze(1)).unsqueeze(2)
        return (feats * valid).sum(dim=(0, 1)) / lengths.sum()

    def losses(
        self, feats: Tensor, lengths: Tensor, batch: Batch, chunk: int, left: int, rng: np.random.Generator
    ) -> dict[str, Tensor]:
        if chunk > 0:
            # A stream's last step runs into padding, up to a whole chunk of it.
            feats = with_padding(feats, lengths, FLUSH_FRAMES + self.chunk_frames)
            lengths = lengths + FLUSH_FRAMES + torch.randint_like(lengths, self.chunk_frames)
        tokens = batch.tokens.to(self.device, non_blocking=True)
        num_tokens = batch.num_tokens.to(self.device, non_blocking=True)
        encoded, num_frames = self.model.encoder(feats, lengths, chunk_size=chunk, left_context=left)
        logits = joint_logits(self.model, encoded, tokens)
        transducer = transducer_loss(
            logits, tokens, num_frames, num_tokens, blank_id=BLANK_ID, one_per_frame=self.one_per_frame
        )
        # One more token an utterance, so that empty ones count for something.
        total = (num_tokens.sum() + num_tokens.numel()).to(logits.dtype)
        losses = {"transducer": transducer.sum() / total}
        if self.model.ctc is not None:
            log_probs = self.model.ctc(encoded)
            blank = log_probs[..., BLANK_ID].unsqueeze(2).expand(-1, -1, tokens.shape[1] + 1)
            said = log_probs.gather(2, tokens.unsqueeze(1).expand(-1, log_probs.shape[1], -1))
            frames_alone = lattice_loss(blank, said, num_frames, num_tokens, one_per_frame=True)
            losses["ctc"] = frames_alone.sum() / total
        loss = sum(self.weights[name] * value for name, value in losses.items())
        assert isinstance(loss, Tensor)
        return {"loss": loss, **{name: value.detach() for name, value in losses.items()}}

    def modes(self) -> dict[str, Transcriber]:
        def mode(chunk: int, left: int) -> Transcriber:
            return lambda waveforms: self.transcribe(waveforms, chunk, left)

        return {"full": mode(-1, -1), "chunk": mode(self.recipe.chunk_served, self.recipe.left_served)}

    @torch.no_grad()
    def transcribe(self, waveforms: Sequence[np.ndarray], chunk: int = -1, left: int = -1) -> list[str]:
        """Text of int16 waveforms as serving gives it, in the order given; in chunks nearly as a stream gives it."""
        tail = round(SERVED_TAIL_S * SAMPLE_RATE)
        texts = [""] * len(waveforms)
        for chosen, padded, num_samples in padded_batches(waveforms, tail, self.device):
            feats, lengths = self.features(padded, num_samples)
            if chunk > 0:
                # Steps run until their shift has passed the padding, and each of them gives all its frames.
                steps = (lengths + FLUSH_FRAMES + self.chunk_frames - 1) // self.chunk_frames
                feats = with_padding(feats, lengths, FLUSH_FRAMES + self.chunk_frames)
                lengths = steps * self.chunk_frames + self.model.encoder.min_frames - 2
            encoded, num_frames = self.model.encoder(feats, lengths, chunk_size=chunk, left_context=left)
            for index, ids in zip(chosen, greedy_search(self.model, encoded, num_frames), strict=True):
                texts[index] = self.units.decode(ids)
        return texts

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write pretrained.pt, tokens.txt, bpe.model and the settings."""
        own = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(weights)
        state = {name: value.detach().cpu().clone() for name, value in self.model.upstream_state().items()}
        self.model.load_state_dict(own)
        save_torch({"model": state}, folder / "pretrained.pt")
        self.units.write(folder / "tokens.txt")
        if self.units.path.resolve() != (folder / "bpe.model").resolve():
            shutil.copyfile(self.units.path, folder / "bpe.model")
        (folder / "settings.yaml").write_text(yaml.safe_dump(self.config, sort_keys=False), encoding="utf-8")

    def load(self, folder: Path) -> None:
        load_upstream_state(self.model, torch.load(folder / "pretrained.pt", map_location="cpu", weights_only=True))

    def extra_state(self) -> str:
        return ""

    def load_extra_state(self, state: str) -> None: ...


def model_config(config: dict[str, Any], vocab_size: int) -> IcefallConfig:
    """The network of a settings file: its section `zipformer` or `conformer`, and `transducer`."""
    encoder: ZipformerConfig | ConformerConfig
    if "zipformer" in config:
        values = dict(config["zipformer"])
        stacks = tuple(StackConfig(**{**values["every_stack"], **stack}) for stack in values.pop("stacks"))
        values.pop("every_stack")
        encoder = ZipformerConfig(stacks=stacks, causal=True, **values)
    else:
        encoder = ConformerConfig(causal=True, **config["conformer"])
    settings = config["transducer"]
    predictor = PredictorConfig(
        vocab_size=vocab_size,
        width=settings["predictor_width"],
        joiner_dim=settings["joiner_dim"],
        context_size=settings["context_size"],
        group_size=4 if "zipformer" in config else 1,
        bare_relu="conformer" in config,
    )
    ctc_vocab_size = vocab_size if settings["ctc_weight"] else None
    return IcefallConfig(encoder=encoder, predictor=predictor, ctc_vocab_size=ctc_vocab_size)


def load_upstream_state(model: IcefallModel, checkpoint: dict[str, Any]) -> None:
    """Put the tensors of a `pretrained.pt` that `TransducerSystem.save` wrote into a model of the same sizes."""
    own = model.upstream_state()
    found = checkpoint["model"]
    if set(own) != set(found):
        raise ValueError(f"the checkpoint has other tensors than the settings: {sorted(set(own) ^ set(found))[:5]}")
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(found[name])


class DenseEmbedding(nn.Embedding):
    """The same as its parent, as a product with one-hot rows, whose gradient can be part of a CUDA graph."""

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(self.num_embeddings, device=ids.device)
        return (ids.unsqueeze(-1) == places).to(self.weight.dtype) @ self.weight


def with_padding(feats: Tensor, lengths: Tensor, extra: int) -> Tensor:
    """Put `PADDING` behind the valid frames of every row, at least `extra` frames of it."""
    feats = F.pad(feats, (0, 0, 0, extra))
    valid = torch.arange(feats.shape[1], device=feats.device) < lengths.unsqueeze(1)
    return torch.where(valid.unsqueeze(2), feats, PADDING)


def contexts(tokens: Tensor, size: int) -> Tensor:
    """What the predictor sees before each token and after the last: (batch, length) -> (batch, length + 1, size).

    Before the first token it sees blank, and before that nothing (-1), as upstream decodes.
    """
    start = tokens.new_full((len(tokens), size), -1)
    start[:, -1] = BLANK_ID
    return torch.cat([start, tokens], dim=1).unfold(1, size, 1)


def joint_logits(model: IcefallModel, encoded: Tensor, tokens: Tensor) -> Tensor:
    """Logits (batch, frames, length + 1, vocab) of all frames with all prefixes of the tokens."""
    joiner, predictor = model.joiner, model.predictor
    seen = contexts(tokens, predictor.context_size)
    predicted = joiner.project_predictor(predictor(seen.flatten(0, 1))).unflatten(0, seen.shape[:2])
    return joiner(joiner.project_encoder(encoded).unsqueeze(2), predicted.unsqueeze(1))


def greedy_search(model: IcefallModel, encoded: Tensor, num_frames: Tensor) -> list[list[int]]:
    """The best token of each frame in turn, at most one a frame: ids of each row without blanks."""
    joiner, predictor = model.joiner, model.predictor
    frames = joiner.project_encoder(encoded)
    context = contexts(frames.new_zeros(len(frames), 0, dtype=torch.int64), predictor.context_size)[:, 0]
    predicted = joiner.project_predictor(predictor(context))
    said = []
    for frame in frames.unbind(1):
        best = joiner(frame, predicted).argmax(dim=-1)
        said.append(best)
        # Everything is computed for every row: asking the GPU which rows say something would cost more.
        moved = torch.cat([context[:, 1:], best.unsqueeze(1)], dim=1)
        context = torch.where((best == BLANK_ID).unsqueeze(1), context, moved)
        predicted = joiner.project_predictor(predictor(context))
    ids = torch.stack(said, dim=1).cpu().numpy()
    rows = zip(ids, num_frames.tolist(), strict=True)
    return [row[:count][row[:count] != BLANK_ID].tolist() for row, count in rows]
