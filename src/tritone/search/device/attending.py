"""A network that writes texts while it attends to audio, on caches that stay where they are computed.

features of windows          ->  keys and values of the audio of each layer, in the windows' slots
newest tokens of some texts  ->  logits of the next ones; their keys and values are added to the texts' rows

Caches are there from the start, a slot for each window and a row for each text under way. `Rows.origin` says in which
row each position of a text is, so that texts that go on from another one need no copy of it. The form is that of
openai/whisper whisper/model.py, with its names of tensors. Other decoders differ in what `Sizes` says, and in tensors
that they have: angles of rotary positions, a norm of what is read, biases. Their encoders are functions from outside.
"""

from collections.abc import Callable, Mapping, Sequence
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
    audio_key: Affine | None  # None where the encoder is not computed here
    audio_value: Affine | None
    audio_out: Affine
    wide_norm: Affine
    wide: Affine
    narrow: Affine


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that weights do not tell. `context`: tokens of prompt and text; `positions`: of a window's audio.

    `alignment_heads`: (layer, head) of those that follow the audio. `form`: the activation of the decoder's MLPs.
    `positions`: the most of audio of any length; 0: as many as the encoder's weights tell.
    """

    encoder_heads: int
    heads: int
    alignment_heads: Sequence[tuple[int, int]] = ()
    form: str = "gelu"
    positions: int = 0


class Attending(Protocol):
    """What is done in other ways on some devices, see `Plain`."""

    def added_norm(self, x: Tensor, more: Tensor, by: Affine) -> tuple[Tensor, Tensor]: ...

    def activation(self, x: Tensor) -> Tensor: ...

    def attend_text(self, qkv: Tensor, keys: Tensor, values: Tensor, origin: Tensor, position: Tensor) -> Tensor: ...

    def attend_audio(self, query: Tensor, keys: Tensor, values: Tensor, window: Tensor, *hidden: Tensor) -> Tensor: ...


Hearing = Callable[[Tensor, Tensor], Sequence[Tensor]]


class Caches:
    """Keys and values of windows (layers, windows + 1, heads, positions, dim), of texts (…, rows, heads, context, dim).

    The last window takes what a call computes for nobody. `counts` (windows + 1,) int64: positions that are a window's
    own, where windows differ in length.
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
        self.counts = torch.zeros(windows + 1, dtype=torch.int64, device=like.device)

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
        encoder_function: Hearing | None = None,
    ) -> None:
        """Take the tensors of the two graphs of a bundle, on their device, all of one type.

        Args:
            attending: what is not done by torch's operators; the module `attending_kernels`, where it can be used.
            encoder_function: of windows of any length, from samples (windows, samples) and their counts (windows,) to
                the numbers of frames, and keys (windows, heads, dim, frames) and values (windows, heads, frames, dim)
                of each layer; `encoder` is empty then. None: Whisper's, of its tensors.

        Raises:
            KeyError: a tensor is missing.
        """
        self.sizes = sizes
        self.attending: Attending = attending or Plain(sizes.form)
        self._encoder_function, self.positions = encoder_function, sizes.positions
        if encoder_function is None:
            self._stem = [_affine(encoder, f"encoder.{name}") for name in ("conv1", "conv2")]
            self._stem_positions = encoder["encoder.positional_embedding"]
            self.encoder = [
                _encoder_layer(encoder, f"encoder.blocks.{index}") for index in range(_count(encoder, "encoder"))
            ]
            self._encoder_norm = _affine(encoder, "encoder.ln_post")
            self.positions = len(self._stem_positions)
        self.decoder = [_decoder_layer(encoder, decoder, index) for index in range(_count(decoder, "decoder"))]
        self.token_table = decoder["decoder.token_embedding.weight"]
        self._rotary = decoder.get("decoder.rotary")  # (2, context, size), cosines and sines
        self._token_positions = None if self._rotary is not None else decoder["decoder.positional_embedding"]
        has_norm = "decoder.embedding_ln.weight" in decoder
        self._embedding_norm = _affine(decoder, "decoder.embedding_ln") if has_norm else None
        self._norm = _affine(decoder, "decoder.ln")
        self.vocab = len(self.token_table)
        self.context = (
            decoder["decoder.positional_embedding"].shape[0] if self._rotary is None else self._rotary.shape[1]
        )
        # Products whose sizes are no multiples of 8 take twice as long on a GPU; nobody reads the further logits.
        head = decoder.get("decoder.head.weight", self.token_table)
        more, bias = -self.vocab % VOCAB_MULTIPLE, decoder.get("decoder.head.bias")
        self._head = Affine(F.pad(head, (0, 0, 0, more)), None if bias is None else F.pad(bias, (0, more)))
        self.device = self.token_table.device

    def encode(self, features: Tensor, slots: Tensor, caches: Caches, num_samples: Tensor | None = None) -> None:
        """Write what the decoder attends to of windows.

        Args:
            features: (windows, frames, bins) float32; of an encoder from outside samples (windows, samples).
            slots: (windows,) int64.
            num_samples: (windows,) int64, of such windows.
        """
        dtype = self.token_table.dtype
        if self._encoder_function is not None:
            assert num_samples is not None
            counts, *encoded = self._encoder_function(features, num_samples)
            caches.counts.index_copy_(0, slots, counts)
            for index, key in enumerate(encoded[::2]):
                for block, new in (
                    (caches.audio_keys[index], key.transpose(2, 3)),
                    (caches.audio_values[index], encoded[2 * index + 1]),
                ):
                    most = min(new.shape[2], self.positions)
                    block[:, :, :most].index_copy_(0, slots, new[:, :, :most].to(dtype))
            return
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
                assert product is not None
                cache[index].index_copy_(0, slots, self._split(F.linear(y, *product)))

    def read(self, tokens: Tensor, row: Tensor, window: Tensor, caches: Caches) -> None:
        """Write keys and values of the beginnings of texts.

        Args:
            tokens: (texts, length) int64; what stands after the end of a shorter one does no harm.
            row, window: (texts,) int64, of each.
        """
        position = torch.arange(tokens.shape[1], device=tokens.device)
        x, hidden = self._embedded(tokens, position), self._hidden(window, caches)
        for index, layer in enumerate(self.decoder):
            qkv = self._turned(F.linear(_norm(x, layer.own_norm), *layer.own), position)
            query, keys, values = self._split(qkv, parts=3)
            caches.keys[index][row, :, : tokens.shape[1]] = keys
            caches.values[index][row, :, : tokens.shape[1]] = values
            own = F.scaled_dot_product_attention(query, keys, values, is_causal=True)
            x = x + F.linear(_joined(own), *layer.own_out)
            query = self._split(F.linear(_norm(x, layer.audio_norm), *layer.audio_query))
            audio = caches.audio_keys[index][window], caches.audio_values[index][window]
            attended = F.scaled_dot_product_attention(query, *audio, attn_mask=next(iter(hidden), None))
            x = x + F.linear(_joined(attended), *layer.audio_out)
            wide = F.linear(_norm(x, layer.wide_norm), *layer.wide)
            x = x + F.linear(ACTIVATIONS[self.sizes.form](wide), *layer.narrow)

    def write(self, rows: Rows, caches: Caches, alignment: Tensor | None = None) -> Tensor:
        """Read one more token of each text.

        Args:
            alignment: (rows, heads, positions), gets the scores of the heads that follow the audio.

        Returns:
            Logits (rows, vocab) of the tokens after it, in the network's precision; rows may have gaps between them.
        """
        x, hidden = self._embedded(rows.token, rows.position), self._hidden(rows.window, caches)
        layers, attending = self.decoder, self.attending
        y = F.linear(_norm(x, layers[0].own_norm), *layers[0].own)
        for index, layer in enumerate(layers):
            y = self._turned(y, rows.position)
            own = attending.attend_text(y, caches.keys[index], caches.values[index], rows.origin, rows.position)
            x, query = _between(x, own, layer.own_out, layer.audio_norm, layer.audio_query, self.attending)
            if alignment is not None:
                self._align(index, query, caches.audio_keys[index], rows.window, alignment)
            audio = caches.audio_keys[index], caches.audio_values[index]
            attended = attending.attend_audio(query, *audio, rows.window, *hidden)
            after = index + 1
            then = (layers[after].own_norm, layers[after].own) if after < len(layers) else (self._norm, self._head)
            x, y = _after(
                x, attended, layer.audio_out, layer.wide_norm, layer.wide, layer.narrow, *then, self.attending
            )
        return y[:, : self.vocab]

    def _embedded(self, tokens: Tensor, position: Tensor) -> Tensor:
        """What is read: vectors (…, width) of tokens at their positions."""
        x = self.token_table[tokens]
        if self._token_positions is not None:
            x = x + self._token_positions[position]
        return x if self._embedding_norm is None else _norm(x, self._embedding_norm)

    def _turned(self, qkv: Tensor, position: Tensor) -> Tensor:
        """Queries, keys and values (…, 3 · width), of which the first two are turned by their rotary positions."""
        if self._rotary is None:
            return qkv
        size, apart = self._rotary.shape[2], qkv.unflatten(-1, (3, self.sizes.heads, -1))
        cosine, sine = self._rotary[:, position].unsqueeze(-2).unsqueeze(-2)
        both = apart[..., :2, :, :size]
        first, second = both.chunk(2, dim=-1)
        turned = both * cosine + torch.cat([-second, first], dim=-1) * sine
        turned = torch.cat([turned, apart[..., :2, :, size:]], dim=-1)
        return torch.cat([turned, apart[..., 2:, :, :]], dim=-3).flatten(-3)

    def _hidden(self, window: Tensor, caches: Caches) -> tuple[Tensor, ...]:
        """What is added to scores of positions that are not a window's own, (rows, 1, 1, positions), if any are not."""
        if self._encoder_function is None:
            return ()
        there = torch.arange(self.positions, device=window.device)
        own = there < caches.counts[window].reshape(-1, 1, 1, 1)
        return (torch.where(own, 0.0, HIDDEN).to(self.token_table.dtype),)

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


