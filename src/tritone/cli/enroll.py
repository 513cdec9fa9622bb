"""`tritone enroll`: keep speakers' voices in a store, to be found again by `tritone identify`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.speaker_options import Store, VoiceModel
from tritone.report.table import visible

if TYPE_CHECKING:
    from tritone.speakers.store import Contents


@takes_option_classes(leave_out=("threshold",))
def enroll(
    *,
    store: Store,
    name: Annotated[str | None, typer.Argument(help="Name of the speaker.", show_default=False)] = None,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Recordings of only that speaker.", show_default=False)
    ] = None,
    model: VoiceModel,
    anew: Annotated[
        bool,
        typer.Option("--anew", help="Replace the recordings of NAME enrolled before; with --restore, all speakers."),
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the enrolled speakers.")] = False,
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Remove a speaker.")] = None,
    backup: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Copy the store to a new folder, checked; it is a store too.")
    ] = None,
    restore: Annotated[Path | None, typer.Option(metavar="DIR", help="Make the store what this backup holds.")] = None,
) -> None:
    """Enrol a speaker to be found again.

    Another time it adds recordings of the same speaker. The store keeps one embedding for each
    recording and no audio. All must come from one model, on a running server (--url) or in this process (--model;
    demo-speaker if not given).
    """
    from tritone.speakers.store import SpeakerStore, check_name

    if sum((list_all, *(each is not None for each in (remove, name, backup, restore)))) != 1:
        raise typer.BadParameter("give NAME and recordings, or one of --list, --remove NAME, --backup, --restore")
    speakers = SpeakerStore(store)
    if list_all:
        contents = speakers.read()
        for speaker, number in contents.speakers.items():
            typer.echo(f"{visible(speaker)}\t{number}")
        typer.echo(
            f"{_many(contents)}, embedded by {visible(contents.model.get('model', 'an unnamed model'))}", err=True
        )
        return
    if remove is not None:
        speakers.remove(remove)
        typer.echo(f"{visible(remove)} is forgotten", err=True)
        return
    if backup is not None:
        SpeakerStore(backup).copy_from(speakers)
        typer.echo(f"{_many(SpeakerStore(backup).read())} copied to {visible(str(backup))}", err=True)
        return
    if restore is not None:
        before = speakers.copy_from(SpeakerStore(restore), anew=anew)
        typer.echo(f"{_many(speakers.read())} restored, {len(before.speakers)} were there before", err=True)
        return
    assert name is not None
    if not files:
        raise typer.BadParameter(f"give recordings of {visible(name)}: tritone enroll NAME a.wav b.wav --store DIR")
    check_name(name)
    voices = model.embed(files)
    total = speakers.enroll(name, voices.vectors, voices.made_by, anew=anew)
    typer.echo(f"{visible(name)} is enrolled with {total} recording{'s' * (total != 1)}", err=True)


def _many(contents: "Contents") -> str:
    return "1 speaker" if len(contents.speakers) == 1 else f"{len(contents.speakers)} speakers"
