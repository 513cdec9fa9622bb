"""`tritone identify`: who of the enrolled speakers speaks in a recording?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.speaker_options import Store, VoiceModel
from tritone.report.table import Column, Table, visible


@takes_option_classes()
def identify(
    *,
    files: Annotated[list[Path], typer.Argument(help="Recordings of one person each.", show_default=False)],
    store: Store,
    top: Annotated[int, typer.Option(min=1, help="Number of speakers to print.")] = 5,
    model: VoiceModel,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each recording.")] = False,
) -> None:
    """Find a voice among the enrolled speakers.

    Prints the most similar speakers, best first. A speaker's voice is the mean of the recordings enrolled.
    Below the threshold it may be somebody else. The model (--url, or --model; demo-speaker if not given) must be that
    of the voices enrolled.
    """
    from rich.console import Console

    from tritone.speakers.store import SpeakerStore

    speakers = SpeakerStore(store)
    speakers.read()  # what is wrong with it is reported before a model is loaded
    voices = model.embed(files)
    limit = voices.limit
    found = [speakers.identify(vector, voices.made_by, top=top) for vector in voices.vectors]
    for path, candidates in zip(files, found, strict=True):
        rows = [
            {
                "speaker": candidate.name,
                "similarity": round(candidate.similarity, 6),
                "same": None if limit is None else candidate.similarity > limit.cosine,
            }
            for candidate in candidates
        ]
        if as_json:
            fields = {"file": str(path), "candidates": rows, "threshold": None if limit is None else limit.cosine}
            typer.echo(json.dumps(fields, ensure_ascii=False))
            continue
        columns = [Column("speaker", "speaker"), Column("similarity", "similarity", digits=4)]
        columns += [Column("same", "same speaker")] if limit is not None else []
        typer.echo(visible(str(path)))  # whole, however narrow the table is
        Console(highlight=False).print(Table("", columns, rows))
    if limit is not None and not as_json:
        typer.echo(f"threshold {limit.cosine:g}, {limit.source}", err=True)
