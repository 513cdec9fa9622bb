"""Phonemes of texts by espeak-ng, which runs in processes of its own.

    espeak = Espeak("en-us")
    espeak.phonemes("Well, did he?")   ->  "wˈɛl, dˈɪd hiː?"

espeak-ng is under GPL 3 and no part of this project: its program is run as any other, if a machine has it, and reads
text from a pipe. A process reads one sentence and ends, so that no text, however odd, has an effect on those after it;
it takes about 10 ms, and one that takes too long is killed.
"""

import re
import shutil
import subprocess
import threading
import unicodedata
from collections.abc import Sequence

from tritone.errors import InputError, MissingDependencyError, OperatorError
from tritone.texts.sentences import clauses

PROGRAM = "espeak-ng"
INSTALL = "apt-get install espeak-ng (GPL 3; docs/models/export-piper.md)"
TIMEOUT_S = 5.0  # of one sentence
AT_ONCE = 4  # processes
SEPARATOR = "\n\n\n"  # empty lines between clauses, which come out as empty lines
LANGUAGE_MARKS = re.compile(r"\([a-z]{2,3}(-[a-z0-9]+)*\)")  # where espeak-ng changes to another language
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}


class Espeak:
    """espeak-ng with one of its voices. May be used from several threads."""

    def __init__(self, voice: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Look for the program, and speak a word.

        Args:
            voice: of espeak-ng, such as "en-us".
            timeout_s: how long a sentence may take, in seconds.

        Raises:
            MissingDependencyError: this machine has no espeak-ng.
            OperatorError: it does not run, or has no such voice.
        """
        program = shutil.which(PROGRAM)
        if program is None:
            raise MissingDependencyError(
                f"voices that speak by phonemes need the program {PROGRAM}, which is not on the path of this machine. "
                f"Install it: {INSTALL}"
            )
        self.voice = voice
        self._program = program
        self._timeout_s = timeout_s
        self._places = threading.BoundedSemaphore(AT_ONCE)
        try:
            found = self._run("a")
        except InputError as error:
            raise OperatorError(
                f"{program} with the voice {voice!r} does not work: {error}. Install it: {INSTALL}"
            ) from error
        if not found.strip():
            raise OperatorError(f"{program} writes nothing for the voice {voice!r}; `{PROGRAM} --voices` lists them")

    def phonemes(self, sentence: str) -> str:
        """The phonemes of a sentence, in IPA with stress, and with the marks at which speech pauses.

        Characters that belong together are apart (Unicode's form NFD), as voices were trained.

        Raises:
            InputError: espeak-ng failed at this text, twice.
        """
        parts = list(clauses(sentence))
        # Double brackets would make phonemes of what is between them, which is nobody's text.
        lines = [text.replace("[[", "[ [") + mark for text, mark in parts]
        found = self._read(lines)
        pronounced = [(_plain(spoken), mark) for spoken, (_, mark) in zip(found, parts, strict=True)]
        pronounced = [(spoken, mark) for spoken, mark in pronounced if spoken]
        text = " ".join(f"{spoken}{mark}" for spoken, mark in pronounced)
        return unicodedata.normalize("NFD", text)

    def _read(self, lines: Sequence[str]) -> list[str]:
        found = re.split(r"\n{3,}", self._twice(SEPARATOR.join(lines)).strip("\n")) if lines else []
        if len(found) == len(lines):
            return found
        # A clause in which nothing is spoken leaves no line, so none can be told from the others.
        return [self._twice(line) for line in lines]

    def _twice(self, text: str) -> str:
        """Phonemes of lines; a process that is killed may have been so by a machine that stood still."""
        try:
            return self._run(text)
        except InputError:
            return self._run(text)

    def _run(self, text: str) -> str:
        command = [self._program, "-q", "--ipa", "-b", "1", "-v", self.voice]
        try:
            with self._places:
                done = subprocess.run(
                    command,
                    input=text.encode() + b"\n",
                    capture_output=True,
                    timeout=self._timeout_s,
                    cwd="/",
                    env=ENVIRONMENT,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise InputError(
                f"{PROGRAM} took more than {self._timeout_s:g} s for {text[:60]!r} and was killed; leave out what is "
                "no text"
            ) from error
        except OSError as error:
            raise OperatorError(f"{self._program} cannot be run: {error.strerror}. Install it: {INSTALL}") from error
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()[:200] or f"exit status {done.returncode}"
            raise InputError(f"{PROGRAM} failed at {text[:60]!r}: {reason}")
        return done.stdout.decode(errors="replace")


def _plain(spoken: str) -> str:
    """Phonemes of a clause in one line, without marks of languages."""
    return " ".join(LANGUAGE_MARKS.sub("", spoken).split())
