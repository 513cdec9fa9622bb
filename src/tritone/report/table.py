"""A table, written once and shown on a terminal, in Markdown, as CSV and in a page.

    columns, rows of plain values  ->  Table  ->  rich table, Markdown, CSV, HTML (through the macro `table`)

Values stay what they are until they are shown, so CSV holds every digit and a page sorts numbers as numbers. Texts
may come from anywhere (ids, transcripts, server messages): no form lets them act as markup or steer a terminal.
"""

import csv
import io
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable

Cell = str | int | float | bool | None
Tone = Literal["good", "warn", "bad"]

NOTHING = "-"
NARROWEST = 10  # characters that a text keeps on a line of a terminal that is too small
SIGNIFICANT = 4  # digits of a float whose column does not say how many
RICH_STYLES: Mapping[Tone, str] = {"good": "green", "warn": "yellow", "bad": "red"}
SPACES = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]")
# Control characters, marks and overrides of direction, halves of surrogate pairs. Joiners stay: scripts need them.
STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
MARKDOWN_ACTIVE = re.compile(r"([\\`*_\[\]|~$])")


@dataclass(frozen=True)
class Column:
    """How one field of the rows is shown.

    `digits`: after the point; by default four significant ones for floats. `scale` multiplies what is shown, not what
    is exported: a rate, 0..1, in a column of unit "%" has scale 100. `align`: by default numbers right, texts left.
    `spare`: a small terminal does without it, the higher the sooner; 0 stays.
    """

    key: str
    title: str
    digits: int | None = None
    unit: str = ""
    align: Literal["left", "right"] | None = None
    scale: float = 1.0
    spare: int = 0

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def text(self, value: Cell) -> str:
        """A value as a reader sees it; "-" where there is none, not a number included."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return NOTHING
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, str):
            return value
        shown = value * self.scale if self.scale != 1.0 else value
        if isinstance(shown, float) and math.isinf(shown):
            return "-∞" if shown < 0 else "∞"
        if self.digits is not None:
            return f"{shown:.{self.digits}f}"
        return _significant(shown) if isinstance(shown, float) else str(shown)


@dataclass(frozen=True)
class Table:
    """Rows under columns. A field that a row lacks is None; one that no column shows is not shown.

    `tones`: rows, by index, that stand out: good, warn or bad. `note`: a sentence below.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    note: str = ""
    tones: Mapping[int, Tone] = field(default_factory=dict)

    def texts(self) -> list[list[str]]:
        """The cells as a reader sees them."""
        return [[column.text(row.get(column.key)) for column in self.columns] for row in self.rows]

    def is_right(self, column: Column) -> bool:
        """Whether a column is set flush right."""
        if column.align is not None:
            return column.align == "right"
        values = [value for row in self.rows if (value := row.get(column.key)) is not None]
        return bool(values) and not any(isinstance(value, (str, bool)) for value in values)

    def without_empty(self) -> "Table":
        """The same table without the columns that have no value in any row."""
        held = [column for column in self.columns if any(row.get(column.key) is not None for row in self.rows)]
        return Table(self.title, held, self.rows, self.note, self.tones)

    def to_rich(self, width: int | None = None) -> "RichTable":
        """For a terminal of so many columns: columns to spare go until the rest fits.

        `console.print(table)` does the same for the console's own width.
        """
        from rich.console import Console

        console = Console(width=10_000)
        shown = list(self.columns)
        drawn = self._drawn(shown)
        while width is not None and console.measure(drawn).maximum > width:
            if not any(column.spare for column in shown):
                return self._drawn(shown, narrowest=NARROWEST // 2)  # texts fold, numbers stay whole
            shown.remove(max(reversed(shown), key=lambda column: column.spare))
            drawn = self._drawn(shown)
        return drawn

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RichTable]":
        yield self.to_rich(options.max_width)

    def _drawn(self, columns: Sequence[Column], narrowest: int = NARROWEST) -> "RichTable":
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(
            title=Text(visible(self.title), style="bold") if self.title else None,
            caption=Text(visible(self.note), style="dim") if self.note else None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        texts = [[visible(column.text(row.get(column.key))) for column in columns] for row in self.rows]
        for place, column in enumerate(columns):
            is_right = self.is_right(column)
            justify: Literal["left", "right"] = "right" if is_right else "left"
            longest = max((len(cells[place]) for cells in texts), default=0)
            words = ["", *visible(column.title).split(), *([column.unit] if column.unit else [])]
            room = max([longest, NARROWEST // 2, *map(len, words)])
            heading = [*textwrap.wrap(visible(column.title), room), *([column.unit] if column.unit else [])]
            drawn.add_column(
                Text("\n".join(heading), justify=justify),
                justify=justify,
                vertical="bottom",
                overflow="ellipsis" if is_right else "fold",
                no_wrap=is_right,  # half a number on the next line would be read as another one
                min_width=longest if is_right else min(max(longest, *map(len, words)), narrowest),
            )
        for index, cells in enumerate(texts):
            tone = self.tones.get(index)
            drawn.add_row(*map(Text, cells), style=RICH_STYLES[tone] if tone else None)
        return drawn

    def to_markdown(self) -> str:
        """As a GitHub table below a heading; ends with a line break."""
        lines = [f"### {escape_markdown(self.title)}", ""] if self.title else []
        lines.append(f"| {' | '.join(escape_markdown(column.heading) for column in self.columns)} |")
        lines.append(f"|{'|'.join(' ---: ' if self.is_right(column) else ' --- ' for column in self.columns)}|")
        lines += [f"| {' | '.join(map(escape_markdown, cells))} |" for cells in self.texts()]
        if self.note:
            lines += ["", escape_markdown(self.note)]
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Keys as the header, then the values unrounded and unscaled; None is empty, True is "true"."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(column.key for column in self.columns)
        for row in self.rows:
            writer.writerow(_exported(row.get(column.key)) for column in self.columns)
        return stream.getvalue()


def visible(text: str) -> str:
    """A text on one line, without what could steer a terminal, reorder its neighbours or not be written as UTF-8."""
    return STEERING.sub("\N{REPLACEMENT CHARACTER}", SPACES.sub(" ", text))


def escape_markdown(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    escaped = MARKDOWN_ACTIVE.sub(r"\\\1", visible(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _exported(value: Cell) -> str | int | float:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else value


def _significant(value: float) -> str:
    """Four significant digits without an exponent, whole numbers without a point: 0.01234, 12.34, 12345, 8."""
    if value.is_integer():
        return f"{value:.0f}"
    digits = SIGNIFICANT - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, min(digits, 9))}f}"
