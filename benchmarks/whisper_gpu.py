"""Whisper's engine on a GPU: right on a small model, then as fast as it is beside transformers, with random weights.

    python -m benchmarks.whisper_gpu --out results
    python -m benchmarks.whisper_gpu --out results --parts check,engine --size large-v3

Parts, in this order: `check` (a small model in float32 writes on the GPU what the engine writes on a CPU), `step` (what
a step and a call of the encoder take, and their kernels), `engine` (windows of 30 s and 80 tokens each, in process),
`live` (streams in real time that say a script, see `whisper_gpu_live.py`), `transformers` (the same work as `engine` by
`generate`: plain, with a static cache, with a compiled encoder too), `served` (a bundle of random weights on a server:
64 and 128 requests in flight, 256 of 2 to 30 s, and one alone). Weights are made on the device. Each part's numbers are
in `whisper-gpu.json` as soon as it is done; a part that fails says why there.
"""

import argparse
import base64
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.whisper_gpu_live import live
from tritone.bundle.byte_level import CHARACTERS, ByteLevelBpe
from tritone.client import Client
from tritone.families.whisper.dims import Dims
from tritone.families.whisper.export import export_whisper
from tritone.kinds.whisper.part import WhisperPart
from tritone.pipelines.graphs.work_log import WorkLog
from tritone.pipelines.whisper.course import Model, Transcribing
from tritone.pipelines.whisper.device import OnDevice, fitting, kernels_of
from tritone.pipelines.whisper.engine import Engine
from tritone.pipelines.whisper.options import DecodingOptions
from tritone.report.stamp import Stamp
from tritone.repository import ModelOptions, build_repository
from tritone.runtime.cuda.steps import Steps
from tritone.search.device.attending import Network, Sizes
from tritone.server import ServerOptions, TritonServer

WINDOW_S, TOKENS, REPEATS = 30.0, 80, 3
PROCESSES = 8  # that send requests
STEP_ROWS = (1, 16, 32, 64, 128)
ENCODER_WINDOWS = (1, 4, 8, 16)


def dims_of(width: int, heads: int, encoder: int, decoder: int, bins: int, vocab: int) -> Dims:
    return Dims(
        num_bins=bins,
        audio_context=1500,
        audio_width=width,
        audio_heads=heads,
        audio_layers=encoder,
        audio_hidden=4 * width,
        vocab=vocab,
        text_context=448,
        text_heads=heads,
        text_layers=decoder,
        text_hidden=4 * width,
    )


SIZES = {
    "mini": dims_of(64, 1, 2, 2, 80, 51865),  # to try a command on a CPU
    "tiny": dims_of(384, 6, 4, 4, 80, 51865),
    "base": dims_of(512, 8, 6, 6, 80, 51865),
    "turbo": dims_of(1280, 20, 32, 4, 128, 51866),
    "large-v3": dims_of(1280, 20, 32, 32, 128, 51866),
}


def special_of(dims: Dims) -> WhisperPart:
    """Ids as those of released models."""
    sot, first = 50258, dims.vocab - 1501
    heads = range(0, dims.text_heads, 4)
    return WhisperPart(
        window_frames=2 * dims.audio_context,
        text_context=dims.text_context,
        layers=dims.text_layers,
        heads=dims.text_heads,
        head_dim=dims.head_dim,
        encoder_heads=dims.audio_heads,
        sot=sot,
        eot=50257,
        sot_prev=first - 3,
        no_timestamps=first - 1,
        timestamp_begin=first,
        no_speech=first - 2,
        languages={"en": sot + 1, "de": sot + 3},
        tasks={"transcribe": first - 5, "translate": first - 6},
        suppress=tuple(range(1, 80)),
        suppress_first=(220, 50257),
        max_initial_timestamp=50,
        alignment_heads=tuple((dims.text_layers - 1, head) for head in heads),
    )


