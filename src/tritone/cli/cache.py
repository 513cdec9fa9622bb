"""`tritone cache`: the exports and copies that are kept on this machine."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.shared.help import App
from tritone.cli.shared.what import CacheFolder, use_cache
from tritone.paths import cache_folder

WIDE = 250  # columns, where no terminal says how many it has

app = App(no_args_is_help=True)


@app.callback()
def commands() -> None:
    """List and clear exports and copies of models."""


@app.command("list")
def show(
    cache: CacheFolder = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """List exports and copies with their sizes, the last used first, and where they are."""
    from tritone.prepare import cached
    from tritone.storage.cache import copies

    use_cache(cache)
    exports = [
        {
            "name": each.path.name,
            "what": each.about.get("what", ""),
            "precision": each.about.get("precision", ""),
            "bytes": each.bytes,
            "path": str(each.bundle),
        }
        for each in cached()
    ]
    stored = [{"name": "", "what": each.address, "bytes": each.bytes, "path": str(path)} for path, each in copies()]
    if as_json:
        typer.echo(json.dumps({"folder": str(cache_folder()), "exports": exports, "copies": stored}, indent=2))
        return
    table = Table(box=None)
    for column in ("name", "made of", "runs in", "MB"):
        table.add_column(column, overflow="fold")
    for row in (*exports, *stored):
        cells = (row["name"] or "a copy", row["what"], row.get("precision", ""), f"{int(str(row['bytes'])) / 1e6:.0f}")
        table.add_row(*map(str, cells))
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(width=WIDE, highlight=False, markup=False, soft_wrap=True)  # names in one piece
    console.print(table)
    console.print(f"{sum(int(str(row['bytes'])) for row in (*exports, *stored)) / 1e6:.0f} MB in {cache_folder()}")


@app.command()
def clear(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Of exports; all, and all copies.")] = None,
    cache: CacheFolder = None,
) -> None:
    """Remove exports, and copies of storage; what a process uses stays. Exit code 1 if one of the names stays."""
    from tritone.prepare import clear as clear_exports
    from tritone.storage.cache import clear_copies

    use_cache(cache)
    gone, used = clear_exports(lambda entry: not names or entry.path.name in names)
    for entry in gone:
        typer.echo(f"{entry.path.name}\tremoved")
    for entry in used:
        typer.echo(f"{entry.path.name}\tin use")
    missing = sorted({*(names or ())} - {entry.path.name for entry in (*gone, *used)})
    for name in missing:
        typer.echo(f"error: there is no export {name}; `tritone cache list` has their names", err=True)
    if not names:
        removed, kept = clear_copies()
        typer.echo(f"{removed} copies removed, {kept} in use")
    if missing or (names and used):
        raise typer.Exit(1)
