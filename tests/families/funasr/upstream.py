"""What FunASR's own code makes of small random weights, kept beside this file as `upstream.npz`.

    python tests/families/funasr/upstream.py

Run in an environment with torch 2.13 and funasr 1.4.16 (`--no-deps`, and what its model files import: kaldiio, librosa,
sentencepiece, omegaconf, hydra-core, rapidfuzz, editdistance, …). Weights and signals are made anew from numbers in
each test: the file holds what upstream computes alone.
"""

import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

PATH = Path(__file__).with_name("upstream.npz")
# Samples at 16 kHz: frames of 10 ms with each remainder by 6, the shortest among them.
LENGTHS = (24000, 9040, 400, 16200, 8080, 12880, 11120)
ASKED = (("auto", False), ("zh", False), ("en", True), ("yue", True), ("nospeech", False), ("ko", False), ("ja", True))
VOCAB = 64
FRONT_END: dict[str, Any] = {
    "fs": 16000,
    "window": "hamming",
    "n_mels": 80,
    "frame_length": 25,
    "frame_shift": 10,
    "lfr_m": 7,
    "lfr_n": 6,
}
ENCODER: dict[str, Any] = {
    "output_size": 32,
    "attention_heads": 4,
    "linear_units": 48,
    "num_blocks": 3,
    "tp_blocks": 2,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "attention_dropout_rate": 0.1,
    "input_layer": "pe",
    "pos_enc_class": "SinusoidalPositionEncoder",
    "normalize_before": True,
    "kernel_size": 5,
    "sanm_shfit": 0,
    "selfattention_layer_type": "sanm",
}

Array = npt.NDArray[Any]


def signals() -> list[npt.NDArray[np.float32]]:
    """Sounds of several tones, louder and softer, of each of the lengths."""
    found = []
    for seed, length in enumerate(LENGTHS):
        random, time = np.random.default_rng(seed), np.arange(length) / 16000
        pitches = random.uniform(90, 3500, 9)
        tones = sum(np.sin(2 * np.pi * hz * time + 6 * np.sin(5 * time * place)) for place, hz in enumerate(pitches))
        level = 0.03 * (1.2 + np.sin(2 * np.pi * 3 * time))
        found.append((level * (tones + random.normal(0, 0.2, length)) / 3).astype(np.float32))
    return found


def tensors(shapes: Mapping[str, tuple[int, ...]], seed: int = 42) -> dict[str, npt.NDArray[np.float32]]:
    """Weights of these shapes, in the order of their names, so that results depend on all of the input."""
    random, found = np.random.default_rng(seed), {}
    for name, shape in sorted(shapes.items()):
        values = random.normal(0, 1, shape)
        if len(shape) > 1:
            values *= (2.0 / values[0].size) ** 0.5
        elif name.endswith(".weight"):
            values = 0.5 + np.abs(values)
        else:
            values *= 0.3
        found[name] = values.astype(np.float32)
    return found


def statistics(size: int = 560) -> str:
    """The text of am.mvn for features of this size."""
    random = np.random.default_rng(9)
    shift, scale = random.normal(-9, 1, size), random.uniform(0.1, 0.3, size)

    def part(name: str, values: Array) -> str:
        numbers = " ".join(f"{value:.6f}" for value in values)
        return f"<{name}> {size} {size} \n<LearnRateCoef> 0 [ {numbers} ]\n"

    nothing = f"<Splice> {size} {size} \n[ 0 ]\n"
    return f"<Nnet> \n{nothing}{part('AddShift', shift)}{part('Rescale', scale)}</Nnet> \n"


