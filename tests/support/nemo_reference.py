"""A second, plain implementation of NeMo's Conformer models, written from the facts of NeMo's sources (commit 8cfedd7).

One utterance at a time, in float64, without masks, batches or tricks: each formula as it stands in NeMo's classes,
whose parameter names the modules have. What Tritone exports is compared with this.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Config = dict[str, Any]
ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def slaney_filters(rate: int, n_fft: int, bins: int) -> Tensor:
    """librosa.filters.mel with norm="slaney", from 0 to half the rate: (bins, n_fft // 2 + 1)."""

    def to_mel(hz: float) -> float:
        return hz / (200 / 3) if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)

    def to_hz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * math.exp((mel - 15) * math.log(6.4) / 27)

    top = to_mel(rate / 2)
    edges = [to_hz(top * index / (bins + 1)) for index in range(bins + 2)]
    filters = torch.zeros(bins, n_fft // 2 + 1, dtype=torch.float64)
    for band in range(bins):
        low, centre, high = edges[band : band + 3]
        for place in range(n_fft // 2 + 1):
            hz = place * rate / n_fft
            height = min((hz - low) / (centre - low), (high - hz) / (high - centre))
            filters[band, place] = max(0.0, height) * 2 / (high - low)
    return filters


class Featurizer(nn.Module):
    """FilterbankFeatures: pre-emphasis, STFT with zeros around the signal, power, mel, log, normalisation."""

    window: Tensor
    fb: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        rate = config["sample_rate"]
        self.length, self.hop = int(config["window_size"] * rate), int(config["window_stride"] * rate)
        window = {"hann": torch.hann_window, "hamming": torch.hamming_window}[config.get("window", "hann")]
        self.register_buffer("window", window(self.length, periodic=False))
        self.register_buffer("fb", slaney_filters(rate, config["n_fft"], config["features"])[None].float())

    def forward(self, waveform: Tensor) -> Tensor:
        """(samples,) -> (bins, samples // hop)."""
        config, x = self.config, waveform.double()
        frames = len(x) // self.hop
        if (emphasis := config.get("preemph", 0.97)) is not None:
            x = torch.cat([x[:1], x[1:] - emphasis * x[:-1]])
        spectrum = torch.stft(
            x,
            n_fft=config["n_fft"],
            hop_length=self.hop,
            win_length=self.length,
            window=self.window.double(),
            center=True,
            pad_mode="constant",
            return_complex=True,
        )
        x = self.fb[0].double() @ spectrum.abs().square()
        guard = config.get("log_zero_guard_value", 2**-24)
        x = torch.log(x.clamp(min=guard) if config.get("log_zero_guard_type") == "clamp" else x + guard)[:, :frames]
        if config.get("normalize", "per_feature") == "per_feature":
            return (x - x.mean(dim=1, keepdim=True)) / (x.std(dim=1, keepdim=True) + 1e-5)
        if config["normalize"] == "all_features":
            return (x - x.mean()) / (x.std() + 1e-5)
        return x


class CausalConv2D(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (2, 1, 2, 1)))


class ConvSubsampling(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        channels = config["subsampling_conv_channels"]
        channels = config["d_model"] if channels == -1 else channels
        kind, padding = (CausalConv2D, 0) if config.get("causal_downsampling") else (nn.Conv2d, 1)
        halvings = int(math.log2(config["subsampling_factor"]))
        layers = [kind(1, channels, 3, 2, padding), nn.ReLU()]
        for _ in range(halvings - 1):
            if config["subsampling"] == "dw_striding":
                layers += [kind(channels, channels, 3, 2, padding, groups=channels), nn.Conv2d(channels, channels, 1)]
            else:
                layers += [kind(channels, channels, 3, 2, padding)]
            layers += [nn.ReLU()]
        self.conv = nn.Sequential(*layers)
        bands = config["feat_in"]
        for _ in range(halvings):
            bands = (bands + (3 if config.get("causal_downsampling") else 2) - 3) // 2 + 1
        self.out = nn.Linear(channels * bands, config["d_model"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x[None, None])[0]
        return self.out(x.transpose(0, 1).flatten(1))


def position(distance: int, width: int) -> Tensor:
    """The vector of RelPositionalEncoding for a distance from the key to the query."""
    rates = [math.exp(-math.log(10000.0) * index / width) for index in range(0, width, 2)]
    return torch.tensor([each for rate in rates for each in (math.sin(distance * rate), math.cos(distance * rate))])


class RelPositionMultiHeadAttention(nn.Module):
    linear_out: nn.Linear

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config["d_model"], config["n_heads"]
        self.size = width // self.heads
        for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
            self.add_module(name, nn.Linear(width, width, bias=config.get("use_bias", True)))
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.randn(self.heads, self.size) * 0.3)
        self.pos_bias_v = nn.Parameter(torch.randn(self.heads, self.size) * 0.3)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """(frames, width), and (frames, frames) True where a frame (row) sees another."""
        frames, width = x.shape
        query, key, value = (layer(x).view(frames, self.heads, self.size) for layer in self._layers())
        places = torch.stack([position(distance, width) for distance in range(1 - frames, frames)]).to(x.dtype)
        places = self.linear_pos(places).view(-1, self.heads, self.size)
        index = torch.tensor([[i - j + frames - 1 for j in range(frames)] for i in range(frames)])
        content = torch.einsum("ihd,jhd->hij", query + self.pos_bias_u, key)
        distance = torch.einsum("ihd,ijhd->hij", query + self.pos_bias_v, places[index])
        scores = (content + distance) / math.sqrt(self.size)
        weights = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=2)
        return self.linear_out(torch.einsum("hij,jhd->ihd", weights, value).flatten(1))

    def _layers(self) -> list[Any]:
        return [self.linear_q, self.linear_k, self.linear_v]


class ConformerConvolution(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, kernel, bias = config["d_model"], config["conv_kernel_size"], config.get("use_bias", True)
        context = config.get("conv_context_size")
        self.context = (kernel - 1, 0) if context == "causal" else context or (kernel // 2, kernel // 2)
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1, bias=bias)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, groups=width, bias=bias)
        self.norm_type = config.get("conv_norm_type", "batch_norm")
        self.batch_norm = nn.BatchNorm1d(width) if self.norm_type == "batch_norm" else nn.LayerNorm(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.glu(self.pointwise_conv1(x.T[None]), dim=1)
        x = self.depthwise_conv(F.pad(x, tuple(self.context)))
        x = self.batch_norm(x) if self.norm_type == "batch_norm" else self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        return self.pointwise_conv2(F.silu(x))[0].T


class ConformerFeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, bias = config["d_model"], config.get("use_bias", True)
        self.linear1 = nn.Linear(width, width * config["ff_expansion_factor"], bias=bias)
        self.linear2 = nn.Linear(width * config["ff_expansion_factor"], width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(F.silu(self.linear1(x)))


class ConformerLayer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config["d_model"]
        self.norm_feed_forward1, self.feed_forward1 = nn.LayerNorm(width), ConformerFeedForward(config)
        self.norm_conv, self.conv = nn.LayerNorm(width), ConformerConvolution(config)
        self.norm_self_att, self.self_attn = nn.LayerNorm(width), RelPositionMultiHeadAttention(config)
        self.norm_feed_forward2, self.feed_forward2 = nn.LayerNorm(width), ConformerFeedForward(config)
        self.norm_out = nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.feed_forward1(self.norm_feed_forward1(x)) * 0.5
        x = x + self.self_attn(self.norm_self_att(x), seen)
        x = x + self.conv(self.norm_conv(x))
        x = x + self.feed_forward2(self.norm_feed_forward2(x)) * 0.5
        return self.norm_out(x)


class ConformerEncoder(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.pre_encode = ConvSubsampling(config)
        self.layers = nn.ModuleList(ConformerLayer(config) for _ in range(config["n_layers"]))
        if 0 < config.get("feat_out", -1) != config["d_model"]:
            self.out_proj = nn.Linear(config["d_model"], config["feat_out"])

    def forward(self, features: Tensor) -> Tensor:
        """(bins, frames) -> (encoder frames, width)."""
        x = self.pre_encode(features.T)
        if self.config.get("xscaling", True):
            x = x * math.sqrt(self.config["d_model"])
        seen = torch.tensor([[self._sees(i, j) for j in range(len(x))] for i in range(len(x))])
        for layer in self.layers:
            x = layer(x, seen)
        return self.out_proj(x) if hasattr(self, "out_proj") else x

    def _sees(self, i: int, j: int) -> bool:
        contexts = self.config.get("att_context_size") or [-1, -1]
        left, right = contexts[0] if isinstance(contexts[0], list) else contexts
        if self.config.get("att_context_style", "regular") == "regular":
            return (left < 0 or i - j <= left) and (right < 0 or j - i <= right)
        chunk = right + 1
        chunks = i // chunk - j // chunk
        return 0 <= chunks <= (left // chunk if left >= 0 else math.inf)


class ConvASRDecoder(nn.Module):
    def __init__(self, width: int, num_tokens: int) -> None:
        super().__init__()
        self.decoder_layers = nn.Sequential(nn.Conv1d(width, num_tokens + 1, 1))

    def forward(self, encoded: Tensor) -> Tensor:
        return torch.log_softmax(self.decoder_layers(encoded.T[None])[0].T, dim=1)


class RNNTDecoder(nn.Module):
    """The prediction network; the blank is the padding of its embedding."""

    def __init__(self, config: Config, num_tokens: int) -> None:
        super().__init__()
        size, layers = config["prednet"]["pred_hidden"], config["prednet"]["pred_rnn_layers"]
        recurrent = nn.Module()
        recurrent.lstm = nn.LSTM(size, size, layers)
        self.blank_as_pad = config.get("blank_as_pad", True)
        embed = nn.Embedding(num_tokens + 1, size, padding_idx=num_tokens) if self.blank_as_pad else None
        embed = embed or nn.Embedding(num_tokens, size)
        self.prediction = nn.ModuleDict({"embed": embed, "dec_rnn": recurrent})

    def forward(self, token: int | None, state: Any) -> tuple[Tensor, Any]:
        """The output (size,) after one more token, None for none, and the next state."""
        embed: Any = self.prediction["embed"]
        recurrent: Any = self.prediction["dec_rnn"]
        x = torch.zeros(embed.weight.shape[1], dtype=embed.weight.dtype) if token is None else embed.weight[token]
        found, state = recurrent.lstm(x[None, None], state)
        return found[0, 0], state


class RNNTJoint(nn.Module):
    def __init__(self, config: Config, width: int, hidden: int, num_tokens: int) -> None:
        super().__init__()
        size = config["jointnet"]["joint_hidden"]
        self.activation = ACTIVATIONS[config["jointnet"]["activation"]]
        self.pred, self.enc = nn.Linear(hidden, size), nn.Linear(width, size)
        between = [nn.Dropout(0.2)] if config["jointnet"].get("dropout") else []
        outputs = num_tokens + 1 + config.get("num_extra_outputs", 0)
        self.joint_net = nn.Sequential(nn.Identity(), *between, nn.Linear(size, outputs))

    def forward(self, frame: Tensor, predicted: Tensor) -> Tensor:
        return self.joint_net(self.activation(self.enc(frame) + self.pred(predicted)))


class Reference(nn.Module):
    """A whole model of a config in NeMo's layout, with random weights and NeMo's names."""

    def __init__(self, content: Config, num_tokens: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.content, self.blank = content, num_tokens
        self.preprocessor: Any = nn.Module()
        self.preprocessor.featurizer = Featurizer(content["preprocessor"])
        self.encoder = ConformerEncoder(content["encoder"])
        width = content["encoder"]["d_model"]
        width = content["encoder"].get("feat_out", -1) if hasattr(self.encoder, "out_proj") else width
        if "joint" in content:
            self.decoder: Any = RNNTDecoder(content["decoder"], num_tokens)
            hidden = content["decoder"]["prednet"]["pred_hidden"]
            self.joint = RNNTJoint(content["joint"], width, hidden, num_tokens)
            if content.get("aux_ctc") is not None:
                self.ctc_decoder = ConvASRDecoder(width, num_tokens)
        else:
            self.decoder = ConvASRDecoder(width, num_tokens)
        self.eval().requires_grad_(False)
        for name, value in self.state_dict().items():
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5)
            elif name.endswith("running_mean") or (value.dim() == 1 and name.endswith("bias")):
                value.normal_(0, 0.1)
            elif "dec_rnn" in name or "pred.weight" in name or name.endswith("enc.weight"):
                value.mul_(2)
        if "joint" in content and self.decoder.blank_as_pad:
            self.decoder.prediction["embed"].weight[num_tokens] = 0

    def features(self, waveform: Tensor) -> Tensor:
        return self.preprocessor.featurizer(waveform)

    def encode(self, waveform: Tensor) -> Tensor:
        """(samples,) -> (frames, width) float64."""
        return self.double().encoder(self.features(waveform))

    def log_probs(self, waveform: Tensor) -> Tensor:
        """Of the CTC head."""
        encoded = self.encode(waveform)
        return (self.ctc_decoder if hasattr(self, "ctc_decoder") else self.decoder)(encoded)

    def greedy(self, waveform: Tensor) -> list[tuple[int, int]]:
        """Tokens with their frames, as NeMo's label looping finds them."""
        encoded, found, frame, symbols = self.encode(waveform), [], 0, 0
        durations = self.content["decoding"].get("durations") or []
        most = self.content["decoding"]["greedy"]["max_symbols"]
        predicted, state = self.decoder(self.blank if self.decoder.blank_as_pad else None, None)
        while frame < len(encoded):
            logits = self.joint(encoded[frame], predicted)
            token = int(logits[: self.blank + 1].argmax())
            step = durations[int(logits[self.blank + 1 :].argmax())] if durations else int(token == self.blank)
            if token == self.blank:
                frame, symbols = frame + max(step, 1), 0
                continue
            found.append((token, frame))
            predicted, state = self.decoder(token, state)
            symbols += 1
            if step == 0 and symbols >= most:
                step = 1
            frame, symbols = frame + step, symbols if step == 0 else 0
        return found
