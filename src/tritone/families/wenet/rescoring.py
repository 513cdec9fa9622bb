"""The graph that scores finished hypotheses with the attention decoder; contract in docs/design.md.

RescoringGraph   encoder_out, num_frames, hypotheses, num_tokens   ->  left_scores[, right_scores]

A score is the log-probability of a hypothesis and its end, given the audio: nothing of the size of the vocabulary
leaves the graph. What goes in and comes out is float32 and int64, and scores are summed in float32, whatever precision
the decoder computes in.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from tritone.families.export.exportable import ExportableGraph, Run
from tritone.families.export.precision import as_dtype
from tritone.families.wenet.decoder import BiTransformerDecoder, TransformerDecoder


class RescoringGraph(ExportableGraph):
    """Scores of the n best hypotheses of many utterances.

    Args:
        decoder: of either kind.
        sos_id, eos_id: the tokens that start and end a sentence.
        encoder_dim: width of the encoder's frames, to make example inputs of.
    """

    counted = None

    def __init__(
        self, decoder: TransformerDecoder | BiTransformerDecoder, sos_id: int, eos_id: int, encoder_dim: int
    ) -> None:
        super().__init__()
        self.bidirectional = isinstance(decoder, BiTransformerDecoder)
        self.left = decoder.left_decoder if isinstance(decoder, BiTransformerDecoder) else decoder
        self.right = decoder.right_decoder if isinstance(decoder, BiTransformerDecoder) else None
        self.sos_id, self.eos_id, self.encoder_dim = sos_id, eos_id, encoder_dim
        self.vocab_size = self.left.output_layer.out_features
        self.compared = tuple(self.outputs)

    @property
    def inputs(self) -> list[str]:
        """Names of what `forward` takes."""
        return ["encoder_out", "num_frames", "hypotheses", "num_tokens"]

    @property
    def outputs(self) -> list[str]:
        """Names of what `forward` returns."""
        return ["left_scores", "right_scores"] if self.bidirectional else ["left_scores"]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        return {
            "encoder_out": {0: "batch", 1: "frames"},
            "num_frames": {0: "batch"},
            "hypotheses": {0: "batch", 1: "n", 2: "length"},
            "num_tokens": {0: "batch", 1: "n"},
        }

    def example(self) -> dict[str, Tensor]:
        return {
            "encoder_out": torch.zeros(3, 11, self.encoder_dim),
            "num_frames": torch.tensor([11, 5, 2]),
            "hypotheses": torch.zeros(3, 4, 7, dtype=torch.int64),
            "num_tokens": torch.full((3, 4), 5),
        }

    def trials(self) -> Iterator[Run]:
        """Hypotheses of 0 to 6 tokens for frames like those behind a layer norm; one utterance is shorter."""
        random = torch.Generator().manual_seed(0)
        inputs = (
            torch.randn(2, 40, self.encoder_dim, generator=random),
            torch.tensor([40, 3]),
            torch.randint(self.vocab_size, (2, 3, 6), generator=random),
            torch.tensor([[6, 0, 1], [2, 6, 3]]),
        )
        yield Run([dict(zip(self.inputs, inputs, strict=True))])

    def forward(
        self, encoder_out: Tensor, num_frames: Tensor, hypotheses: Tensor, num_tokens: Tensor
    ) -> tuple[Tensor, ...]:
        """Score hypotheses.

        Args:
            encoder_out: (batch, frames, width) float32; rows at or beyond `num_frames` (batch,) may hold anything.
            hypotheses: (batch, n, length) token ids without start and end; ids at or beyond `num_tokens` (batch, n),
                which may be 0, may be anything.

        Returns:
            (batch, n) float32: Σ ln P(token | tokens before it, audio) over the tokens and the end of the sentence; by
            the right decoder, where there is one, in the other direction. Without any frame, what the decoder
            expects of no audio.
        """
        n, length = hypotheses.shape[1:]
        frames = torch.arange(encoder_out.shape[1], device=encoder_out.device)
        beyond = (frames >= num_frames.unsqueeze(1)).unsqueeze(2)
        # Attention gives padding no weight, but 0 · NaN is NaN. And where it is all that there is, it is the same.
        memory = as_dtype(encoder_out.masked_fill(beyond, 0.0), self.left.output_layer.weight.dtype)
        tokens, count = hypotheses.flatten(0, 1), num_tokens.flatten().unsqueeze(1)
        start = torch.full_like(count, self.sos_id)
        ends = torch.full_like(count, self.eos_id)
        places = torch.arange(length + 1, device=tokens.device).unsqueeze(0)

        def score(decoder: TransformerDecoder, targets: Tensor) -> Tensor:
            inputs = torch.cat([start, targets[:, :-1]], dim=1)
            logits = as_dtype(decoder(memory, num_frames, inputs), torch.float32)
            found = logits.gather(2, targets.unsqueeze(2)).squeeze(2) - torch.logsumexp(logits, dim=2)
            return found.masked_fill(places > count, 0.0).sum(dim=1).unflatten(0, (-1, n))

        padded = torch.cat([tokens, ends], dim=1)
        left = score(self.left, torch.where(places < count, padded, self.eos_id))
        if self.right is None:
            return (left,)
        mirrored = padded.gather(1, torch.clamp(count - 1 - places, min=0))
        return left, score(self.right, torch.where(places < count, mirrored, self.eos_id))
