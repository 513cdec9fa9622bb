"""`tritone enroll`: keep speakers' voices in a store, to be found again by `tritone identify`."""

from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.speaker_options import Store, VoiceModel
from tritone.report.table import visible


@takes_option_classes(leave_out=("threshold",))
def enroll(
    *,
    store: Store,
    name: Annotated[str | None, typer.Argument(help="Name of the speaker.", show_default=False)] = None,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Recordings of only that speaker.", show_default=False)
    ] = None,
    model: VoiceModel,
    anew: Annotated[bool, typer.Option("--anew", help="Replace the recordings of NAME enrolled before.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the enrolled speakers.")] = False,
    remove: Annotated[str | None, typer.Option(metavar="NAME", help="Remove a speaker.")] = None,
) -> None:
    """Enrol a speaker to be found again.

    Another time it adds recordings of the same speaker. The store keeps one embedding for each
    recording and no audio. All must come from one model.
    """
    from tritone.speakers.store import SpeakerStore, check_name

    if sum((list_all, remove is not None, name is not None)) != 1:
        raise typer.BadParameter("give NAME and recordings, or --list, or --remove NAME")
    speakers = SpeakerStore(store)
    if list_all:
        contents = speakers.read()
        for speaker, number in contents.speakers.items():
            typer.echo(f"{visible(speaker)}\t{number}")
        many = "1 speaker" if len(contents.speakers) == 1 else f"{len(contents.speakers)} speakers"
        typer.echo(f"{many}, embedded by {visible(contents.model.get('model', 'an unnamed model'))}", err=True)
        return
    if remove is not None:
        speakers.remove(remove)
        typer.echo(f"{visible(remove)} is forgotten", err=True)
        return
    assert name is not None
    if not files:
        raise typer.BadParameter(f"give recordings of {visible(name)}: tritone enroll NAME a.wav b.wav --store DIR")
    check_name(name)
    voices = model.embed(files)
    total = speakers.enroll(name, voices.vectors, voices.made_by, anew=anew)
    typer.echo(f"{visible(name)} is enrolled with {total} recording{'s' * (total != 1)}", err=True)