def random_state(dims: Dims, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """Random tensors by openai/whisper's names; of a small model the same on every device.

    Models of true sizes never write an end, or a time: a window has as many tokens as may be.
    """
    where = "cpu" if dims.audio_width < 100 else device  # each device has its own random numbers
    generator = torch.Generator(where).manual_seed(0)
    state: dict[str, Any] = {}
    for name, shape in dims.shapes().items():
        drawn = torch.randn(shape, generator=generator, device=where).to(device)
        scale = 1.0 if "embedding" in name else 1.4 * shape[-1] ** -0.5 if len(shape) > 1 else 0.02
        state[name] = (drawn * scale + (1.0 if "ln" in name and name.endswith("weight") else 0.0)).to(dtype)
    if dims.audio_width >= 100:
        state["decoder.token_embedding.weight"][special_of(dims).eot :] = 0
    return state


def state_of(dims: Dims, device: str, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random tensors of encoder and decoder, as their programs have them."""
    encoder: dict[str, Any] = {}
    decoder: dict[str, Any] = {}
    for name, value in random_state(dims, device, dtype).items():
        for part in ("key", "value"):
            if f"cross_attn.{part}." in name:
                encoder[name.replace("decoder.blocks", "cross").replace("cross_attn.", "")] = value
        (encoder if name.startswith("encoder") else decoder)[name] = value
    return encoder, decoder


def opened(dims: Dims, device: str, dtype: torch.dtype) -> tuple[Engine, OnDevice, Model]:
    """The engine of a random model."""
    special, steps = special_of(dims), Steps(device, priority=-1)
    sizes = Sizes(encoder_heads=dims.audio_heads, heads=dims.text_heads, alignment_heads=special.alignment_heads)
    kernels = kernels_of(steps, special)
    network = Network(*state_of(dims, device, dtype), sizes, attending=kernels)
    free = steps.free_bytes()
    windows, rows = (8, 24) if free is None else fitting(network, free)
    on_device = OnDevice(network, special, steps, dims.num_bins, windows=windows, rows=rows, kernels=kernels)
    pieces = [*CHARACTERS, *(a + b for a in CHARACTERS for b in CHARACTERS)][:50257]
    bpe = ByteLevelBpe([*pieces, *(f"<|{index}|>" for index in range(dims.vocab - len(pieces)))])
    engine = Engine(on_device, special, dims.vocab, WorkLog(16000), 160)
    return engine, on_device, Model(special, bpe, 16000, 160)


PLAIN = DecodingOptions(
    language="en",
    temperature=(0.0,),
    timestamps=False,
    previous_text=False,
    no_speech_threshold=None,
    log_prob_threshold=None,
    compression_ratio_threshold=None,
    max_tokens=TOKENS,
)


def windows_of(count: int, bins: int, frames: int = 3000) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.normal(0, 0.5, (frames, bins)).astype(np.float32) for _ in range(count)]


def transcripts(engine: Engine, model: Model, windows: list[np.ndarray], options: DecodingOptions) -> list[Any]:
    prompt = [1000 + index for index in range(len(options.prompt) // 2)]
    found = engine.run(Transcribing(model, each, options, prompt, WINDOW_S).course() for each in windows)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found


def check(arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens of a small model on this device and on the CPU, all kinds of options in one batch."""
    dims = dims_of(64, 1, 2, 2, 80, 51865)
    lengths = (3000, 3000, 900, 2500, 3000, 7000)
    options = [
        replace(PLAIN, max_tokens=24),
        replace(PLAIN, max_tokens=24, timestamps=True),
        replace(PLAIN, max_tokens=24, beam=3),
        replace(PLAIN, max_tokens=24, language=""),
        replace(PLAIN, max_tokens=24, temperature=(0.7,), best_of=2),
        replace(PLAIN, max_tokens=24, previous_text=True, timestamps=True, word_times=True),
    ]
    answers = []
    for device in ("cpu", arguments.device):
        engine, _, model = opened(dims, device, torch.float32)
        random = np.random.default_rng(1)
        features = [random.normal(0, 0.5, (length, 80)).astype(np.float32) for length in lengths]
        courses = (
            Transcribing(model, each, chosen, [], 1.0).course() for each, chosen in zip(features, options, strict=True)
        )
        found: Any = engine.run(courses)
        answers.append(
            [[list(each.tokens) for each in one.segments] if hasattr(one, "segments") else repr(one) for one in found]
        )
    same = [a == b for a, b in zip(*answers, strict=True)]
    names = ["greedy", "times", "beam 3", "language", "sampled", "long with words"]
    wrong = {name: list(pair) for name, ok, *pair in zip(names, same, *answers, strict=True) if not ok}
    return {"same": dict(zip(names, same, strict=True)), "different": str(wrong)[:3000]}


def median_ms(function: Callable[[], Any], repeats: int = 20) -> float:
    """Of a function whose work is on the present stream."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def step(engine: Engine, device: OnDevice, dims: Dims) -> dict[str, Any]:
    """Times of steps and of the encoder, recorded; and the kernels of a step."""
    found: dict[str, Any] = {"windows": device.windows, "rows": device.rows}
    random = np.random.default_rng(0)
    columns = device.columns
    with device.turn():
        for rows in [each for each in STEP_ROWS if each <= min(device.rows, device.windows)] + [device.rows]:
            numbers = np.zeros((rows, columns + device.context), np.int64)
            numbers[:, 0], numbers[:, 1], numbers[:, 2], numbers[:, 5] = 5, 40, 4, 400
            numbers[:, 6] = random.permutation(device.windows)[:rows] if rows <= device.windows else 0
            origin = np.repeat(np.arange(rows)[:, None], device.context, 1)
            device.begin([*range(rows)], numbers, origin)
            found[f"step_ms_{rows}"] = median_ms(lambda rows=rows: device.step(rows))  # type: ignore[misc]
            if rows == 1:
                found["kernels_us_1"] = profile(lambda: device.step(1))
            if rows == 64:
                found["kernels_us"] = profile(lambda: device.step(64))
                found["step_ms_64_sampled"] = median_ms(lambda: device.step(64, sampled=True))
                found["step_ms_64_told"] = median_ms(lambda: device.step(64, scored=True))
        numbers[:, 14] = np.arange(rows) // 5 * 5
        numbers[:, 15] = 5
        device.begin([*range(rows)], numbers, origin)
        found[f"step_ms_{rows}_beam_5"] = median_ms(lambda: device.step(rows, beam=5))
        for count in ENCODER_WINDOWS:
            windows = [np.zeros((3000, dims.num_bins), np.float32)] * count
            slots = [*range(count)]
            found[f"encoder_ms_{count}"] = median_ms(lambda w=windows, s=slots: device.encode(w, s), 5)  # type: ignore[misc]
            if count == 1:
                found["encoder_kernels_us_1"] = profile(lambda w=windows, s=slots: device.encode(w, s))  # type: ignore[misc]
                of_one = found["encoder_kernels_us_1"]["all"][0] + TOKENS * found["kernels_us_1"]["all"][0]
                found["kernels_of_one_request_ms"] = of_one / 1e3
        features = torch.zeros(count, 3000, dims.num_bins, device=device.writing.network.device)
        places = torch.tensor(slots, device=features.device)
        launched = partial(device.writing.network.encode, features, places, device.writing.caches)
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            with sdpa_kernel([getattr(SDPBackend, name)]):
                found[f"encoder_ms_{count}_launched_{name}"] = median_ms(launched, 5)
        found["encoder_kernels_us"] = profile(lambda: device.encode(windows, slots))
        found["encoder_x_real_time"] = WINDOW_S * count / found[f"encoder_ms_{count}"] * 1e3
    return found


def profile(function: Callable[[], Any]) -> dict[str, Any]:
    """Microseconds and counts of the kernels of a function, the largest first, and of all together."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    torch.cuda.synchronize()
    with profiled(activities=[ProfilerActivity.CUDA]) as seen:
        function()
        torch.cuda.synchronize()
    events = sorted(seen.key_averages(), key=lambda each: -each.self_device_time_total)
    every = [round(sum(each.self_device_time_total for each in events), 1), sum(each.count for each in events)]
    return {"all": every} | {each.key[:90]: [round(each.self_device_time_total, 1), each.count] for each in events[:25]}


def timed(function: Callable[[], Any]) -> list[float]:
    function()
    seconds = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def in_process(engine: Engine, model: Model, dims: Dims, only: Collection[str]) -> dict[str, Any]:
    """Windows in process: × real time of equal ones, with beams, words and mixed lengths."""
    found: dict[str, Any] = {}
    cases: dict[str, tuple[int, DecodingOptions]] = {
        "1": (1, PLAIN),
        "32": (32, PLAIN),
        "64": (64, PLAIN),
        "256": (256, PLAIN),
        "64 sampled": (64, replace(PLAIN, temperature=(0.5,))),
        "64 beam 5": (64, replace(PLAIN, beam=5)),
        "64 words": (64, replace(PLAIN, word_times=True)),
        "64 after a prompt": (64, replace(PLAIN, prompt="a text of earlier windows " * 12)),
    }
    for name, (count, options) in cases.items():
        if only and name not in only:
            continue
        windows = windows_of(count, dims.num_bins)
        seconds = timed(lambda w=windows, o=options: transcripts(engine, model, w, o))  # type: ignore[misc]
        found[name] = {"s": seconds, "x": count * WINDOW_S / float(np.median(seconds))}
        print(name, found[name], flush=True)
    return found


@contextmanager
def freed() -> Iterator[None]:
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def random_model(dims: Dims, device: str) -> Any:
    """A model of transformers with random weights, bf16."""
    from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

    special = special_of(dims)
    ends: dict[str, Any] = {"pad_token_id": special.eot, "bos_token_id": special.eot, "eos_token_id": special.eot}
    config = WhisperConfig(
        vocab_size=dims.vocab,
        num_mel_bins=dims.num_bins,
        encoder_layers=dims.audio_layers,
        decoder_layers=dims.text_layers,
        encoder_attention_heads=dims.audio_heads,
        decoder_attention_heads=dims.text_heads,
        encoder_ffn_dim=dims.audio_hidden,
        decoder_ffn_dim=dims.text_hidden,
        d_model=dims.audio_width,
        decoder_start_token_id=special.sot,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **ends,
    )
    with torch.device(device):
        model: Any = WhisperForConditionalGeneration(config)
    model = model.to(torch.bfloat16).eval()
    model.generation_config = GenerationConfig(decoder_start_token_id=special.sot, **ends)
    return model


def by_transformers(arguments: argparse.Namespace, dims: Dims, count: int) -> dict[str, Any]:
    """The same work by `generate`."""
    special, model = special_of(dims), random_model(dims, arguments.device)
    for name, value in {
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": special.languages["en"]},
        "task_to_id": dict(special.tasks),
        "no_timestamps_token_id": special.no_timestamps,
        "return_timestamps": False,
    }.items():
        setattr(model.generation_config, name, value)
    features = torch.randn(count, dims.num_bins, 3000, device=arguments.device, dtype=torch.bfloat16)

    def generate(**more: Any) -> Any:
        with torch.inference_mode():
            out = model.generate(
                features, language="en", task="transcribe", max_new_tokens=TOKENS, min_new_tokens=TOKENS, **more
            )
        return out

    found: dict[str, Any] = {"tokens": list(generate().shape)}
    for name in ("plain", "static", "encoder"):
        if name == "encoder":
            encoder = model.get_encoder()
            encoder.forward = torch.compile(encoder.forward, dynamic=False)
        more = {} if name == "plain" else {"cache_implementation": "static"}
        try:
            seconds = timed(lambda m=more: generate(**m))  # type: ignore[misc]
            found[name] = {"s": seconds, "x": count * WINDOW_S / float(np.median(seconds))}
        except Exception as error:  # of another version of transformers
            found[name] = f"{type(error).__name__}: {error}"[:500]
        print(name, found[name], flush=True)
    return found


def write_bundle(folder: Path, dims: Dims, device: str) -> Path:
    """A bundle for runtime torch of a random model, exported from a file as openai/whisper writes them."""
    checkpoint, tokens = folder / "model.pt", folder / "multilingual.tiktoken"
    half = torch.float32 if device == "cpu" else torch.bfloat16
    given = {
        "n_mels": dims.num_bins,
        "n_audio_ctx": dims.audio_context,
        "n_audio_state": dims.audio_width,
        "n_audio_head": dims.audio_heads,
        "n_audio_layer": dims.audio_layers,
        "n_vocab": dims.vocab,
        "n_text_ctx": dims.text_context,
        "n_text_state": dims.audio_width,
        "n_text_head": dims.text_heads,
        "n_text_layer": dims.text_layers,
    }
    torch.save({"dims": given, "model_state_dict": random_state(dims, device, half)}, checkpoint)
    letters = [bytes([each]) for each in range(256)]
    pieces = [*letters, *(one + other for one in letters for other in letters)][: special_of(dims).eot]
    lines = (f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces))
    tokens.write_text("".join(lines), encoding="ascii")
    report = export_whisper(
        checkpoint=checkpoint,
        tokens=tokens,
        output=folder / "bundle",
        runtimes=("torch",),
        precisions=("fp32" if device == "cpu" else "bf16",),
        check=False,
    )
    checkpoint.unlink()
    return report.bundle.path


def ask(address: str, jobs: Sequence[tuple[float, int]], threads: int) -> list[float]:
    """Send recordings of some seconds and tokens, 16-bit, from some threads; the latency of each, in seconds."""
    noise = np.random.default_rng(os.getpid()).normal(0, 3000, round(16000 * WINDOW_S)).clip(-32768, 32767)
    waveform = noise.astype(np.int16)

    def one(job: tuple[float, int]) -> float:
        seconds, tokens = job
        start = time.perf_counter()
        client.transcribe(waveform[: round(16000 * seconds)], search={"max_tokens": tokens}).get()
        return time.perf_counter() - start

    with Client(address, timeout_s=300) as client, ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, jobs))


