"""One step of a Paraformer for streams: a chunk of rows to the tokens that end in it.

    rows of features, states  ->  log-probabilities of tokens, how many they are, their frames, next states

A step encodes the rows that the last one only looked ahead at, and its own; of these the last ones are looked ahead at
again. Frames have weights as in `paraformer.py`; what is left of a token at the end of a step goes on in the next one.
The decoder writes the tokens of a step, and remembers those before them and the frames that it has attended to.
Sources: funasr/models/paraformer_streaming/model.py, scama/encoder.py, paraformer/cif_predictor.py and decoder.py.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tritone.errors import ExportError
from tritone.families.export.precision import as_dtype
from tritone.families.funasr.layers import EncoderLayer, positions
from tritone.families.funasr.options import FunasrOptions
from tritone.families.funasr.paraformer import DecoderLayer, Paraformer, token_vectors
from tritone.families.layers.attention import HIDDEN
from tritone.families.layers.ctc import token_log_probs

STEP, DECODED = "step", "decoded"  # the states that are whole numbers


@dataclass(frozen=True, kw_only=True)
class StreamSizes:
    """What streams are cut into, in frames of 60 ms; upstream's `chunk_size` is [0, chunk, ahead].

    `left_chunks`, `decoder_left_chunks`: past chunks that encoder and decoder look at.
    """

    chunk: int = 10
    ahead: int = 5
    left_chunks: int = 4
    decoder_left_chunks: int = 1

    @classmethod
    def chosen(cls, options: FunasrOptions) -> "StreamSizes":
        """Those of an export.

        Raises:
            ExportError: a step would wait for more than a chunk.
        """
        chunk = cls.chunk if options.chunk_size is None else options.chunk_size
        ahead = chunk // 2 if options.right_context is None else options.right_context
        if ahead > chunk:
            raise ExportError(f"right_context is {ahead} frames, more than chunk_size {chunk}; make it that or less")
        given = {"left_chunks": options.left_chunks, "decoder_left_chunks": options.decoder_left_chunks}
        return cls(chunk=chunk, ahead=ahead, **{name: each for name, each in given.items() if each is not None})

    @property
    def span(self) -> int:
        """Frames that a step encodes."""
        return self.ahead + self.chunk

    @property
    def left(self) -> int:
        """Past frames that the encoder looks at."""
        return self.left_chunks * self.chunk

    @property
    def decoder_left(self) -> int:
        """Past frames that the decoder looks at."""
        return self.decoder_left_chunks * self.chunk


class StreamingParaformer(nn.Module):
    """A step of many streams, with the weights of a network whose decoder looks at no tokens to come."""

    fused = False

    def __init__(self, network: Paraformer, sizes: StreamSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder, self.predictor, self.decoder = network.encoder, network.predictor, network.decoder
        decoder = network.config.decoder
        assert decoder is not None
        self.kernel, self.num_layers = decoder.kernel, decoder.blocks

    @property
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of one stream, zeros at its start; `STEP` and `DECODED` are int64 and count steps and attended frames."""
        config, sizes = self.encoder.config, self.sizes
        width = config.output_size
        return {
            STEP: (),
            DECODED: (),
            "rows": (sizes.ahead, config.input_size),
            "encoder_cache": (config.blocks, sizes.left, 2 * width),
            "part": (width,),
            "part_weight": (1,),
            "decoder_memory": (self.num_layers, self.kernel - 1, width),
            "decoder_cache": (self.num_layers, sizes.decoder_left, 2 * width),
        }

    def forward(self, rows: Tensor, num_rows: Tensor, is_last: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Make a step.

        Args:
            rows: (batch, chunk, size) float32, of which each row has `num_rows` (batch,) int64: all, or fewer in the
                last step of a stream.
            is_last: (batch,) bool, whether it is.
            states: in the order of `state_shapes`.

        Returns:
            Log-probabilities (batch, places, vocab) float32; how many of the places are tokens (batch,) int64; the
            frame (batch, places) int64 of each one's peak in the step; how many frames the step has (batch,) int64; and
            the next states, which mean nothing after the last step.
        """
        sizes = self.sizes
        step, decoded, before, encoder_cache, part, part_weight, decoder_memory, decoder_cache = states
        places = torch.arange(1, sizes.chunk + 1, device=rows.device) + (step * sizes.chunk).unsqueeze(1)
        rows = rows * self.encoder.config.output_size**0.5 + positions(places, rows.shape[2])
        rows = torch.cat([before, rows], dim=1)
        is_frame = torch.arange(sizes.span, device=rows.device) < (sizes.ahead + num_rows).unsqueeze(1)
        encoded, next_cache = self._encoded(rows, is_frame, step, encoder_cache)

        weights = self.predictor.weights(encoded, is_frame)
        is_whole = (torch.arange(sizes.span, device=rows.device) < sizes.chunk) | is_last.unsqueeze(1)
        tail = torch.where(is_last, self.predictor.config.tail, 0.0).unsqueeze(1)
        # In front of the frames stands what is left of the last step, behind them the silence after the end.
        sums = torch.cumsum(torch.cat([part_weight, torch.where(is_whole, weights, 0.0), tail], dim=1), dim=1)
        num_tokens = torch.floor(sums[:, -1]).to(torch.int64)
        numbers = torch.arange(sizes.span + 2, device=rows.device)
        padded = F.pad(as_dtype(encoded, torch.float32), (0, 0, 1, 1))
        vectors = token_vectors(padded, sums, numbers)
        vectors = torch.cat([vectors[:, :1] + part.unsqueeze(1), vectors[:, 1:]], dim=1)
        last = num_tokens[:, None, None].expand(-1, 1, vectors.shape[2])
        next_part = vectors.gather(1, last).squeeze(1)
        next_weight = sums[:, -1:] - as_dtype(num_tokens.unsqueeze(1), torch.float32)

        log_probs, next_memory, next_seen, next_decoded = self._decoded(
            vectors[:, :-1], num_tokens, encoded, is_frame, decoded, decoder_memory, decoder_cache
        )
        # The first frames of a stream are those that its first step would have looked ahead at, and there are none.
        missing = torch.where(step == 0, sizes.ahead, 0)
        num_frames = torch.clamp(torch.where(is_last, sizes.ahead + num_rows, sizes.chunk) - missing, min=0)
        peaks = (sums.unsqueeze(1) < numbers[1:, None].to(sums.dtype)).sum(dim=2) - 1
        frames = torch.minimum(
            torch.clamp(peaks - missing.unsqueeze(1), min=0), torch.clamp(num_frames - 1, min=0)[:, None]
        )
        return (
            *(log_probs, num_tokens, frames, num_frames),
            *(
                step + 1,
                next_decoded,
                rows[:, sizes.chunk :],
                next_cache,
                next_part,
                next_weight,
                next_memory,
                next_seen,
            ),
        )

    def _encoded(self, rows: Tensor, is_frame: Tensor, step: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Encode rows after the keys and values of past frames; returns the next ones, too."""
        sizes, dtype = self.sizes, self.encoder.dtype
        known = torch.arange(sizes.left, device=rows.device) >= sizes.left - (step * sizes.chunk).unsqueeze(1)
        hidden = torch.where(torch.cat([known, is_frame], dim=1), 0.0, HIDDEN).to(dtype)[:, None, None, :]
        valid = is_frame.unsqueeze(2).to(dtype)
        x, found = as_dtype(rows, dtype), []
        for index, layer in enumerate((*self.encoder.encoders0, *self.encoder.encoders)):
            assert isinstance(layer, EncoderLayer)
            past = as_dtype(cache[:, index], dtype)
            x, key_value = layer(x, hidden, valid, past)
            found.append(_newest(past, key_value[:, : sizes.chunk], sizes.left))
        return self.encoder.after_norm(x), as_dtype(torch.stack(found, dim=1), torch.float32)

    def _decoded(
        self,
        vectors: Tensor,
        num_tokens: Tensor,
        encoded: Tensor,
        is_frame: Tensor,
        decoded: Tensor,
        memory: Tensor,
        cache: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probabilities of tokens, and what the decoder remembers next: as before where there is no token."""
        sizes, dtype = self.sizes, self.decoder.output_layer.weight.dtype
        known = torch.arange(sizes.decoder_left, device=vectors.device) >= sizes.decoder_left - decoded.unsqueeze(1)
        hidden = torch.where(torch.cat([known, is_frame], dim=1), 0.0, HIDDEN).to(dtype)[:, None, None, :]
        x, frames = as_dtype(vectors, dtype), as_dtype(encoded, dtype)
        newest = (num_tokens.unsqueeze(1) + torch.arange(self.kernel - 1, device=vectors.device)).unsqueeze(2)
        newest = newest.expand(-1, -1, x.shape[2])
        remembered, seen = [], []
        for index, layer in enumerate(self.decoder.decoders):
            assert isinstance(layer, DecoderLayer)
            assert layer.self_attn is not None
            assert layer.norm2 is not None
            assert layer.src_attn is not None
            moved = layer.norm2(layer.feed_forward(layer.norm1(x)))
            line = torch.cat([as_dtype(memory[:, index], dtype), moved], dim=1)
            remembered.append(line.gather(1, newest))
            x = x + layer.self_attn.convolved(line.transpose(1, 2)) + moved
            past, key_value = as_dtype(cache[:, index], dtype), layer.src_attn.linear_k_v(frames)
            seen.append(_newest(past, key_value, sizes.decoder_left))
            x = layer.looked(x, torch.cat([past, key_value], dim=1), hidden)
        for layer in self.decoder.decoders3:
            assert isinstance(layer, DecoderLayer)
            x = layer.feed_forward(layer.norm1(x))
        log_probs = token_log_probs(self.decoder.output_layer, self.decoder.after_norm(x), fused=self.fused)
        next_cache = as_dtype(torch.stack(seen, dim=1), torch.float32)
        has_tokens = num_tokens > 0
        return (
            log_probs,
            as_dtype(torch.stack(remembered, dim=1), torch.float32),
            torch.where(has_tokens[:, None, None, None], next_cache, cache),
            torch.where(has_tokens, torch.clamp(decoded + sizes.span, max=sizes.decoder_left), decoded),
        )


def _newest(past: Tensor, new: Tensor, count: int) -> Tensor:
    """The last `count` of what was there and what has come, along the second axis."""
    line = torch.cat([past, new], dim=1)
    return line[:, line.shape[1] - count :]
