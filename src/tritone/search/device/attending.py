"""A network that writes texts while it attends to audio, on caches that stay where they are computed.

features of windows          ->  keys and values of the audio of each layer, in the windows' slots
newest tokens of some texts  ->  logits of the next ones; their keys and values are added to the texts' rows

Caches are there from the start, a slot for each window and a row for each text under way. `Rows.origin` says in which
row each position of a text is, so that texts that go on from another one need no copy of it. The form is that of
openai/whisper whisper/model.py, with its names of tensors; other decoders that attend differ in their weights' names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

VOCAB_MULTIPLE = 64
HIDDEN = -3e4  # is added to scores that do not count


class Affine(NamedTuple):
    """Weight and bias of a product or a norm."""

    weight: Tensor
    bias: Tensor | None


class EncoderLayer(NamedTuple):
    own_norm: Affine
    own: Affine  # queries, keys and values
    own_out: Affine
    wide_norm: Affine
    wide: Affine
    narrow: Affine


class DecoderLayer(NamedTuple):
    own_norm: Affine
    own: Affine
    own_out: Affine
    audio_norm: Affine
    audio_query: Affine
    audio_key: Affine
    audio_value: Affine
    audio_out: Affine
    wide_norm: Affine
    wide: Affine
    narrow: Affine


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that weights do not tell. `context`: tokens of prompt and text; `positions`: of a window's audio.

    `alignment_heads`: (layer, head) of those that follow the audio.
    """

    encoder_heads: int
    heads: int
    alignment_heads: Sequence[tuple[int, int]] = ()


class Attending(Protocol):
    """What is done in other ways on some devices, see `Plain`."""

    def added_norm(self, x: Tensor, more: Tensor, by: Affine) -> tuple[Tensor, Tensor]: ...

    def gelu(self, x: Tensor) -> Tensor: ...

    def attend_text(self, qkv: Tensor, keys: Tensor, values: Tensor, origin: Tensor, position: Tensor) -> Tensor: ...

    def attend_audio(self, query: Tensor, keys: Tensor, values: Tensor, window: Tensor) -> Tensor: ...


class Caches:
    """Keys and values of windows (layers, windows + 1, heads, positions, dim), of texts (…, rows, heads, context, dim).

    The last window takes what a call computes for nobody.
    """

    def __init__(self, network: "Network", windows: int, rows: int) -> None:
        """Take the memory."""
        self.windows, self.rows = windows, rows
        heads, like = network.sizes.heads, network.token_table
        dim = like.shape[1] // heads

        def block(slots: int, length: int) -> list[Tensor]:
            shape = (slots, heads, length, dim)
            return [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in network.decoder]

        self.audio_keys, self.audio_values = (
            block(windows + 1, network.positions),
            block(windows + 1, network.positions),
        )
        self.keys, self.values = block(rows, network.context), block(rows, network.context)

    @staticmethod
    def window_bytes(network: "Network") -> int:
        """Memory of the keys and values of one window."""
        like = network.token_table
        return 2 * len(network.decoder) * network.positions * like.shape[1] * like.element_size()

    @staticmethod
    def row_bytes(network: "Network") -> int:
        """Memory of those of one text."""
        like = network.token_table
        return 2 * len(network.decoder) * network.context * like.shape[1] * like.element_size()


class Rows(NamedTuple):
    """One token of each of the first rows: ids, their positions, the slots of their windows, (rows,) int64 each.

    `origin` (rows, context) int64: the row that has each earlier position.
    """

    token: Tensor
    position: Tensor
    window: Tensor
    origin: Tensor


