"""Trial lists: which pairs of recordings to compare, and whether one person speaks in both.

    enrol test target|nontarget     Kaldi, WeSpeaker
    1|0 enrol test                  VoxCeleb
    enrol test                      without labels

    list  ->  Trials (distinct names, and for each trial two indices and a label)

Read in blocks into arrays: a trial takes nine bytes, whatever its names are.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt

from tritone.errors import InputError
from tritone.report.table import visible
from tritone.speakers.archive import read_text

Form = Literal["kaldi", "voxceleb", "unlabelled"]

BLOCK_BYTES = 1 << 22
MAX_LINE = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NEWLINE = ord("\n")
BLANK = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\v\f", dtype=np.uint8))  # where bytes.split cuts
TARGET, NONTARGET = b"target", b"nontarget"
FORMS = "'enrol test target' or '... nontarget' (Kaldi), '1 enrol test' or '0 enrol test' (VoxCeleb), or 'enrol test'"

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Trials:
    """Pairs to compare.

    `enrol[i]` and `test[i]` are places in `enrol_names` and `test_names`, which are distinct names in the order of
    their first appearance; `targets[i]`: the same speaker, None of a list without labels.
    """

    enrol_names: tuple[str, ...]
    test_names: tuple[str, ...]
    enrol: Ints
    test: Ints
    targets: Bools | None = None
    form: Form = "kaldi"

    def __len__(self) -> int:
        return len(self.enrol)

    @cached_property
    def num_targets(self) -> int:
        """Trials of one speaker; 0 of a list without labels."""
        return 0 if self.targets is None else int(np.count_nonzero(self.targets))

    @property
    def num_nontargets(self) -> int:
        """Trials of two speakers; 0 of a list without labels."""
        return 0 if self.targets is None else len(self) - self.num_targets


class Names:
    """Gives each distinct name a number."""

    def __init__(self) -> None:
        self._numbers: defaultdict[bytes, int] = defaultdict()
        self._numbers.default_factory = self._numbers.__len__

    def numbers(self, names: Sequence[bytes]) -> Ints:
        """The numbers of these names, new ones for those not seen before."""
        return np.fromiter(map(self._numbers.__getitem__, names), dtype=np.int32, count=len(names))

    def texts(self, path: Path) -> tuple[str, ...]:
        """All names, by number."""
        try:
            return tuple(name.decode("utf-8") for name in self._numbers)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: the name {error.object[:80]!r} is not UTF-8; convert the file") from error


def read_trials(path: str | Path) -> Trials:
    """Read a list of trials; the first line tells its form, and all others must have the same.

    Raises:
        InputError: it cannot be read, has no trials, or a line has another form; the message names file and line.
    """
    path = Path(path)
    form: Form | None = None
    enrol, test = Names(), Names()
    pairs: list[tuple[Ints, Ints]] = []
    targets: list[Bools] = []
    for block in blocks_of(path):
        form = form or _form_of(block)
        columns = block.columns(2 if form == "unlabelled" else 3)
        labels: Sequence[bytes] = ()
        truth, lie = (b"1", b"0") if form == "voxceleb" else (TARGET, NONTARGET)
        if columns is not None and form == "unlabelled":
            left, right = columns
        elif columns is not None:
            left, right, labels = (columns[1], columns[2], columns[0]) if form == "voxceleb" else columns
        if columns is None or not set(labels) <= {truth, lie}:
            _complain(block, form)
        pairs.append((enrol.numbers(left), test.numbers(right)))
        if form != "unlabelled":
            targets.append(np.fromiter((label == truth for label in labels), dtype=np.bool_, count=len(labels)))
    if form is None:
        raise InputError(f"{path} has no trials; it needs lines like {FORMS}")
    return Trials(
        enrol_names=enrol.texts(path),
        test_names=test.texts(path),
        enrol=np.concatenate([left for left, _ in pairs]),
        test=np.concatenate([right for _, right in pairs]),
        targets=np.concatenate(targets) if targets else None,
        form=form,
    )


def read_groups(path: str | Path) -> Mapping[str, tuple[str, ...]]:
    """Read a spk2utt: `speaker utterance utterance ...` a line, in the order of the file.

    Raises:
        InputError: it cannot be read, is empty, a speaker has no utterance or is there twice.
    """
    path = Path(path)
    groups: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not (fields := line.split()):
            continue
        if len(fields) < 2:
            raise InputError(
                f"{path}:{number}: {visible(fields[0])} has no utterances; a line is 'speaker utterance ...'"
            )
        if fields[0] in groups:
            raise InputError(f"{path}:{number}: {visible(fields[0])} has a line already; put all utterances on one")
        groups[fields[0]] = tuple(fields[1:])
    if not groups:
        raise InputError(f"{path} is empty; a line is 'speaker utterance utterance ...'")
    return groups


class Block:
    """Some lines of a file, and the fields in them."""

    def __init__(self, path: Path, line: int, data: bytes) -> None:
        """`line` is the number of the first of the lines, `data` all of them with their ends."""
        self._path = path
        self._line = line
        self._data = data
        self.fields = data.split()

    def columns(self, number: int) -> list[list[bytes]] | None:
        """The columns of a block whose lines have so many fields each, or none; None if one has not."""
        characters = np.frombuffer(self._data, dtype=np.uint8)
        is_blank = BLANK[characters]
        begins = np.flatnonzero(~is_blank[1:] & is_blank[:-1]) + 1
        if not is_blank[0]:
            begins = np.append(0, begins)
        line_ends = np.append(np.flatnonzero(characters == NEWLINE), len(characters))
        counts = np.diff(np.searchsorted(begins, line_ends), prepend=0)
        if not ((counts == number) | (counts == 0)).all():
            return None
        return [self.fields[column::number] for column in range(number)]

    def first_wrong(self, is_right: Callable[[list[bytes]], bool]) -> tuple[str, str]:
        """`file:line` and the text of the first line that is neither blank nor right, for a message."""
        rows = ((self._line + index, line.split()) for index, line in enumerate(self._data.split(b"\n")))
        number, row = next((number, row) for number, row in rows if row and not is_right(row))
        text = visible(b" ".join(row)[:1000].decode("utf-8", "replace"))
        return f"{self._path}:{number}", repr(text if len(text) <= 120 else text[:119] + "…")

    @property
    def first_row(self) -> list[bytes]:
        """The fields of the first line that is not blank."""
        return next(row for line in self._data.split(b"\n") if (row := line.split()))


def blocks_of(path: Path) -> Iterator[Block]:
    """The lines of a text file in blocks, but for blocks of blank lines alone.

    Raises:
        InputError: the file cannot be read, or is not made of lines.
    """
    if not path.is_file():
        raise InputError(f"{path} is {'not a file' if path.exists() else 'not there'}; name a text file")
    line = 1
    try:
        with path.open("rb") as file:
            while data := file.read(BLOCK_BYTES):
                if not data.endswith(b"\n"):
                    data += file.readline(MAX_LINE)
                if not data.endswith(b"\n") and file.peek(1):
                    number = line + data.count(b"\n")
                    raise InputError(f"{path}:{number}: a line of more than {MAX_LINE:,} bytes; is it a text file?")
                block = Block(path, line, data.removeprefix(BYTE_ORDER_MARK) if line == 1 else data)
                if block.fields:
                    yield block
                line += data.count(b"\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def _form_of(block: Block) -> Form:
    row = block.first_row
    if len(row) == 2:
        return "unlabelled"
    if len(row) == 3 and row[2] in (TARGET, NONTARGET):
        return "kaldi"
    if len(row) == 3 and row[0] in (b"0", b"1"):
        return "voxceleb"
    where, text = block.first_wrong(lambda _: False)
    advice = ". It looks like a file of scores: give it as --scores" if len(row) > 2 and _is_number(row[2]) else ""
    raise InputError(f"{where}: {text} is not a trial. Write {FORMS}{advice}")


def _complain(block: Block, form: Form) -> NoReturn:
    wanted = {
        "kaldi": "'enrol test target' or 'enrol test nontarget'",
        "voxceleb": "'1 enrol test' or '0 enrol test'",
        "unlabelled": "'enrol test' without a label",
    }[form]

    def is_right(row: list[bytes]) -> bool:
        if form == "unlabelled":
            return len(row) == 2
        return len(row) == 3 and (row[2] in (TARGET, NONTARGET) if form == "kaldi" else row[0] in (b"0", b"1"))

    where, text = block.first_wrong(is_right)
    raise InputError(f"{where}: {text} is not {wanted}, as the first line of this file is")


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
