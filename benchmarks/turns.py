"""How often each rule for the end of a turn cuts people off, how late it is, and how long the final text then takes.

    python -m benchmarks.turns --data DIR --vad VAD --turn TURN [--output docs/performance/turns]

`--data` has the folders an4 and librispeech_mini, each a tar of audio and metadata.jsonl; `--vad` and `--turn` are
bundles of `tritone export silero` and `tritone export smart-turn`. A turn is a test utterance, broken near its middle
at a quiet place by a pause of 0.3 to 2 s, with 4 s of silence behind it; a quiet microphone's noise is everywhere. Each
is a live stream of the gateway to a shipped model, heard as fast as it goes, in pieces of 100 ms. A rule cuts somebody
off if it ends the turn before its last word has ended; it is as late as the audio that has come when it ends the turn
after that. The turns are the same with every run; times are those of the machine. Writes <output>.json, .md.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.joined import Joined, JoinOptions, Part, join
from benchmarks.measure import percentiles
from benchmarks.served import MODEL, serving
from benchmarks.voice_activity import RATE, recordings
from tritone.audio.pcm import to_pcm
from tritone.audio.waveform import Waveform
from tritone.bundle import Bundle, resolve
from tritone.client.async_client import AsyncClient
from tritone.gateway.ask import Ask, TurnOptions, VadOptions
from tritone.gateway.callers import Caller
from tritone.gateway.live import Live
from tritone.gateway.metrics import Metrics
from tritone.gateway.options import GatewayOptions
from tritone.gateway.speech import Speech
from tritone.report.stamp import Stamp
from tritone.report.table import Column, Table
from tritone.repository import ModelOptions

COUNT = 40  # test utterances of a corpus
MIDDLE, QUIET_S = 0.45, 0.1  # where the middle of an utterance begins; the length of a quiet place
SPEECH: Mapping[str, str] = {"LibriSpeech": "librispeech_mini", "AN4": "an4"}
PAUSES_S, SILENCE_S = (0.3, 2.0), 4.0  # within a turn, and behind it
SHORT_S = 1.0  # pauses within turns are told apart by this
PIECE_S = 0.1
VAD, TURN = "vad", "turn"
CALLER = Caller(protocol="benchmark")


def after(silence_s: float) -> Ask:
    return Ask(vad=VadOptions(model=f"{VAD}-streaming", parameters={"min_silence_s": silence_s}))


def judged(**options: Any) -> Ask:
    return Ask(vad=VadOptions(model=f"{VAD}-streaming"), turns=TurnOptions(model=TURN, **options))


RULES: Mapping[str, Ask] = {
    "silence of 0.5 s": after(0.5),
    "silence of 1 s": after(1.0),
    "Smart Turn": judged(),
    "Smart Turn, threshold 0.8": judged(threshold=0.8),
    "Smart Turn, asked after 0.5 s": judged(pause_s=0.5),
}
COLUMNS = (
    Column("speech", "speech"),
    Column("rule", "rule"),
    Column("turns", "turns"),
    Column("cut_off", "cut off", digits=1, scale=100, unit="%"),
    Column("short", f"pause < {SHORT_S:g} s", digits=1, scale=100, unit="%"),
    Column("long", f"pause ≥ {SHORT_S:g} s", digits=1, scale=100, unit="%"),
    Column("late_p50_s", "late, p50", digits=2, unit="s"),
    Column("late_p95_s", "late, p95", digits=2, unit="s"),
    Column("final_p50_ms", "final text, p50", digits=0, unit="ms"),
    Column("final_p95_ms", "final text, p95", digits=0, unit="ms"),
    Column("asked_p50_ms", "classifier, p50", digits=0, unit="ms"),
    Column("asked_p95_ms", "classifier, p95", digits=0, unit="ms"),
)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn: its audio, the pause within it, and where its last word ends, in seconds."""

    samples: Waveform
    pause_s: float
    end_s: float


def broken(part: Part) -> list[Part]:
    """A recording in two, at the quietest place near its middle."""
    samples = part.samples
    size = round(QUIET_S * RATE)
    power = np.convolve(np.square(samples, dtype=np.float64), np.ones(size), "valid")
    first, last = round(MIDDLE * len(power)), round((1 - MIDDLE) * len(power))
    middle = first + int(np.argmin(power[first:last])) + size // 2
    halves = (samples[:middle], samples[middle:])
    return [Part(id=f"{part.id}-{index}", samples=each) for index, each in enumerate(halves)]


