"""Hostile files for every command that reads one, each given to `tritone` in a process of its own.

name  ->  arguments, made in an empty folder  ->  Run(exit code, seconds, memory, output)  ->  verdict
"""

import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import soundfile

from benchmarks.endurance.deployment import COMMAND
from benchmarks.endurance.parts import Part, PartOptions, say
from benchmarks.measure import Finding, tree_cpu_s
from tritone.corpus.clips import SHIPPED_CLIPS

MOST_S, MOST_MIB = 10.0, 1024.0
KILL_S, KILL_CPU_S, KILL_MIB = 30.0, 12.0, 3072.0  # when nothing more is to be learnt
BUSY_SHARE = 0.5  # of a core; a process that got less, but ended by itself, was kept waiting by others
SMALL_DISK = 200_000  # bytes that a file may have where the disk is "full"
BUNDLES = Path(__file__).resolve().parents[2] / "src" / "tritone" / "bundles"
CLIP = SHIPPED_CLIPS / "clip-01.flac"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One hostile file: how to make it, and what to do with it.

    `make` gets an empty folder and returns the arguments of `tritone`. `fsize`: the largest file in bytes that the
    process may write, as on a full disk. `may_last`: it is a good file, whose work may go on, within the memory.
    """

    make: Callable[[Path], Sequence[str]]
    fsize: int | None = None
    may_last: bool = False


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a command did. `code` is negative for a signal, None where we ended it.

    `seconds` are those of the clock; of a command that others kept waiting, and that ended by itself, of the processor.
    """

    code: int | None
    seconds: float
    mib: float
    output: str


def verdict_of(run: Run, may_last: bool = False) -> str:
    """ "clear" for an error as it should be; else what is wrong with it."""
    if run.mib > MOST_MIB:
        return f"took {run.mib:.0f} MiB"
    if may_last and (run.code in (None, 0)):
        return "clear"
    if run.code is None or run.seconds > MOST_S:
        return f"took {run.seconds:.0f} s" + (" and went on" if run.code is None else "")
    if "Traceback (most recent call last)" in run.output:
        return "traceback"
    if run.code == 0:
        return "no error"
    if run.code not in (1, 2):
        return f"exit code {run.code}"
    if "error" not in run.output.lower():
        return "no error message"
    return "clear"