def loaded(pool: ProcessPoolExecutor, address: str, flight: int, jobs: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """What a server does with so many requests in flight from eight processes, until all jobs are done."""
    threads = max(1, flight // PROCESSES)
    start = time.perf_counter()
    asked = [pool.submit(ask, address, jobs[place::PROCESSES], threads) for place in range(PROCESSES)]
    latencies = [second for each in asked for second in each.result()]
    took = time.perf_counter() - start
    return {
        "requests": len(jobs),
        "x": sum(seconds for seconds, _ in jobs) / took,
        "windows_x": len(jobs) * WINDOW_S / took,
        "p50_ms": 1e3 * float(np.median(latencies)),
        "p95_ms": 1e3 * float(np.quantile(latencies, 0.95)),
        "took_s": took,
    }


def mixed(pool: ProcessPoolExecutor, address: str, flight: int, count: int) -> dict[str, Any]:
    """Recordings of 2 to 30 s beside what equal ones say of them: a of a window, b of a token."""
    found: dict[str, Any] = {}
    for tokens in (64, 100):
        found[f"equal, {tokens} tokens"] = loaded(pool, address, flight, [(WINDOW_S, tokens)] * count)
    few, many = (found[f"equal, {tokens} tokens"]["took_s"] / count for tokens in (64, 100))
    of_token = (many - few) / 36
    of_window = few - 64 * of_token
    lengths = np.random.default_rng(3).uniform(2, WINDOW_S, count)
    jobs = [(float(each), max(4, round(float(each) * 100 / WINDOW_S))) for each in lengths]
    found["mixed"] = loaded(pool, address, flight, jobs)
    expected = of_window * count + of_token * sum(tokens for _, tokens in jobs)
    return found | {
        "ms_of_a_window": 1e3 * of_window,
        "ms_of_a_token": 1e3 * of_token,
        "of_expected_time": found["mixed"]["took_s"] / expected,
    }


def served(arguments: argparse.Namespace, dims: Dims) -> dict[str, Any]:
    """× real time of a served model: one request alone, many in flight, and recordings of mixed lengths."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        start, folder = time.perf_counter(), Path(temporary)
        bundle = arguments.bundle or write_bundle(folder, dims, arguments.device)
        found["export_s"] = time.perf_counter() - start
        fixed = {"language": "en", "temperature": "0", "timestamps": False, "max_tokens": TOKENS}
        fixed |= {f"{name}_threshold": "none" for name in ("no_speech", "log_prob", "compression_ratio")}
        options = ModelOptions(
            device="cpu" if arguments.device == "cpu" else "gpu",
            runtime="torch",
            max_audio_s=60,
            decoding=json.dumps(fixed),
        )
        build_repository([bundle], folder / "repository", options=options)
        ports: dict[str, Any] = {
            f"{name}_port": 18000 + place for place, name in enumerate(("http", "grpc", "metrics"))
        }
        start = time.perf_counter()
        with (
            TritonServer(folder / "repository", ServerOptions(**ports, start_timeout_s=300), log=sys.stderr) as server,
            ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool,
        ):
            found["start_s"] = time.perf_counter() - start
            for flight, count in arguments.flights:
                loaded(pool, server.grpc_address, flight, [(WINDOW_S, TOKENS)] * flight)
                found[f"{flight} in flight"] = loaded(pool, server.grpc_address, flight, [(WINDOW_S, TOKENS)] * count)
                print(flight, found[f"{flight} in flight"], flush=True)
            if arguments.mixed is not None:
                found["mixed"] = mixed(pool, server.grpc_address, *arguments.mixed)
            alone = ask(server.grpc_address, [(WINDOW_S, TOKENS)] * 30, 1)
            found["alone_ms"] = 1e3 * float(np.median(alone[10:]))
    return found


def measure(arguments: argparse.Namespace, dims: Dims, parts: Collection[str], keep: Callable[..., Any]) -> None:
    """The parts of one engine."""
    made = keep("opened", lambda: opened(dims, arguments.device, torch.bfloat16))
    if made is None:
        return
    engine, device, model = made
    keep("warm-up", engine.warm_up)
    keep("memory", lambda: {"reserved_gb": round(torch.cuda.memory_reserved() / 1e9, 1)})
    if "step" in parts:
        keep("step", lambda: step(engine, device, dims))
    if "engine" in parts:
        keep("engine", lambda: in_process(engine, model, dims, [each for each in arguments.cases.split(",") if each]))
    if "live" in parts:
        loads, seconds = arguments.live
        keep("live", lambda: live(engine, model, arguments.device, dims.num_bins, loads, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of whisper-gpu.json")
    parser.add_argument("--parts", default="check,step,engine,transformers")
    parser.add_argument("--size", choices=SIZES, default="turbo")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", default="", help="those of the part engine, such as 1,64,256")
    parser.add_argument(
        "--bundle", type=Path, help="folder that the part bundle writes one into, and served reads it from"
    )
    parser.add_argument(
        "--brief", action="store_true", help="a third of the requests to the server, and none of mixed lengths"
    )
    parser.add_argument("--windows", type=int, default=32, help="of transformers")
    parser.add_argument("--small", action="store_true", help="few requests and streams, to try that it works")
    arguments = parser.parse_args()
    arguments.flights = [(PROCESSES, PROCESSES)] if arguments.small else [(64, 2400), (128, 2400)]
    arguments.mixed = (PROCESSES, 2 * PROCESSES) if arguments.small else (256, 2048)
    if arguments.brief:
        arguments.flights, arguments.mixed = [(64, 768), (128, 768)], None
    loads = [(2, 2.0)] if arguments.small else [(60, 1.0), (100, 2.0), (120, 1.0), (200, 2.0)]
    arguments.live = (loads, 6.0 if arguments.small else 20.0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    place, dims, parts = arguments.out / "whisper-gpu.json", SIZES[arguments.size], arguments.parts.split(",")
    told: dict[str, Any] = {"stamp": asdict(Stamp.here()), "size": arguments.size, "torch": torch.__version__}
    told["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"

    def keep(name: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            result = function()
            told[name] = result if isinstance(result, dict) else {}
        except Exception:
            result = None
            told[name] = {"error": traceback.format_exc()[-3000:]}
        told[name]["took_s"] = round(time.perf_counter() - start, 1)
        place.write_text(json.dumps(told, indent=1), encoding="utf-8")
        print(name, json.dumps(told[name], indent=1)[:6000], flush=True)
        return result

    if "check" in parts:
        keep("check", lambda: check(arguments))
    if {"step", "engine", "live"} & set(parts):
        with freed():
            measure(arguments, dims, parts, keep)
    if "transformers" in parts:
        with freed():
            keep("transformers", lambda: by_transformers(arguments, dims, arguments.windows))
    if "bundle" in parts:
        arguments.bundle.mkdir(parents=True)
        keep("bundle", lambda: {"path": str(write_bundle(arguments.bundle, dims, arguments.device))})
    arguments.bundle = arguments.bundle and arguments.bundle / "bundle"
    if "served" in parts:
        keep("served", lambda: served(arguments, dims))


if __name__ == "__main__":
    main()