def turns_of(data: Path, speech: str, count: int) -> Iterator[Turn]:
    """The turns of one sort of speech."""
    parts = [part for each in recordings(data, SPEECH[speech], {"split": "test"}).values() for part in each]
    for seed, part in enumerate(parts[:: max(1, len(parts) // count)][:count]):
        options = JoinOptions(pauses_s=PAUSES_S, edges_s=SILENCE_S, trim=True, level_dbfs=-26, seed=seed)
        known: Joined
        samples, known = join(broken(part), sample_rate=RATE, options=options)
        before, behind = (each.speech for each in known.parts)
        yield Turn(samples=samples, pause_s=behind[0].start_s - before[-1].end_s, end_s=behind[-1].end_s)


class TimedSpeech(Speech):
    """What the gateway's protocols ask, which keeps its latencies, in seconds."""

    def __init__(self, client: AsyncClient, options: GatewayOptions) -> None:
        super().__init__(client, options, Metrics())
        self.took: dict[str, list[float]] = defaultdict(list)

    def observe(self, what: str, live: Live, seconds: float) -> None:
        self.took[what].append(seconds)


async def ends(speech: Speech, ask: Ask, turn: Turn) -> list[float]:
    """Where in the audio the rule ends turns; none for an end that is that of the audio."""
    found, size = [], round(PIECE_S * RATE)
    audio = to_pcm(turn.samples)
    async with await speech.open(ask, RATE, CALLER) as live:
        for start in range(0, len(audio), size):
            events = await live.accept(audio[start : start + size])
            found += [live.received_s for event in events if event.kind == "final"]
        await live.finish()
    return found


async def measure(url: str, data: Path) -> list[dict[str, Any]]:
    """The rows of all rules."""
    rows = []
    async with AsyncClient(url) as client:
        options = GatewayOptions(triton=url, stream_model=f"{MODEL}-streaming")
        await ends(
            TimedSpeech(client, options), judged(), next(turns_of(data, next(iter(SPEECH)), 1))
        )  # everything has run once
        for name in SPEECH:
            turns = list(turns_of(data, name, COUNT))
            for rule, ask in RULES.items():
                begun = time.monotonic()
                speech = TimedSpeech(client, options)
                rows.append({"speech": name, "rule": rule, **await row_of(speech, ask, turns)})
                print(f"{rows[-1]} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return rows


async def row_of(speech: TimedSpeech, ask: Ask, turns: list[Turn]) -> dict[str, Any]:
    """The figures of a rule."""
    late, cut = [], []
    for turn in turns:
        found = await ends(speech, ask, turn)
        cut.append(any(end_s < turn.end_s for end_s in found))
        late += [end_s - turn.end_s for end_s in found if end_s >= turn.end_s][:1]
    is_short = np.array([turn.pause_s < SHORT_S for turn in turns])
    cuts = np.array(cut)
    ends_s, final, asked = (
        percentiles(each) if each else {} for each in (late, speech.took["final"], speech.took["turn"])
    )
    times = {"late": (ends_s, "s", 1), "final": (final, "ms", 1000), "asked": (asked, "ms", 1000)}
    return {
        "turns": len(turns),
        "cut_off": float(cuts.mean()),
        "short": float(cuts[is_short].mean()),
        "long": float(cuts[~is_short].mean()),
        **{
            f"{name}_{rank}_{unit}": scale * values[rank] if values else None
            for name, (values, unit, scale) in times.items()
            for rank in ("p50", "p95")
        },
    }


def page(rows: list[dict[str, Any]], stamp: Stamp) -> str:
    """The figures as a page."""
    table = Table("", COLUMNS, rows)
    return (
        "# When turns end\n\n"
        "Cut off: of the turns those that a rule ended before the last word had ended; beside it those whose pause "
        f"was shorter than {SHORT_S:g} s and those whose pause was longer. Late: how much audio after the last word "
        "had come when the turn ended, among it up to 0.16 s that wait for a full chunk. Final text: from the "
        "decision to the text of the turn. Classifier: from the pause to its answer. Utterances are read aloud "
        "(LibriSpeech), or spelled words, numbers and commands (AN4), and broken by a pause of 0.3 to 2 s near their "
        "middle. Nobody hesitates there as people do who think, LibriSpeech's recordings often end within a sentence, "
        "and its readers pause between phrases as well, where turns are cut off, too. What follows from it is in "
        "[turns.md](../applications/turns.md).\n\n"
        f"{table.to_markdown().strip()}\n\n{stamp.summary()}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vad", type=Path, required=True)
    parser.add_argument("--turn", type=Path, required=True)
    parser.add_argument("--bundle", default="demo-asr", help="shipped bundle or folder that writes the texts")
    parser.add_argument("--output", type=Path, default=Path("docs/performance/turns"))
    given = parser.parse_args()
    stamp = Stamp.here("python -m benchmarks.turns --data DIR --vad VAD --turn TURN")
    beside = {VAD: given.vad, TURN: given.turn}
    with serving(Bundle.open(resolve(given.bundle)), "both", ModelOptions(max_streams=8), beside=beside) as server:
        rows = asyncio.run(measure(f"http://{server.http_address}", given.data))
    held = {"stamp": asdict(stamp), "rows": rows}
    given.output.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    given.output.with_suffix(".md").write_text(page(rows, stamp), encoding="utf-8")


if __name__ == "__main__":
    main()