class Network:
    """The weights of a model, and what is computed with them."""

    def __init__(
        self,
        encoder: Mapping[str, Tensor],
        decoder: Mapping[str, Tensor],
        sizes: Sizes,
        *,
        attending: Attending | None = None,
    ) -> None:
        """Take the tensors of the two graphs of a bundle, on their device, all of one type.

        Args:
            attending: what is not done by torch's operators; the module `attending_kernels`, where it can be used.

        Raises:
            KeyError: a tensor is missing.
        """
        self.sizes = sizes
        self.attending: Attending = attending or Plain()
        self._stem = [_affine(encoder, f"encoder.{name}") for name in ("conv1", "conv2")]
        self._stem_positions = encoder["encoder.positional_embedding"]
        self.encoder = [
            _encoder_layer(encoder, f"encoder.blocks.{index}") for index in range(_count(encoder, "encoder"))
        ]
        self._encoder_norm = _affine(encoder, "encoder.ln_post")
        self.decoder = [_decoder_layer(encoder, decoder, index) for index in range(_count(decoder, "decoder"))]
        self.token_table = decoder["decoder.token_embedding.weight"]
        self._token_positions = decoder["decoder.positional_embedding"]
        self._norm = _affine(decoder, "decoder.ln")
        self.vocab, self.context, self.positions = (
            len(each) for each in (self.token_table, self._token_positions, self._stem_positions)
        )
        # Products whose sizes are no multiples of 8 take twice as long on a GPU; nobody reads the further logits.
        head = decoder.get("decoder.head.weight", self.token_table)
        self._head = F.pad(head, (0, 0, 0, -self.vocab % VOCAB_MULTIPLE))
        self.device = self.token_table.device

    def hear(self, features: Tensor, slots: Tensor, caches: Caches) -> None:
        """Write what the decoder attends to of windows.

        Args:
            features: (windows, frames, bins) float32.
            slots: (windows,) int64.
        """
        dtype = self.token_table.dtype
        x = features.to(dtype).transpose(1, 2)
        for stride, each in enumerate(self._stem, 1):
            x = F.gelu(F.conv1d(x, each.weight, each.bias, stride=stride, padding=1))
        x = x.transpose(1, 2).contiguous() + self._stem_positions
        y = _norm(x, self.encoder[0].own_norm)
        for index, layer in enumerate(self.encoder, 1):
            then = self.encoder[index].own_norm if index < len(self.encoder) else self._encoder_norm
            x, y = _encode(x, y, layer, then, self.sizes.encoder_heads, self.attending)
        for index, into in enumerate(self.decoder):
            for product, cache in ((into.audio_key, caches.audio_keys), (into.audio_value, caches.audio_values)):
                cache[index].index_copy_(0, slots, self._split(F.linear(y, *product)))

    def read(self, tokens: Tensor, row: Tensor, window: Tensor, caches: Caches) -> None:
        """Write keys and values of the beginnings of texts.

        Args:
            tokens: (texts, length) int64; what stands after the end of a shorter one does no harm.
            row, window: (texts,) int64, of each.
        """
        x = self.token_table[tokens] + self._token_positions[: tokens.shape[1]]
        for index, layer in enumerate(self.decoder):
            query, keys, values = self._split(F.linear(_norm(x, layer.own_norm), *layer.own), parts=3)
            caches.keys[index][row, :, : tokens.shape[1]] = keys
            caches.values[index][row, :, : tokens.shape[1]] = values
            own = F.scaled_dot_product_attention(query, keys, values, is_causal=True)
            x = x + F.linear(_joined(own), *layer.own_out)
            query = self._split(F.linear(_norm(x, layer.audio_norm), *layer.audio_query))
            audio = caches.audio_keys[index][window], caches.audio_values[index][window]
            x = x + F.linear(_joined(F.scaled_dot_product_attention(query, *audio)), *layer.audio_out)
            x = x + F.linear(F.gelu(F.linear(_norm(x, layer.wide_norm), *layer.wide)), *layer.narrow)

    def write(self, rows: Rows, caches: Caches, alignment: Tensor | None = None) -> Tensor:
        """Read one more token of each text.

        Args:
            alignment: (rows, heads, positions), gets the scores of the heads that follow the audio.

        Returns:
            Logits (rows, vocab) of the tokens after it, in the network's precision; rows may have gaps between them.
        """
        x = self.token_table[rows.token] + self._token_positions[rows.position]
        layers, attending = self.decoder, self.attending
        y = F.linear(_norm(x, layers[0].own_norm), *layers[0].own)
        for index, layer in enumerate(layers):
            own = attending.attend_text(y, caches.keys[index], caches.values[index], rows.origin, rows.position)
            x, query = _between(x, own, layer.own_out, layer.audio_norm, layer.audio_query, self.attending)
            if alignment is not None:
                self._align(index, query, caches.audio_keys[index], rows.window, alignment)
            heard = attending.attend_audio(query, caches.audio_keys[index], caches.audio_values[index], rows.window)
            after = index + 1
            then = (
                (layers[after].own_norm, layers[after].own)
                if after < len(layers)
                else (self._norm, Affine(self._head, None))
            )
            x, y = _after(x, heard, layer.audio_out, layer.wide_norm, layer.wide, layer.narrow, *then, self.attending)
        return y[:, : self.vocab]

    def _align(self, layer: int, query: Tensor, keys: Tensor, window: Tensor, found: Tensor) -> None:
        chosen = [(place, head) for place, (each, head) in enumerate(self.sizes.alignment_heads) if each == layer]
        dim = keys.shape[3]
        for place, head in chosen:
            part = query[:, head * dim : (head + 1) * dim] * dim**-0.5
            found[:, place] = (keys[:, head][window] @ part.unsqueeze(2)).squeeze(2)

    def _split(self, x: Tensor, parts: int = 1) -> Any:
        """(batch, length, parts · width) as (batch, heads, length, dim), or several of them."""
        apart = x.unflatten(2, (parts, self.sizes.heads, -1)).permute(2, 0, 3, 1, 4)
        return apart if parts > 1 else apart[0]


