"""What `tritone inspect` found, as tables."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tritone.inspection import Inspection


def print_inspection(found: "Inspection", *, stderr: bool = False) -> None:
    """Print facts, tables and notes."""
    console = Console(soft_wrap=True, highlight=False, stderr=stderr)
    console.print(printable(found.what))
    facts = Table(box=None, show_header=False)
    for name, value in found.facts.items():
        facts.add_row(name, printable(value))
    console.print(facts)
    for listing in found.listings:
        console.print(f"\n{listing.title}")
        table = Table(box=None)
        for column in listing.columns:
            table.add_column(column, overflow="fold")
        for row in listing.rows:
            table.add_row(*map(printable, row))
        console.print(table)
    if found.commands:
        console.print("\n`tritone serve` of it stands for")
        for command in found.commands:
            console.print(printable(f"  {command}"))
    for note in found.notes:
        console.print(printable(f"note: {note}"))


def printable(content: str) -> Text:
    """Text as it is, not as markup; what a terminal would obey is shown as escapes."""
    return Text("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in content))