def features() -> list[Any]:
    """Upstream's features of each signal."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "am.mvn"
        file.write_text(statistics(), encoding="utf-8")
        front_end = import_module("funasr.frontends.wav_frontend").WavFrontend(
            cmvn_file=str(file), dither=0.0, **FRONT_END
        )
    return [front_end(torch.from_numpy(each)[None], torch.tensor([len(each)]))[0] for each in signals()]


def filled(model: Any, seed: int = 42) -> Any:
    """A network with our random weights."""
    import torch

    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.from_numpy(value) for name, value in tensors(shapes, seed).items()})
    return model.eval()


def sense_voice() -> dict[str, Array]:
    """Features, and log-probabilities of all frames, of each signal alone."""
    import torch

    network = import_module("funasr.models.sense_voice.model").SenseVoiceSmall
    model = filled(network(encoder="SenseVoiceEncoderSmall", encoder_conf=ENCODER, input_size=560, vocab_size=VOCAB))
    found: dict[str, Array] = {}
    with torch.no_grad():
        for index, (rows, (language, use_itn)) in enumerate(zip(features(), ASKED, strict=True)):
            found[f"features_{index}"] = rows[0, :, ::7].numpy()  # some of each of the frames side by side

            def prompt(number: int) -> Any:
                return model.embed(torch.tensor([[number]]))

            asked = [prompt(model.lid_dict[language]), prompt(1), prompt(2)]
            asked.append(prompt(model.textnorm_dict["withitn" if use_itn else "woitn"]))
            speech = torch.cat([*asked, rows], dim=1)
            encoded, _ = model.encoder(speech, torch.tensor([speech.shape[1]]))
            found[f"sense_voice_{index}"] = model.ctc.log_softmax(encoded)[0].numpy()
    return found


DECODER: dict[str, Any] = {
    "attention_heads": 2,
    "linear_units": 40,
    "num_blocks": 3,
    "att_layer_num": 2,
    "kernel_size": 5,
    "sanm_shfit": 1,
    "dropout_rate": 0.1,
    "positional_dropout_rate": 0.1,
    "self_attention_dropout_rate": 0.1,
    "src_attention_dropout_rate": 0.1,
}
PREDICTOR: dict[str, Any] = {
    "idim": 32,
    "threshold": 1.0,
    "l_order": 1,
    "r_order": 1,
    "tail_threshold": 0.45,
    "smooth_factor": 0.8,
    "noise_threshold": 0.05,
}
PLAIN_ENCODER = {name: value for name, value in ENCODER.items() if name != "tp_blocks"}


def paraformer() -> dict[str, Array]:
    """Log-probabilities of the tokens of each signal alone, and the frames of their peaks."""
    import torch

    for module in ("sanm.encoder", "paraformer.decoder", "paraformer.cif_predictor"):
        import_module(f"funasr.models.{module}")
    network = import_module("funasr.models.paraformer.model").Paraformer
    model = filled(
        network(
            encoder="SANMEncoder",
            encoder_conf=PLAIN_ENCODER,
            decoder="ParaformerSANMDecoder",
            decoder_conf=DECODER,
            predictor="CifPredictorV2",
            predictor_conf=PREDICTOR,
            ctc_weight=0.0,
            input_size=560,
            vocab_size=VOCAB,
        )
    )
    found: dict[str, Array] = {}
    with torch.no_grad():
        for index, rows in enumerate(features()):
            encoded, lengths = model.encode(rows, torch.tensor([rows.shape[1]]))
            vectors, count, _, peaks = model.calc_predictor(encoded, lengths)[:4]
            tokens = count.round().long()
            found[f"peaks_{index}"] = torch.nonzero(peaks[0] >= 1)[:, 0].numpy()
            if int(tokens):
                log_probs, _ = model.cal_decoder_with_predictor(encoded, lengths, vectors, tokens)
                found[f"paraformer_{index}"] = log_probs[0].numpy()
    return found


TOKENS = [
    *("<blank>", "<s>", "</s>", "th@@", "is", "a", "的", "我", "hel@@", "lo"),
    *(f"w{number}@@" for number in range(14)),
    *(chr(0x4E00 + number) for number in range(15)),
    *(f"e{number}" for number in range(24)),
    "<unk>",
]
NO_BIAS = 60
FINE_TIMES: dict[str, Any] = {"upsample_times": 3, "use_cif1_cnn": False, "upsample_type": "cnn_blstm"}
SPLIT_WORDS = {
    **{"hello": "hel@@ lo", "this": "th@@ is", "丄丅": "丅 丄", "w-1": "w1@@ e1", "w-2": "w2@@ w3@@ e1"},
    **{token: token for token in TOKENS if "@@" not in token},
}
FINE_SHAPES: dict[str, tuple[int, ...]] = {  # of weights
    **{"predictor.upsample_cnn.weight": (32, 32, 3), "predictor.upsample_cnn.bias": (32,)},
    **{f"predictor.blstm.weight_{side}_l0{way}": (128, 32) for side in ("ih", "hh") for way in ("", "_reverse")},
    **{f"predictor.blstm.bias_{side}_l0{way}": (128,) for side in ("ih", "hh") for way in ("", "_reverse")},
    **{"predictor.cif_output2.weight": (1, 64), "predictor.cif_output2.bias": (1,)},
}
HOTWORDS: dict[str, Any] = {"inner_dim": 32, "bias_encoder_type": "lstm", "bias_encoder_bid": False, "NO_BIAS": NO_BIAS}
HOTWORD_DECODER = DECODER | {"num_blocks": 2, "use_output_layer": False, "wo_input_layer": True}
# One phrase, several of different lengths and with words of pieces, and as many as upstream takes without a choice.
PHRASES = (
    ["我的"],
    ["一丁", "hello", "This is 我 的", "w-2 w-1", "七丄丅", "a", "丄丅"],
    [f"{one}{other}" for one in TOKENS[24:31] for other in TOKENS[30:37]],
)


MANY = [*PHRASES[2], *PHRASES[1], *(f"{one}{other}" for one in TOKENS[24:31] for other in TOKENS[37:39])]  # 70
DEEP_HOTWORDS = DECODER | {"num_blocks": 6, "att_layer_num": 6, "use_output_layer": False, "wo_input_layer": True}
CONTEXTUAL: dict[str, Any] = {"inner_dim": 32}
LIKE_PUBLISHED = DECODER | {"num_blocks": 2}  # all layers attend, as those of published ContextualParaformers
TOLD_SEEDS = {
    "seaco": 1,
    "contextual": 10,
    "published": 10,
}  # with which there are many tokens, and phrases change them


def split_words() -> str:
    """The text of seg_dict."""
    return "".join(f"{word}\t{pieces}\n" for word, pieces in SPLIT_WORDS.items())


SCALES = {
    **{"decoder.embed.0.weight": 6.0, "hotword_output_layer.bias": 0.3, "seaco_decoder.after_norm.bias": 0.3},
    **{f"bias_encoder.weight_{side}_l{layer}": 2.0 for side in ("ih", "hh") for layer in (0, 1)},
    **{f"seaco_decoder.decoders.{layer}.src_attn.linear_out.weight": 4.0 for layer in range(6)},
    **{"bias_embed.weight": 6.0, "decoder.bias_decoder.src_attn.linear_out.weight": 4.0},
}


def told_apart(state: Mapping[str, Any]) -> dict[str, Any]:
    """Weights with which phrases matter, and some tokens are theirs and some are not."""
    changed = {name: value * SCALES.get(name, 1.0) for name, value in state.items()}
    if "hotword_output_layer.bias" in changed:
        changed["hotword_output_layer.bias"][NO_BIAS] += 6.0
    return changed


def hotwords() -> dict[str, Array]:
    """Of each list of phrases, the ids of its tokens; and with it the best tokens of each signal, as of `told`."""
    import torch

    for module in ("sanm.encoder", "paraformer.decoder", "paraformer.cif_predictor"):
        import_module(f"funasr.models.{module}")
    network = import_module("funasr.models.seaco_paraformer.model").SeacoParaformer
    tokenizer = import_module("funasr.tokenizer.char_tokenizer").CharTokenizer(token_list=TOKENS, unk_symbol="<unk>")
    model = filled(
        network(
            encoder="SANMEncoder",
            encoder_conf=PLAIN_ENCODER,
            decoder="ParaformerSANMDecoder",
            decoder_conf=DECODER,
            predictor="CifPredictorV3",
            predictor_conf=PREDICTOR | FINE_TIMES,
            seaco_decoder="ParaformerSANMDecoder",
            seaco_decoder_conf=HOTWORD_DECODER,
            ctc_weight=0.0,
            input_size=560,
            vocab_size=VOCAB,
            **HOTWORDS,
        )
    )
    model.load_state_dict(told_apart(model.state_dict()))
    found: dict[str, Array] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        (Path(folder) / "seg_dict").write_text(split_words(), encoding="utf-8")
        front_end = SimpleNamespace(cmvn_file=str(Path(folder) / "am.mvn"))
        for number, phrases in enumerate(PHRASES):
            file = Path(folder) / "phrases.txt"
            file.write_text("\n".join(phrases), encoding="utf-8")
            listed = model.generate_hotwords_list(str(file), tokenizer=tokenizer, frontend=front_end)
            found[f"phrases_{number}"] = np.array([[*ids, *[-1] * (9 - len(ids))] for ids in listed])
            for index, rows in enumerate(features()):
                encoded, lengths = model.encode(rows, torch.tensor([rows.shape[1]]))
                vectors, count = model.calc_predictor(encoded, lengths)[:2]
                tokens = count.round().long()
                if int(tokens):
                    log_probs = model._seaco_decode_with_ASF(encoded, lengths, vectors, tokens, hw_list=listed)
                    best = log_probs[0].max(dim=1)
                    found[f"hotwords_{number}_{index}"] = np.stack([best.indices.numpy(), best.values.numpy()])
    return found


def told() -> dict[str, Array]:
    """The best token of each place, and its log-probability, of each signal and list of phrases.

    Of a SeACo-Paraformer that chooses among `MANY`, and of a ContextualParaformer with none, few and many.
    """
    import torch

    for module in ("sanm.encoder", "paraformer.decoder", "paraformer.cif_predictor", "contextual_paraformer.decoder"):
        import_module(f"funasr.models.{module}")
    tokenizer = import_module("funasr.tokenizer.char_tokenizer").CharTokenizer(token_list=TOKENS, unk_symbol="<unk>")
    plain = {"encoder": "SANMEncoder", "encoder_conf": PLAIN_ENCODER, "decoder_conf": DECODER, "ctc_weight": 0.0}
    plain |= {"predictor": "CifPredictorV2", "predictor_conf": PREDICTOR, "input_size": 560, "vocab_size": VOCAB}
    seaco = import_module("funasr.models.seaco_paraformer.model").SeacoParaformer(
        decoder="ParaformerSANMDecoder", seaco_decoder="ParaformerSANMDecoder",
        seaco_decoder_conf=DEEP_HOTWORDS, **plain, **HOTWORDS,
    )  # fmt: skip
    contextual, published = (
        import_module("funasr.models.contextual_paraformer.model").ContextualParaformer(
            decoder="ContextualParaformerDecoder", **plain | {"decoder_conf": decoder}, **CONTEXTUAL
        )
        for decoder in (DECODER, LIKE_PUBLISHED)
    )
    found: dict[str, Array] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        (Path(folder) / "seg_dict").write_text(split_words(), encoding="utf-8")
        front_end = SimpleNamespace(cmvn_file=str(Path(folder) / "am.mvn"))
        file = Path(folder) / "phrases.txt"
        lists_of = {"seaco": [MANY], "contextual": [None, *PHRASES, MANY], "published": [None, PHRASES[1]]}
        for name, model in (("seaco", seaco), ("contextual", contextual), ("published", published)):
            filled(model, TOLD_SEEDS[name])
            model.load_state_dict(told_apart(model.state_dict()))
            for number, phrases in enumerate(lists_of[name]):
                listed = None
                if phrases is not None:
                    file.write_text("\n".join(phrases), encoding="utf-8")
                    listed = model.generate_hotwords_list(str(file), tokenizer=tokenizer, frontend=front_end)
                for index, rows in enumerate(features()):
                    encoded, lengths = model.encode(rows, torch.tensor([rows.shape[1]]))
                    vectors, count = model.calc_predictor(encoded, lengths)[:2]
                    tokens = count.round().long()
                    if not int(tokens):
                        continue
                    given = (encoded, lengths, vectors, tokens)
                    if name == "seaco":
                        log_probs = model._seaco_decode_with_ASF(*given, hw_list=listed)
                    else:
                        log_probs = model.cal_decoder_with_predictor(*given, hw_list=listed)[0]
                    best = log_probs[0].max(dim=1)
                    found[f"{name}_{number}_{index}"] = np.stack([best.indices.numpy(), best.values.numpy()])
    return found


STREAM_ENCODER = PLAIN_ENCODER | {
    "input_layer": "pe_online",
    "chunk_size": [12, 15],
    "stride": [8, 10],
    "pad_left": [0, 0],
    "encoder_att_look_back_factor": [4, 4],
    "decoder_att_look_back_factor": [1, 1],
}
STREAM_DECODER = DECODER | {"num_blocks": 2, "sanm_shfit": 2}
# Chunk, frames to come, past chunks of encoder and decoder; and the predictor's factor, with which tokens are many or
# so few that steps have none.
STREAMS = ((10, 5, 4, 1, 0.8), (4, 2, 2, 2, 0.25), (4, 1, 0, 0, 0.8))
# Ends in the middle of a step, at its end, less than a row behind it, and near the end of one.
STREAM_LENGTHS = (67000, 9600, 11000, 57600, 19500, 19190)


def stream_signals() -> list[npt.NDArray[np.float32]]:
    """Signals that are joined to each of the lengths of streams."""
    joined = np.concatenate(signals())
    return [joined[start * 777 : start * 777 + length] for start, length in enumerate(STREAM_LENGTHS)]


def streams() -> dict[str, Array]:
    """Of each signal, in steps of each size: log-probabilities of all tokens, and how many each step has."""
    import torch

    for module in ("scama.encoder", "paraformer.decoder", "paraformer.cif_predictor"):
        import_module(f"funasr.models.{module}")
    network = import_module("funasr.models.paraformer_streaming.model").ParaformerStreaming
    online = import_module("funasr.frontends.wav_frontend").WavFrontendOnline
    found: dict[str, Array] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder) / "am.mvn"
        file.write_text(statistics(), encoding="utf-8")
        front_end = online(cmvn_file=str(file), dither=0.0, **FRONT_END)
        for number, (chunk, ahead, left, decoder_left, factor) in enumerate(STREAMS):
            model = filled(
                network(
                    encoder="SANMEncoderChunkOpt",
                    encoder_conf=STREAM_ENCODER,
                    decoder="ParaformerSANMDecoder",
                    decoder_conf=STREAM_DECODER,
                    predictor="CifPredictorV2",
                    predictor_conf=PREDICTOR | {"smooth_factor": factor},
                    ctc_weight=0.0,
                    input_size=560,
                    vocab_size=VOCAB,
                )
            )
            asked = {
                "chunk_size": [0, chunk, ahead],
                "encoder_chunk_look_back": left,
                "decoder_chunk_look_back": decoder_left,
                "encoder_conf": STREAM_ENCODER,
                "frontend_conf": FRONT_END,
                "device": "cpu",
            }
            for index, signal in enumerate(stream_signals()):
                counts, log_probs = _stream(model, torch.from_numpy(signal), front_end, asked)
                found[f"stream_counts_{number}_{index}"] = np.array(counts)
                found[f"stream_{number}_{index}"] = np.concatenate([np.zeros((0, VOCAB), np.float32), *log_probs])
    return found


def _stream(model: Any, signal: Any, front_end: Any, asked: dict[str, Any]) -> tuple[list[int], list[Array]]:
    """Numbers of tokens of all steps, and their log-probabilities, of a signal in pieces of half a second."""
    import torch

    counts: list[int] = []
    log_probs: list[Array] = []
    predict, decode = model.calc_predictor_chunk, model.cal_decoder_with_predictor_chunk

    def predicted(*given: Any, **more: Any) -> Any:
        result = predict(*given, **more)
        counts.append(int(result[1][0]))
        return result

    def decoded(*given: Any, **more: Any) -> Any:
        result = decode(*given, **more)
        log_probs.append(result[0][0].numpy())
        return result

    model.calc_predictor_chunk, model.cal_decoder_with_predictor_chunk = predicted, decoded
    tokenizer = SimpleNamespace(ids2tokens=lambda ids: [f"t{id}" for id in ids])
    cache: dict[str, Any] = {}
    pieces = torch.split(signal, 8000)
    for place, piece in enumerate(pieces):
        model.inference(
            [piece], key=["s"], tokenizer=tokenizer, frontend=front_end, cache=cache, **asked,
            is_final=place == len(pieces) - 1,
        )  # fmt: skip
    model.calc_predictor_chunk, model.cal_decoder_with_predictor_chunk = predict, decode
    return counts, log_probs


GRAPHS = PATH.with_name("streams.tar.xz")
SMALL_FRONT_END = FRONT_END | {"n_mels": 4}
SMALL_ENCODER = STREAM_ENCODER | {"output_size": 8, "attention_heads": 2, "linear_units": 6, "num_blocks": 2}
SMALL_DECODER = STREAM_DECODER | {"attention_heads": 4, "linear_units": 8}
SMALL_PREDICTOR = PREDICTOR | {"idim": 8}
SMALL_VOCAB = 20


def write_graphs() -> None:
    """Write `GRAPHS`: encoder.onnx and decoder.onnx of a small Paraformer for streams, as upstream exports them."""
    import tarfile

    import torch

    for module in ("scama.encoder", "paraformer.decoder", "paraformer.cif_predictor"):
        import_module(f"funasr.models.{module}")
    classes = {"encoder": "SANMEncoderChunkOpt", "decoder": "ParaformerSANMDecoder", "predictor": "CifPredictorV2"}
    network = import_module("funasr.models.paraformer_streaming.model").ParaformerStreaming
    model = filled(
        network(
            encoder_conf=SMALL_ENCODER,
            decoder_conf=SMALL_DECODER,
            predictor_conf=SMALL_PREDICTOR,
            ctc_weight=0.0,
            input_size=28,
            vocab_size=SMALL_VOCAB,
            **classes,
        )
    )
    with tempfile.TemporaryDirectory() as folder, tarfile.open(GRAPHS, "w:xz", preset=9) as archive:
        for part, name in zip(model.export(type="onnx", **classes), ("encoder", "decoder"), strict=True):
            given = part.eval().export_dummy_inputs()
            if name == "encoder":
                given = (torch.randn(2, 30, 28), given[1])
            file = Path(folder) / f"{name}.onnx"
            torch.onnx.export(
                part, given, file, opset_version=14, dynamo=False, input_names=part.export_input_names(),
                output_names=part.export_output_names(), dynamic_axes=part.export_dynamic_axes(),
            )  # fmt: skip
            archive.add(file, file.name)


MARKS = ["<unk>", "_", "，", "。", "？", "、"]
WORDS = [
    "<unk>",
    *(chr(0x4E00 + number) for number in range(40)),
    *("the", "cat", "sat", "on", "a", "mat", "it's", "good", "ok"),
]
LONG_WORDS = [*WORDS, "一丁", "丂七丄", "丅丆万"]  # of which jieba is told
PUNCTUATION: dict[str, Any] = {
    "ignore_id": 0,
    "embed_unit": 24,
    "att_unit": 24,
    "punc_list": MARKS,
    "sentence_end_id": 3,
}
PUNCTUATION_ENCODER = PLAIN_ENCODER | {"input_size": 24, "output_size": 24}
# Of marks: some of all; and no ends of sentences, so that long ones are cut at commas.
BIASES = ((-50.0, 1.2, 0.0, 0.0, -0.5, -0.5), (-50.0, 2.0, 0.0, -50.0, -50.0, -50.0))


def texts() -> list[str]:
    """Texts of Chinese and English words, known and unknown, short and long."""
    random = np.random.default_rng(3)
    found = [
        "一",
        "cat",
        "it's ok",
        "the zebra sat 乙",
        "一丁 cat丂七 the丄",
        "    一  丁   ",
        "Cat 4 5.5 一",
        "é一cafés",
    ]
    for length in (19, 20, 21, 40, 70, 500):
        words = [WORDS[1 + int(number)] for number in random.integers(0, len(WORDS) - 1, length)]
        found.append("".join(f" {word} " if word.isascii() and random.uniform() < 0.8 else word for word in words))
    return found


def punctuation() -> dict[str, Array]:
    """Each text with marks, as upstream writes it: with the marks of both biases; and in words of jieba."""
    import torch

    import_module("funasr.models.sanm.encoder")
    network = import_module("funasr.models.ct_transformer.model").CTTransformer
    tokenizer = import_module("funasr.tokenizer.char_tokenizer").CharTokenizer
    found: dict[str, Array] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        dictionary = Path(folder) / "jieba_usr_dict"
        dictionary.write_text("".join(f"{word} 1000\n" for word in LONG_WORDS if len(word) > 1), encoding="utf-8")
        for number, (bias, words, more) in enumerate(
            (
                (BIASES[0], WORDS, {}),
                (BIASES[1], WORDS, {}),
                (BIASES[0], LONG_WORDS, {"jieba_usr_dict": str(dictionary)}),
            )
        ):
            model = filled(
                network(
                    encoder="SANMEncoder",
                    encoder_conf=PUNCTUATION_ENCODER,
                    vocab_size=len(words),
                    **PUNCTUATION,
                    **more,
                )
            )
            model.decoder.bias.copy_(torch.tensor(bias))
            written = []
            for text in texts():
                given = {"key": ["t"], "tokenizer": tokenizer(token_list=words, unk_symbol="<unk>"), "device": "cpu"}
                written.append(model.inference([text], **given)[0][0]["text"])
            found[f"marked_{number}"] = np.array(written)
    return found


if __name__ == "__main__":
    write_graphs()
    np.savez_compressed(PATH, **sense_voice(), **paraformer(), **hotwords(), **told(), **streams(), **punctuation())  # type: ignore[arg-type]