class Plain:
    """By torch's operators; on a GPU attention of single tokens copies what it attends to."""

    def added_norm(self, x: Tensor, more: Tensor, by: Affine) -> tuple[Tensor, Tensor]:
        """The sum of two tensors of one shape, and its norm."""
        x = x + more
        return x, _norm(x, by)

    def gelu(self, x: Tensor) -> Tensor:
        """The activation between two products."""
        return F.gelu(x)

    def attend_text(self, qkv: Tensor, keys: Tensor, values: Tensor, origin: Tensor, position: Tensor) -> Tensor:
        """What texts say before their newest token.

        Args:
            qkv: (rows, 3 · width), of the newest token; keys and values are added to the caches.
            keys, values: (all rows, heads, context, dim).
            origin, position: see `Rows`.

        Returns:
            (rows, width).
        """
        rows = len(qkv)
        query, key, value = qkv.view(rows, 3, keys.shape[1], keys.shape[3]).unbind(1)
        each = torch.arange(rows, device=qkv.device)
        keys[each, :, position], values[each, :, position] = key, value
        length = keys.shape[2] if qkv.is_cuda else int(position.max()) + 1  # a GPU is not asked, nobody waits for it
        there = torch.arange(length, device=qkv.device)
        source = torch.where(there == position.unsqueeze(1), each.unsqueeze(1), origin[:rows, :length])
        found = keys[source, :, there], values[source, :, there]  # (rows, length, heads, dim)
        scores = torch.einsum("rhd,rlhd->rhl", query * query.shape[2] ** -0.5, found[0])
        scores = scores + torch.where(there <= position.unsqueeze(1), 0.0, HIDDEN).to(scores.dtype).unsqueeze(1)
        return torch.einsum("rhl,rlhd->rhd", scores.softmax(2), found[1]).reshape(rows, -1)

    def attend_audio(self, query: Tensor, keys: Tensor, values: Tensor, window: Tensor) -> Tensor:
        """What is heard, (rows, width).

        Args:
            query: (rows, width).
            keys, values: (slots, heads, positions, dim).
            window: (rows,), the slots.
        """
        query = query.unflatten(1, (keys.shape[1], 1, -1))
        return F.scaled_dot_product_attention(query, keys[window], values[window]).flatten(1)


def _norm(x: Tensor, by: Affine) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *by)


def _joined(x: Tensor) -> Tensor:
    """(batch, heads, length, dim) as (batch, length, width)."""
    return x.transpose(1, 2).flatten(2)


def _encode(
    x: Tensor, y: Tensor, layer: EncoderLayer, then: Affine, heads: int, by: Attending
) -> tuple[Tensor, Tensor]:
    """A layer, from x and its norm y to the next x and its norm."""
    own = F.linear(y, *layer.own).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    heard = F.linear(_joined(F.scaled_dot_product_attention(*own.unbind())), *layer.own_out)
    x, y = by.added_norm(x, heard, layer.wide_norm)
    found: tuple[Tensor, Tensor] = by.added_norm(x, F.linear(by.gelu(F.linear(y, *layer.wide)), *layer.narrow), then)
    return found


def _between(x: Tensor, own: Tensor, out: Affine, norm: Affine, query: Affine, by: Attending) -> tuple[Tensor, Tensor]:
    x, y = by.added_norm(x, F.linear(own, *out), norm)
    return x, F.linear(y, *query)


def _after(
    x: Tensor,
    heard: Tensor,
    out: Affine,
    norm: Affine,
    wide: Affine,
    narrow: Affine,
    then_norm: Affine,
    then: Affine,
    by: Attending,
) -> tuple[Tensor, Tensor]:
    x, y = by.added_norm(x, F.linear(heard, *out), norm)
    x, y = by.added_norm(x, F.linear(by.gelu(F.linear(y, *wide)), *narrow), then_norm)
    return x, F.linear(y, *then)


def _affine(state: Mapping[str, Tensor], name: str) -> Affine:
    return Affine(state[f"{name}.weight"], state.get(f"{name}.bias"))


def _own(state: Mapping[str, Tensor], name: str) -> Affine:
    """Queries, keys and values as one product; keys have no bias."""
    parts = [_affine(state, f"{name}.{part}") for part in ("query", "key", "value")]
    biases = [torch.zeros_like(parts[0].weight[:, 0]) if each.bias is None else each.bias for each in parts]
    return Affine(torch.cat([each.weight for each in parts]), torch.cat(biases))


def _encoder_layer(state: Mapping[str, Tensor], name: str) -> EncoderLayer:
    rest = (_affine(state, f"{name}.{part}") for part in ("mlp_ln", "mlp.0", "mlp.2"))
    return EncoderLayer(
        _affine(state, f"{name}.attn_ln"), _own(state, f"{name}.attn"), _affine(state, f"{name}.attn.out"), *rest
    )


def _decoder_layer(encoder: Mapping[str, Tensor], decoder: Mapping[str, Tensor], index: int) -> DecoderLayer:
    name = f"decoder.blocks.{index}"
    own = _encoder_layer(decoder, name)
    norm, query, out = (_affine(decoder, f"{name}.cross_attn{part}") for part in ("_ln", ".query", ".out"))
    key, value = (_affine(encoder, f"cross.{index}.{part}") for part in ("key", "value"))
    return DecoderLayer(*own[:3], norm, query, key, value, out, *own[3:])


def _count(state: Mapping[str, Tensor], side: str) -> int:
    prefix = f"{side}.blocks."
    return 1 + max(int(name.removeprefix(prefix).partition(".")[0]) for name in state if name.startswith(prefix))
