"""The command of the endurance run."""

import argparse
import gzip
import json
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.endurance import attacks, files, parts, served
from benchmarks.endurance.deployment import BUNDLES
from benchmarks.endurance.page import write_page
from benchmarks.endurance.parts import Part, PartOptions, say
from benchmarks.measure import ROOT, Setup, save

OUTPUT = ROOT / "docs" / "performance" / "endurance"


@dataclass(frozen=True)
class Command:
    """A part, how much of it the issue of endurance asks for, and for how many minutes it may last."""

    run: Callable[[PartOptions], Part]
    count: int
    unit: str
    minutes: float


COMMANDS: Mapping[str, Command] = {
    "attacks": Command(attacks.attacks, len(attacks.ATTACKS), "kinds of strangers, one after the other", 6),
    "requests": Command(served.requests, 100_000, "requests, a tenth of them hostile", 60),
    "streams": Command(served.streams, 10_000, "streams, 30 % of whose clients die", 30),
    "pauses": Command(parts.pauses, 200, "pauses of 0.5 to 5 s", 60),
    "kills": Command(parts.kills, 20, "kills of models", 15),
    "drains": Command(served.drains, 20, "drains under load", 15),
    "files": Command(files.files, 1000, "hostile files at most", 20),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__)
    commands = parser.add_subparsers(dest="part", required=True)
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=str(command.run.__doc__).splitlines()[0])
        each.add_argument("--count", type=int, default=command.count, help=f"{command.unit} (%(default)s)")
        each.add_argument("--minutes", type=float, default=command.minutes, help="most time (%(default)s)")
        _add_common(each)
        if name == "pauses":
            each.add_argument("--victims", default="model,model,tritonserver,all", help="kinds to choose from")
    every = commands.add_parser("all", help="Every part.")
    every.add_argument("--scale", type=float, default=1.0, help="share of every count and of the time (%(default)s)")
    _add_common(every)
    arguments = parser.parse_args()

    options = PartOptions(
        count=0,
        minutes=0,
        seed=arguments.seed,
        start=getattr(arguments, "start", 0),
        senders=arguments.senders,
        serve_args=arguments.serve_args,
        setup=Setup.here(" ".join(BUNDLES), "benchmarks.endurance"),
        through_proxy=arguments.through_proxy,
    )
    if arguments.part != "all":
        victims = tuple(getattr(arguments, "victims", "model").split(","))
        options = replace(options, count=arguments.count, minutes=arguments.minutes, victims=victims)
        return _run({arguments.part: options}, arguments.output)
    return _run(
        {
            name: replace(
                options, count=max(1, round(each.count * arguments.scale)), minutes=each.minutes * arguments.scale + 2
            )
            for name, each in COMMANDS.items()
        },
        arguments.output,
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first fault, to go on with a run")
    parser.add_argument("--senders", type=int, default=12, help="threads that send requests (%(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of results and page (%(default)s)")
    parser.add_argument(
        "--serve-args", type=str.split, default=(), metavar="'ARG ...'", help="more options of `tritone serve`"
    )
    parser.add_argument("--through-proxy", action="store_true", help="the server is behind our proxy: send it all")


def _run(planned: Mapping[str, PartOptions], output: Path) -> int:
    # A time limit's SIGTERM would leave the server behind; as an exception it ends every `with` block.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    is_met = True
    output.mkdir(parents=True, exist_ok=True)
    for name, options in planned.items():
        part = COMMANDS[name].run(options)
        save(part.findings, output / "results.json")
        # Thousands of samples of memory: a tenth of the size, and always the same bytes.
        (output / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(part.to_dict()).encode(), mtime=0))
        for finding in part.findings:
            say(str(finding))
        is_met &= part.is_met
        say(f"written: {write_page(output)}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