def _gated(x: Tensor) -> Tensor:
    value, gate = x.chunk(2, dim=-1)
    return value * F.silu(gate)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "gated-silu": _gated}


class Plain:
    """By torch's operators; on a GPU attention of single tokens copies what it attends to."""

    def __init__(self, form: str = "gelu") -> None:
        self._activation = ACTIVATIONS[form]

    def added_norm(self, x: Tensor, more: Tensor, by: Affine) -> tuple[Tensor, Tensor]:
        """The sum of two tensors of one shape, and its norm."""
        x = x + more
        return x, _norm(x, by)

    def activation(self, x: Tensor) -> Tensor:
        """The activation between two products."""
        return self._activation(x)

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

    def attend_audio(self, query: Tensor, keys: Tensor, values: Tensor, window: Tensor, *hidden: Tensor) -> Tensor:
        """What is heard, (rows, width).

        Args:
            query: (rows, width).
            keys, values: (slots, heads, positions, dim).
            window: (rows,), the slots.
            hidden: is added to the scores, (rows, 1, 1, positions), if there is any.
        """
        query = query.unflatten(1, (keys.shape[1], 1, -1))
        mask = next(iter(hidden), None)
        return F.scaled_dot_product_attention(query, keys[window], values[window], attn_mask=mask).flatten(1)


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
    attended = F.linear(_joined(F.scaled_dot_product_attention(*own.unbind())), *layer.own_out)
    x, y = by.added_norm(x, attended, layer.wide_norm)
    found: tuple[Tensor, Tensor] = by.added_norm(
        x, F.linear(by.activation(F.linear(y, *layer.wide)), *layer.narrow), then
    )
    return found


def _between(x: Tensor, own: Tensor, out: Affine, norm: Affine, query: Affine, by: Attending) -> tuple[Tensor, Tensor]:
    x, y = by.added_norm(x, F.linear(own, *out), norm)
    return x, F.linear(y, *query)


def _after(
    x: Tensor,
    attended: Tensor,
    out: Affine,
    norm: Affine,
    wide: Affine,
    narrow: Affine,
    then_norm: Affine,
    then: Affine,
    by: Attending,
) -> tuple[Tensor, Tensor]:
    x, y = by.added_norm(x, F.linear(attended, *out), norm)
    x, y = by.added_norm(x, F.linear(by.activation(F.linear(y, *wide)), *narrow), then_norm)
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
    parts = ("key", "value")
    key, value = (_affine(encoder, f"cross.{index}.{part}") if encoder else None for part in parts)
    return DecoderLayer(*own[:3], norm, query, key, value, out, *own[3:])


def _count(state: Mapping[str, Tensor], side: str) -> int:
    prefix = f"{side}.blocks."
    return 1 + max(int(name.removeprefix(prefix).partition(".")[0]) for name in state if name.startswith(prefix))
