"""The documents as their readers see them, and a reader who copies what they say into a terminal.

blocks("python")        ->  (document, text) of each fenced block in that language
command_lines(document) ->  its lines of shell, whole: those that a quote or a backslash continues are joined
Reader(folder)          ->  runs such lines in a folder, one after the other, with servers beside them
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import dropwhile, groupby, takewhile
from pathlib import Path

from typer.testing import CliRunner

from serving import kill_tree
from tritone.cli.main import app
from tritone.server import free_ports

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "examples", "deploy", "src/tritone", "benchmarks", "training")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for each in FOLDERS for path in (ROOT / each).rglob("*.md"))])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash", "console")
NEEDS = re.compile(r"# needs: (.*)")
OPERATORS = set("|&;<>()")
ASSIGNED = re.compile(r"\w+=")
IMAGE = re.compile(r"tritone/(client|export)(:\S+)?")  # those whose arguments are commands of Tritone
# What installs, which tests/test_installing.py and tests/e2e/test_each_python.py are about.
INSTALLS = re.compile(r"(make|pip|\.) ")
TRITONE = [sys.executable, "-c", "from tritone.cli.main import app; app(prog_name='tritone')"]
# The ports that pages speak of, and the options by which a server gets others.
PORTS = {8000: "--http-port", 8001: "--grpc-port", 8002: "--metrics-port", 9000: "--gateway-port", 50051: ""}
START_S = 120


def blocks(language: str) -> list[tuple[str, str]]:
    """The fenced blocks of that language, each with the name of its document."""
    found = []
    for document in DOCUMENTS:
        for name, text in BLOCK.findall(document.read_text(encoding="utf-8")):
            if name == language:
                found.append((document.relative_to(ROOT).as_posix(), text))
    return found


def command_lines(document: Path) -> list[str]:
    """Its lines of shell in their order; of sessions with a prompt those behind it."""
    found: list[str] = []
    for language, text in BLOCK.findall(document.read_text(encoding="utf-8")):
        if language == "console":
            text = "".join(line.removeprefix("$ ") for line in text.splitlines(True) if line.startswith("$ "))
        if language in SHELL:
            found += _whole(text.replace("\\\n", " "), document)
    return found


def _whole(text: str, document: Path) -> Iterator[str]:
    begun = ""
    for line in text.splitlines():
        begun = f"{begun}\n{line}" if begun else line
        try:
            words(begun)
        except ValueError:  # a text in quotes that goes on in the next line
            continue
        if begun.strip() and not begun.lstrip().startswith("#"):
            yield begun
        begun = ""
    if begun:
        raise ValueError(f"{document}: a quote has no end: {begun}")


def words(line: str) -> list[str]:
    """Words and operators of a line of shell, without its comment; ValueError if a quote goes on in the next line."""
    read = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    read.whitespace_split = True
    return list(read)


def tritone_commands(line: str) -> list[list[str]]:
    """The calls of `tritone` in a line: alone, in pipes, after other commands, and in containers."""
    found = []
    for separator, simple in groupby(words(line), lambda word: not set(word) - set("|&;()")):
        called = list(dropwhile(ASSIGNED.match, simple))
        if called[:2] == ["docker", "run"]:
            called = ["tritone", *list(dropwhile(lambda word: not IMAGE.fullmatch(word), called))[1:]]
        if not separator and called[:1] == ["tritone"] and len(called) > 1:
            found.append(list(takewhile(lambda word: set(word) - set("<>"), called)))
    return found


class Reader(AbstractContextManager["Reader"]):
    """Somebody who copies lines into a terminal in `folder`, where the files lie that a page speaks of.

    Commands of Tritone run in this process, others in bash. A server stays until another one takes its ports, or the
    end. Pages name the ports that servers have by themselves; here each is one that is free.

    Args:
        folder: the current folder of all lines.
        instead: options, with their values, for lines of Tritone that begin with these words, in place of those or
            beside them: lengths of measurements, say. Of several beginnings the longest one counts.
    """

    def __init__(self, folder: Path, instead: Mapping[str, Mapping[str, str]]) -> None:
        self.folder = folder
        self.instead = instead
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.skipped: list[str] = []
        self.servers: dict[str, subprocess.Popen[str]] = {}

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            kill_tree(server)

    def copies(self, line: str) -> str:
        """Run a line; returns what it printed, and fails if it did. What is not to be run here is kept in `skipped`."""
        if NEEDS.search(line) or INSTALLS.match(line):
            self.skipped.append(line)
            return ""
        begun = [begin for begin in self.instead if line.startswith(f"tritone {begin}")]
        instead = self.instead[max(begun, key=len)] if begun else {}
        for written, port in self.ports.items():
            line = re.sub(rf"(?<=[: ]){written}\b", str(port), line)
        called = words(line)
        if called[:2] in (["tritone", "serve"], ["tritone", "gateway"]):
            self._serve(called[1:])
            return ""
        if called[0] == "tritone" and not any(set(word) <= OPERATORS for word in called):
            for option, value in instead.items():
                place = called.index(option) if option in called else len(called)
                called[place : place + 2] = [option, value]
            return self._run(line, called[1:])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, line: str, called: list[str]) -> str:
        result = CliRunner().invoke(app, called, prog_name="tritone")
        assert result.exit_code == 0, f"{line}\n{result.output}{result.stderr}\n{result.exception!r}"
        return result.stdout

    def _serve(self, called: list[str]) -> None:
        kind, waited = called[0], [8000]
        if kind == "serve":
            for begun in list(self.servers):
                kill_tree(self.servers.pop(begun))
            for written, option in PORTS.items():
                if option and (written != 9000 or "--gateway" in called):
                    called = [*called, option, str(self.ports[written])]
            waited += [9000] if "--gateway" in called else []
        else:
            called, waited = [*called, "--port", str(self.ports[9000])], [9000]
        said = self.folder / f"{kind}.said"
        with said.open("w", encoding="utf-8") as file:
            server = subprocess.Popen([*TRITONE, *called], cwd=self.folder, stdout=file, stderr=file, text=True)
        self.servers[kind] = server
        end = time.monotonic() + START_S
        while not all(_answers(port, self.ports[port]) for port in waited):
            if server.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{called}: it does not answer, and said {said.read_text(encoding='utf-8')}")
            time.sleep(0.1)


def _answers(written: int, port: int) -> bool:
    try:
        if written == 8000:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
        else:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
