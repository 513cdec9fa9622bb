"""How `tritone evaluate` shows results: tables and aligned texts on stdout, progress and remarks on stderr."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from tritone.evaluate import tables
from tritone.evaluate.compare import Comparison
from tritone.evaluate.result import Evaluation
from tritone.evaluate.run import Status
from tritone.evaluate.score import Op, Pair, UtteranceScore
from tritone.report.table import visible

WIDTH_OF_A_FILE = 160  # columns, where no terminal says how many it has
REPORT_EVERY_S = 30.0  # how often progress is reported where no bar can be drawn
NO_UNIT = "*"  # fills the side that has no word, as sclite does
STYLES: dict[Op, str] = {"hit": "", "substitution": "yellow", "deletion": "red", "insertion": "blue"}


class EvaluationPrinter:
    """Prints evaluations for people."""

    def __init__(self) -> None:
        self._screen = Console(stderr=True)
        terminal = Console()
        # A narrow pipe would break tables apart.
        self._output = terminal if terminal.is_terminal else Console(width=WIDTH_OF_A_FILE)

    def notify(self, sentence: str) -> None:
        """A remark, on stderr."""
        self._screen.print(Text(visible(sentence)), soft_wrap=True)

    @contextmanager
    def progress(self, name: str) -> Iterator[Callable[[Status], None]]:
        """A bar on a terminal, a line now and then elsewhere; gives the function that moves it."""
        if not self._screen.is_terminal:
            yield self._lines(name)
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._screen, transient=True, redirect_stdout=False) as bar:
            task = bar.add_task(visible(name), total=None, figures="")
            yield lambda status: bar.update(
                task, completed=status.done, total=status.total, figures=_figures_so_far(status)
            )

    def show(self, evaluations: Sequence[Evaluation], comparison: Comparison | None, worst: int) -> None:
        """The whole report: the comparison if there is one, then each system."""
        if comparison is not None:
            self._output.print(tables.comparison(comparison).to_rich())
        for evaluation in evaluations:
            self._output.print(tables.figures(evaluation).to_rich())
            if worst:
                self._show_errors(evaluation, worst)
            if evaluation.failures:
                self._output.print(tables.failures(evaluation, max(worst, 1)).to_rich())

    def _show_errors(self, evaluation: Evaluation, n: int) -> None:
        if confusions := tables.confusions(evaluation, n):
            self._output.print(Text("Most frequent", style="bold"))
            self._output.print(Columns([table.to_rich() for table in confusions], padding=(0, 4)))
        scores = evaluation.score.worst(n)
        if scores:
            self._output.print(Text("Most errors", style="bold"))
        for score in scores:
            for line in aligned(score, self._output.width):
                self._output.print(line, soft_wrap=True)
            self._output.print()

    def _lines(self, name: str) -> Callable[[Status], None]:
        shown_at = time.monotonic()

        def report(status: Status) -> None:
            nonlocal shown_at
            now = time.monotonic()
            if status.done == status.total or now - shown_at >= REPORT_EVERY_S:
                shown_at = now
                self.notify(f"{name}: {status.done} of {status.total} {_figures_so_far(status)}")

        return report


def aligned(score: UtteranceScore, width: int) -> Iterator[Text]:
    """Reference above hypothesis, word under word, in lines that fit; what differs is in capitals or starred."""
    yield Text.assemble((visible(score.id), "bold"), f"  {tables.counted(score.words, 'words')}")
    above, below = Text("  ref "), Text("  hyp ")
    for pair in score.pairs:
        reference, hypothesis = _cells(pair)
        room = max(cell_len(reference), cell_len(hypothesis))
        if cell_len(above.plain) + 1 + room > width and len(above) > len("  ref "):
            yield from (above, below)
            above, below = Text("  ref "), Text("  hyp ")
        for line, cell in ((above, reference), (below, hypothesis)):
            line.append(" ")
            line.append(cell + " " * (room - cell_len(cell)), STYLES[pair.op])
    yield from (above, below)


def _cells(pair: Pair) -> tuple[str, str]:
    reference, hypothesis = visible(pair.reference), visible(pair.hypothesis)
    if pair.op == "hit":
        return reference, hypothesis
    # Colours do not reach everybody, nor every file.
    if pair.op == "insertion":
        return NO_UNIT * cell_len(hypothesis), hypothesis.upper()
    if pair.op == "deletion":
        return reference.upper(), NO_UNIT * cell_len(reference)
    return reference.upper(), hypothesis.upper()


def _figures_so_far(status: Status) -> str:
    rate = f"WER {tables.error_rate(status.words)}"
    return f"{rate} {status.failed} failed" if status.failed else rate
