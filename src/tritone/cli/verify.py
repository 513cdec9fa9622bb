"""`tritone verify`: do two recordings have the same speaker?"""

import json
from pathlib import Path
from typing import Annotated

import typer

from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.speaker_options import VoiceModel


@takes_option_classes()
def verify(
    *,
    first: Annotated[Path, typer.Argument(help="A recording of one person.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="Another recording.", show_default=False)],
    model: VoiceModel,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit code 1 if the speakers differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> None:
    """Compare two voices: one speaker or two?

    Their embeddings are made by a running server (--url) or in this process (--model; demo-speaker if not given).
    Their similarity is the cosine of these, from -1 to 1. It is compared with --threshold, or with
    the one that the bundle comes with; a served model has none. Exit code 0 if an answer was found, whatever it is;
    --exit-code makes it 1 for different speakers.
    """
    from tritone.speakers.scoring import unit_length

    voices = model.embed([first, second])
    if exit_code and voices.limit is None:
        raise typer.BadParameter("--exit-code needs --threshold: this model does not come with one")
    one, other = unit_length(voices.vectors)
    similarity = min(1.0, max(-1.0, float(one @ other)))
    limit = voices.limit
    is_same = None if limit is None else similarity > limit.cosine
    if as_json:
        fields = {
            "similarity": round(similarity, 6),
            "same": is_same,
            "threshold": None if limit is None else limit.cosine,
            "threshold_source": None if limit is None else limit.source,
            "model": voices.made_by.get("model"),
        }
        typer.echo(json.dumps(fields, ensure_ascii=False))
    elif limit is None:
        typer.echo(f"similarity {similarity:.4f}")
        typer.echo("no threshold is known for this model, so same or different is open; give --threshold", err=True)
    else:
        answer = "same speaker" if is_same else "different speakers"
        typer.echo(f"similarity {similarity:.4f}: {answer}")
        typer.echo(f"threshold {limit.cosine:g}, {limit.source}", err=True)
    if exit_code and not is_same:
        raise typer.Exit(1)