def run_command(arguments: Sequence[str], folder: Path, fsize: int | None = None) -> Run:
    """Run `tritone` and watch its time and memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if fsize is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (fsize, fsize))

    log = folder / "output.log"
    began = time.monotonic()
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=sink if fsize is None else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=limit,
            start_new_session=True,
        ) as process,
    ):
        highest = used = 0.0
        ended = False
        while process.poll() is None:
            with suppress(psutil.Error):
                top = psutil.Process(process.pid)
                highest = max(highest, sum(each.memory_info().rss for each in [top, *top.children(True)]) / 2**20)
                used = tree_cpu_s(process.pid)
            if time.monotonic() - began > KILL_S or used > KILL_CPU_S or highest > KILL_MIB:
                ended = True
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.02)
        piped = process.stdout.read() if process.stdout else b""
    output = (piped or log.read_bytes()[:1_000_000]).decode("utf-8", errors="replace")
    seconds = time.monotonic() - began
    if not ended and used < BUSY_SHARE * seconds:
        seconds = used
    return Run(code=None if ended else process.returncode, seconds=seconds, mib=highest, output=output)


def files(options: PartOptions) -> Part:
    """Hostile files for every command that reads one: time, memory, and what the user is told."""
    found = cases()
    names = list(found)[: options.count]
    say(f"files: {len(names)}")

    def once(name: str) -> dict[str, Any]:
        case = found[name]
        with tempfile.TemporaryDirectory(prefix="tritone-files-") as temporary:
            folder = Path(temporary)
            arguments = list(case.make(folder))
            run = run_command(arguments, folder, case.fsize)
        verdict = verdict_of(run, case.may_last)
        last = (run.output.strip().splitlines() or [""])[-1]
        row = {
            "file": name,
            "verdict": verdict,
            "exit code": "-" if run.code is None else run.code,
            "seconds": round(run.seconds, 1),
            "MiB": round(run.mib),
            "last line": last[-200:].replace("|", "/").replace(str(folder), "DIR"),
        }
        say(f"{name}: {verdict}, {row['seconds']} s, {row['MiB']} MiB, {last[:160]}")
        return row

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)) // 2)) as pool:
        rows = list(pool.map(once, names))
    unclear = [row for row in rows if row["verdict"] != "clear"]
    return Part(
        name="files",
        findings=[
            Finding(
                key="files",
                title=f"files: of {len(rows)} hostile ones, without a clear error in {MOST_S:g} s and 1 GiB",
                value=len(unclear),
                bar=0,
                sense="at most",
                setup=options.setup,
                rows=rows,
            )
        ],
        rows=rows,
    )


def _transcribe(make: Callable[[Path], Sequence[str]]) -> Callable[[Path], Sequence[str]]:
    return lambda folder: ["transcribe", "--model", "demo-asr", *make(folder)]


def _build(make: Callable[[Path], Sequence[str]], bundle: str = "demo-asr") -> Callable[[Path], Sequence[str]]:
    return lambda folder: ["build", bundle, "--output", str(folder / "repository"), *make(folder)]


def _written(name: str, content: bytes | str, *options: str) -> Callable[[Path], Sequence[str]]:
    """The options, then the path of a file with that content."""

    def make(folder: Path) -> Sequence[str]:
        data = content.encode("utf-8") if isinstance(content, str) else content
        (folder / name).write_bytes(data)
        return [*options, str(folder / name)]

    return make


def _fifo(*options: str) -> Callable[[Path], Sequence[str]]:
    def make(folder: Path) -> Sequence[str]:
        os.mkfifo(folder / "pipe")
        return [*options, str(folder / "pipe")]

    return make


def _bomb(line: bytes, *options: str) -> Callable[[Path], Sequence[str]]:
    """A gzip file of 8 GB when it is unpacked: one member, again and again."""

    def make(folder: Path) -> Sequence[str]:
        member = gzip.compress(line * (2**26 // len(line)), 9)
        (folder / "bomb.arpa.gz").write_bytes(gzip.compress(b"\\data\\\nngram 1=3\n\n\\1-grams:\n") + member * 128)
        return [*options, str(folder / "bomb.arpa.gz")]

    return make


def _flac(rate: int) -> bytes:
    """A shipped clip whose header says another sample rate: 20 bits in STREAMINFO, after 10 bytes of it."""
    data = bytearray(CLIP.read_bytes())
    at = 8 + 10
    word = int.from_bytes(data[at : at + 4], "big")
    data[at : at + 4] = ((word & 0x00000FFF) | (rate << 12)).to_bytes(4, "big")
    return bytes(data)


def _wav(channels: int, rate: int, size: int) -> bytes:
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * 2 % 2**32, channels * 2 % 2**16, 16)
    return (
        b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size)
    )


def _silence(hours: float, *options: str) -> Callable[[Path], Sequence[str]]:
    def make(folder: Path) -> Sequence[str]:
        path = folder / "silence.flac"
        with soundfile.SoundFile(path, "w", 16000, 1, format="FLAC") as file:
            for _ in range(round(hours * 60)):
                file.write(np.zeros(16000 * 60, np.int16))
        return [*options, str(path)]

    return make


def _bundle(change: Callable[[Path], None]) -> Callable[[Path], Sequence[str]]:
    """`tritone transcribe` with a copy of demo-asr that was changed."""

    def make(folder: Path) -> Sequence[str]:
        copy = folder / "bundle"
        shutil.copytree(BUNDLES / "demo-asr", copy)
        change(copy)
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            _seal(copy)
        return ["transcribe", "--model", str(copy), str(CLIP)]

    return make


def _seal(bundle: Path) -> None:
    """Write the checksums of a changed bundle anew: who makes a hostile one can do that, too."""
    path = bundle / "manifest.json"
    if not path.is_file():
        return
    fields = json.loads(path.read_text(encoding="utf-8"))
    for graph in fields["artifacts"]:
        files = [bundle / name for name in graph["files"]]
        if all(each.is_file() for each in files):
            graph["sha256"] = [hashlib.sha256(each.read_bytes()).hexdigest() for each in files]
    path.write_text(json.dumps(fields), encoding="utf-8")


def _manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        path = bundle / "manifest.json"
        fields = json.loads(path.read_text(encoding="utf-8"))
        change(fields)
        path.write_text(json.dumps(fields), encoding="utf-8")

    return apply


def _overwrite(name: str, content: bytes) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        (bundle / name).write_bytes(content)

    return apply


def _pipe_at(name: str) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        (bundle / name).unlink()
        os.mkfifo(bundle / name)

    return apply


def _endless_loop(bundle: Path) -> None:
    """An encoder with a loop of 2^62 steps before its first node."""
    import onnx
    from onnx import TensorProto, helper

    path = bundle / "encoder.onnx"
    model = onnx.load(str(path), load_external_data=False)
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["still"]),
            helper.make_node("Add", ["held", "one"], ["grown"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("held", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("grown", TensorProto.FLOAT, []),
        ],
        [helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])],
    )
    graph = model.graph
    first = next(each for each in graph.input if each.type.tensor_type.elem_type == TensorProto.FLOAT)
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == first.name:
                node.input[index] = "slow_input"
    graph.initializer.extend(
        [
            helper.make_tensor("loop_count", TensorProto.INT64, [], [2**62]),
            helper.make_tensor("loop_go", TensorProto.BOOL, [], [True]),
            helper.make_tensor("loop_start", TensorProto.FLOAT, [], [0.0]),
        ]
    )
    loop = helper.make_node("Loop", ["loop_count", "loop_go", "loop_start"], ["loop_end"], body=body)
    added = helper.make_node("Add", [first.name, "loop_end"], ["slow_input"])
    nodes = [loop, added, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, str(path))


def _scored(make: Callable[[Path], Sequence[str]]) -> Callable[[Path], Sequence[str]]:
    return lambda folder: ["score", *make(folder)]


def _trials(vectors: Callable[[Path], Path]) -> Callable[[Path], Sequence[str]]:
    def make(folder: Path) -> Sequence[str]:
        (folder / "trials").write_text("1 a b\n0 a c\n", encoding="utf-8")
        return ["score", "--trials", str(folder / "trials"), "--embeddings", str(vectors(folder))]

    return make


def _file(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return make


LONG = "n" * 300
ARK = b"a \x00BFV \x04" + struct.pack("<i", 2**31 - 1) + b"\x00" * 64
LM = ("--search", "prefix-beam", "--lm")
HOT = ("--search", "prefix-beam", "--hotwords-file")


def cases() -> Mapping[str, Case]:
    """Every hostile file by what is wrong with it."""
    return {
        "FLAC of 0 Hz": Case(make=_transcribe(_written("a.flac", _flac(0)))),
        "FLAC of 1 Hz": Case(make=_transcribe(_written("a.flac", _flac(1)))),
        "FLAC of 0 Hz, two voices": Case(
            make=lambda folder: ["verify", *_written("a.flac", _flac(0))(folder), str(CLIP)]
        ),
        "FLAC cut": Case(make=_transcribe(_written("a.flac", CLIP.read_bytes()[:3000]))),
        "WAV of 0 channels": Case(make=_transcribe(_written("a.wav", _wav(0, 16000, 100)))),
        "WAV of 65,535 channels": Case(make=_transcribe(_written("a.wav", _wav(65535, 16000, 2**31)))),
        "WAV that claims 4 GB": Case(
            make=_transcribe(_written("a.wav", _wav(1, 16000, 2**32 - 1) + b"\x00" * 40_000_000))
        ),
        "no audio at all": Case(make=_transcribe(_written("a.wav", b"\x00"))),
        "silence of 6 hours": Case(make=_transcribe(_silence(6))),
        "silence of 6 hours, streamed": Case(make=_transcribe(_silence(6, "--streaming")), may_last=True),
        "audio is a FIFO": Case(make=_transcribe(_fifo())),
        "audio named with 300 letters": Case(make=_transcribe(lambda folder: [str(folder / LONG)])),
        "wav.scp is a FIFO": Case(make=_transcribe(_fifo("--wavscp"))),
        "wav.scp not UTF-8": Case(make=_transcribe(_written("wav.scp", b"a \xff\xfe.wav\n", "--wavscp"))),
        "wav.scp of one long line": Case(make=_transcribe(_written("wav.scp", "a " + "b" * 5_000_000, "--wavscp"))),
        "wav.scp with a name of 300 letters": Case(
            make=_transcribe(_written("wav.scp", f"a {LONG}.wav\n", "--wavscp"))
        ),
        "wav.scp with a zero byte": Case(make=_transcribe(_written("wav.scp", b"a b\x00c.wav\n", "--wavscp"))),
        "manifest is a FIFO": Case(make=_transcribe(_fifo("--manifest"))),
        "manifest with a lone surrogate": Case(
            make=_transcribe(_written("m.json", '{"audio_filepath": "\\ud800.wav", "duration": 1}\n', "--manifest"))
        ),
        "manifest with a lone surrogate as text": Case(
            make=_transcribe(
                _written(
                    "m.json", json.dumps({"audio_filepath": "no.wav", "text": "\ud800", "duration": 1}), "--manifest"
                )
            )
        ),
        "manifest 100,000 deep": Case(make=_transcribe(_written("m.json", "[" * 100_000, "--manifest"))),
        "manifest with a number of 50,000 digits": Case(
            make=_transcribe(
                _written("m.json", f'{{"audio_filepath": "a.wav", "duration": {"9" * 50_000}}}', "--manifest")
            )
        ),
        "embed: wav.scp is a FIFO": Case(
            make=lambda folder: [
                "embed",
                "--model",
                "demo-speaker",
                "--output",
                str(folder / "out"),
                *_fifo("--wavscp")(folder),
            ]
        ),
        "embed: folder named with 300 letters": Case(
            make=lambda folder: [
                "embed",
                "--model",
                "demo-speaker",
                "--data-dir",
                str(SHIPPED_CLIPS),
                "--output",
                str(folder / LONG),
            ]
        ),
        "embed: full disk": Case(
            make=lambda folder: [
                "embed",
                "--model",
                "demo-speaker",
                "--data-dir",
                str(SHIPPED_CLIPS),
                "--output",
                str(folder / "out"),
            ],
            fsize=3000,
        ),
        "LM: gzip bomb of zeros": Case(make=_build(_bomb(b"\x00", *LM))),
        "LM: gzip bomb of empty lines": Case(make=_build(_bomb(b"\n", *LM))),
        "LM: counts without end": Case(
            make=_build(_written("a.arpa", "\\data\\\nngram 1=999999999999\n\n\\1-grams:\n-1 <s>\n\\end\\\n", *LM))
        ),
        "LM: KenLM with a wild header": Case(
            make=_build(
                _written("a.bin", b"mmap lm http://kheafield.com/code format version 5\n\x00" + b"\xff" * 500, *LM)
            )
        ),
        "LM: gzip cut": Case(make=_build(_written("a.arpa.gz", gzip.compress(b"\\data\\\n" * 1000)[:40], *LM))),
        "LM is a FIFO": Case(make=_build(_fifo(*LM))),
        "hotwords: 50,000 digits and an e": Case(make=_build(_written("hot.txt", f"anna {'1' * 50_000}e\n", *HOT))),
        "hotwords: yaml that multiplies itself": Case(
            make=_build(
                _written(
                    "hot.yaml",
                    "a: &a [x,x,x,x,x,x,x,x,x]\n"
                    + "".join(
                        f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True)
                    ),
                    *HOT,
                )
            )
        ),
        "hotwords: yaml 50,000 deep": Case(make=_build(_written("hot.yaml", "a: " + "[" * 50_000, *HOT))),
        "hotwords: yaml that makes an object": Case(
            make=_build(_written("hot.yaml", '!!python/object/apply:os.system ["touch harmed"]\n', *HOT))
        ),
        "hotwords not UTF-8": Case(make=_build(_written("hot.txt", b"\xff\xfe 2\n", *HOT))),
        "hotwords of 38 MB": Case(make=_build(_written("hot.txt", "wort eins zwei 2.5\n" * 2_000_000, *HOT))),
        "hotwords are a FIFO": Case(make=_build(_fifo(*HOT))),
        "build: a name of 300 letters": Case(make=_build(lambda folder: ["--name", LONG])),
        "build: a folder of 300 letters": Case(
            make=lambda folder: ["build", "demo-asr", "--output", str(folder / LONG)]
        ),
        "build: full disk": Case(make=_build(lambda folder: []), fsize=SMALL_DISK),
        "bundle: endless loop in the encoder": Case(make=_bundle(_endless_loop)),
        "bundle: manifest 100,000 deep": Case(make=_bundle(_overwrite("manifest.json", b"[" * 100_000))),
        "bundle: manifest not UTF-8": Case(make=_bundle(_overwrite("manifest.json", b'{"\xff": 1}'))),
        "bundle: manifest with a lone surrogate": Case(make=_bundle(_manifest(lambda m: m.update(name="\ud800")))),
        "bundle: a rate of 10^30": Case(make=_bundle(_manifest(lambda m: m.update(sample_rate=10**30)))),
        "bundle: manifest is a FIFO": Case(make=_bundle(_pipe_at("manifest.json"))),
        "bundle: tokens are a FIFO": Case(make=_bundle(_pipe_at("tokens.txt"))),
        "bundle: graph is a FIFO": Case(make=_bundle(_pipe_at("encoder.onnx"))),
        "bundle: graph is noise": Case(make=_bundle(_overwrite("encoder.onnx", bytes(range(256)) * 1000))),
        "bundle: weights cut": Case(make=_bundle(_overwrite("weights.bin", b"\x00" * 1000))),
        "bundle: tokens of 50 MB": Case(make=_bundle(_overwrite("tokens.txt", b"a 1\n" * 12_500_000))),
        "serve: repository is a file": Case(make=lambda folder: ["serve", *_written("repo", b"x")(folder)]),
        "score: trials are a FIFO": Case(
            make=lambda folder: ["score", *_fifo("--trials")(folder), "--embeddings", str(_file("a.ark", ARK)(folder))]
        ),
        "score: an archive of 2^31 values": Case(make=_trials(_file("a.ark", ARK))),
        "score: scp to a device": Case(make=_trials(_file("a.scp", b"a /dev/zero:0\nb /dev/zero:0\nc /dev/zero:0\n"))),
        "score: scp with a command": Case(make=_trials(_file("a.scp", b"a touch harmed |\nb touch harmed |\n"))),
        "score: scores not finite": Case(
            make=_scored(_written("s.txt", "a b nan target\na c inf nontarget\n", "--scores"))
        ),
        "score: scores not UTF-8": Case(make=_scored(_written("s.txt", b"a b \xff target\n", "--scores"))),
        "score: mean is a pickle": Case(
            make=lambda folder: [
                *_trials(_file("a.ark", ARK))(folder),
                "--cal-mean",
                str(
                    _file(
                        "mean.npy", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
                    )(folder)
                ),
            ]
        ),
        "enroll: a name of 300 letters": Case(
            make=lambda folder: [
                "enroll",
                LONG,
                str(CLIP),
                "--model",
                "demo-speaker",
                "--store",
                str(folder / "store"),
            ]
        ),
        "identify: a store of noise": Case(
            make=lambda folder: [
                "identify",
                str(CLIP),
                "--model",
                "demo-speaker",
                "--store",
                str(_file("store", b"\x00" * 100)(folder)),
            ]
        ),
        "evaluate: manifest with a lone surrogate": Case(
            make=lambda folder: [
                "evaluate",
                "--model",
                "demo-asr",
                *_written(
                    "m.json", json.dumps({"audio_filepath": str(CLIP), "text": "\ud800", "duration": 1}), "--manifest"
                )(folder),
            ],
            may_last=True,
        ),
    }
