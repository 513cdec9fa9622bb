"""`tritone repo`: repositories and bundles in storage."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tritone.cli.shared.help import App
from tritone.errors import InputError
from tritone.paths import local
from tritone.repository.garbage import GRACE_H, KEEP
from tritone.storage import open_store, parse
from tritone.storage.address import scheme_of
from tritone.storage.known import ours

if TYPE_CHECKING:
    from tritone.repository.compiled import Moved
    from tritone.storage import Store

WIDE = 250  # columns
SIGNS = {"left": "<", "right": ">", "both": "!"}

READ = "".join(f" {each.name}:// is read only." for each in ours().values() if each.read_only)
WRITTEN = [each for each in ours().values() if not each.read_only]
STORES = ", ".join([*(each.written for each in WRITTEN[:1]), *(f"{each.name}://..." for each in WRITTEN[1:])])

app = App(no_args_is_help=True, help=f"Push repositories and bundles to storage, and pull them.{READ}")

Stored = Annotated[str, typer.Argument(metavar="STORAGE", help=f"{STORES}, or a folder on a disk.")]
Compiled = Annotated[
    str | None,
    typer.Option(help="Also what is compiled of its programs for this device of machines as this one: cuda or cpu."),
]
Models = Annotated[list[str] | None, typer.Option("--model", help="This model alone, once for each; all if not given.")]


@app.callback()
def commands() -> None:
    """Push repositories and bundles to storage, and pull them."""


@app.command()
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A repository of `tritone build`, or a bundle.")],
    storage: Stored,
    models: Models = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another bundle; versions never are.")] = False,
    compiled: Compiled = None,
) -> None:
    """Push what changed: each changed model becomes a new version, which is served when it is complete.

    Servers that watch the repository load it then; `tritone repo rollback` goes back. Push again after a failure: what
    was sent is not sent again.
    """
    from tritone.bundle.bundle import MANIFEST
    from tritone.repository.push import push as push_repository
    from tritone.repository.push import push_bundle

    if not local(folder).is_dir():
        raise InputError(f"there is no folder {folder}")
    store = _store(storage)
    if (folder / MANIFEST).is_file():
        if models:
            raise typer.BadParameter("--model is for repositories, and this is a bundle")
        sent = push_bundle(folder, store, force=force)
        typer.echo(f"{store.title}\t{'pushed' if sent else 'unchanged'}")
    else:
        for done in push_repository(folder, store, only=models or ()):
            typer.echo(f"{done.model}\t{done.version}\t{done.outcome}")
    if compiled is not None:
        from tritone.repository.compiled import push_compiled, store_beside

        _print_moved(push_compiled(folder, store_beside(storage), compiled), "pushed")


@app.command()
def pull(
    storage: Stored,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; of a bundle a new folder.")],
    models: Models = None,
    all_versions: Annotated[bool, typer.Option("--all-versions", help="Also versions that are not served.")] = False,
    compiled: Compiled = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="With --compiled: take its code, which runs with your rights.")
    ] = False,
) -> None:
    """Pull the models of a repository, or a bundle; what is there already stays."""
    from tritone.repository.compiled import pull_compiled, require_trust, store_beside
    from tritone.repository.pull import is_bundle, pull_bundle
    from tritone.repository.pull import pull as pull_repository

    local(folder)
    store = open_store(storage)
    if compiled is not None:
        require_trust(store, trust)
    elif trust:
        raise typer.BadParameter("--trust is for --compiled")
    if is_bundle(store):
        if models or all_versions:
            raise typer.BadParameter("--model and --all-versions are for repositories, and this is a bundle")
        pull_bundle(storage, folder)
        typer.echo(folder)
    else:
        for done in pull_repository(store, folder, only=models or (), every_version=all_versions):
            typer.echo(f"{done.model}\t{','.join(map(str, done.versions))}\t{done.outcome}")
    if compiled is not None:
        _print_moved(pull_compiled(store_beside(storage), compiled, trust=trust), "pulled")


@app.command("ls")
def list_models(storage: Stored) -> None:
    """List the models of a repository with their versions, or the files of a bundle."""
    from tritone.repository.stored import read_models

    store = open_store(storage)
    table = Table("model", "version", "state", "files", "MB", "pushed", box=None)
    entries = store.entries()
    if not entries:
        raise InputError(f"{store.title}: there is nothing")
    if any(entry.name == "manifest.json" for entry in entries) or not any("/" in entry.name for entry in entries):
        table = Table("file", "MB", "modified", box=None)
        for entry in entries:
            table.add_row(
                entry.name, f"{entry.size / 1e6:.2f}", f"{entry.modified:%Y-%m-%d %H:%M}" if entry.modified else ""
            )
    else:
        for model in read_models(store).values():
            if not model.versions:
                table.add_row(model.name, "", "no versions", "", "", "")
            for number, version in model.versions.items():
                state = ("served" if number in model.served else "") if version.is_complete else "not complete"
                pushed = version.index.pushed_at.replace("T", " ")[:16] if version.index is not None else ""
                row = (model.name, str(number), state, str(len(version.files)), f"{version.size / 1e6:.2f}", pushed)
                table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)  # a log or a file: keep rows in one piece


@app.command()
def diff(
    left: Annotated[str, typer.Argument(metavar="STORAGE", help="A repository or a bundle: a folder, or s3://...")],
    right: Annotated[str, typer.Argument(metavar="STORAGE", help="The same of another place.")],
) -> None:
    """List the files in which what two repositories serve differs, or two bundles; exit code 1 if any does.

    < is on the left alone, > on the right alone, ! differs. Numbers and policies of versions do not count.
    """
    from tritone.repository.compare import compare

    found = compare(open_store(left), open_store(right))
    for each in found:
        typer.echo(f"{SIGNS[each.side]} {each.name}")
    count = Counter(each.side for each in found)
    if found:
        summary = (
            f"{count['both']} files differ, {count['left']} on the left alone, {count['right']} on the right alone"
        )
        typer.echo(summary, err=True)
        raise typer.Exit(1)


@app.command()
def gc(
    storage: Stored,
    models: Models = None,
    keep: Annotated[int, typer.Option(min=0, help="Complete versions to keep beside those that are served.")] = KEEP,
    grace_h: Annotated[
        float, typer.Option(min=0, help="Hours after its last file in which a push may still go on.")
    ] = GRACE_H,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
) -> None:
    """Remove versions that are not served and older than those to keep, and pushes that broke long ago."""
    from tritone.repository.garbage import collect

    found = collect(_store(storage), keep=keep, grace_h=grace_h, dry_run=dry_run, only=models or ())
    for each in found:
        typer.echo(f"{each.model}\t{each.version}\t{each.size / 1e6:.2f} MB\t{each.reason}")
    typer.echo(f"{'would remove' if dry_run else 'removed'} {len(found)} versions", err=True)


@app.command()
def rollback(
    storage: Stored,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    to_version: Annotated[
        int | None, typer.Option(min=1, help="The version; by default the one before that is served.")
    ] = None,
) -> None:
    """Serve an earlier version of a model again, with the configuration that it had."""
    from tritone.repository.push import rollback as go_back

    typer.echo(f"{model}\t{go_back(_store(storage), model, to=to_version)}\tserved")


def _print_moved(moved: "Moved", what: str) -> None:
    kind = moved.stamp.get("gpu") or moved.stamp.get("cpu", "")
    typer.echo(f"compiled for torch {moved.stamp['torch']}, {kind}: {moved.sent} of {moved.files} files {what}")


def _store(storage: str) -> "Store":
    address = parse(storage)
    if address is not None and (why := scheme_of(address).read_only):
        raise InputError(f"{storage}: {why.format(place=address.place)}")
    return open_store(storage)
