"""`tritone speak`: a text becomes an audio file, by a running server or in this process."""

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from tritone.audio.encoder import SpeechEncoder, SpeechFormat, format_of
from tritone.audio.spoken import joined
from tritone.cli.shared.option_classes import takes_option_classes
from tritone.cli.shared.where import Where
from tritone.errors import InputError
from tritone.kinds.synthesis.options import SynthesisOptions
from tritone.paths import explained

STDOUT = "-"


@takes_option_classes()
def speak(
    *,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="What to say. Without it, standard input is read.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", metavar="FILE", help="The audio file; - writes to standard output as it is made.")
    ],
    format: Annotated[
        SpeechFormat | None,
        typer.Option("--format", help="Of the file. Default: as its name ends; wav on standard output."),
    ] = None,
    options: Annotated[dict[str, Any], SynthesisOptions],
    where: Where,
) -> None:
    """Speak a text with a voice.

    A voice of Piper speaks, on a running server (--url) or from a bundle of `tritone export piper` in this process
    (--model), which needs the program espeak-ng. Speech comes sentence by sentence.
    """
    where.check("joe, which `tritone export piper en_US-joe-medium.onnx --output joe` makes")
    try:
        SynthesisOptions().changed(options)
        chosen = format or ("wav" if output == STDOUT else format_of(Path(output)))
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    words = sys.stdin.read() if text is None else text
    with ExitStack() as stack:
        parts = stack.enter_context(closing(_spoken(stack, where, words, options)))
        if output != STDOUT:
            spoken = joined(list(parts))
            try:
                spoken.save(output, chosen)
            except OSError as error:
                raise explained(error, f"cannot write {output}") from error
            typer.echo(f"{output}: {spoken.audio_s:.2f} s", err=True)
            return
        encoder: SpeechEncoder | None = None
        for part in parts:
            encoder = encoder or SpeechEncoder(chosen, part.sample_rate)
            sys.stdout.buffer.write(encoder.add(part.waveform))
            sys.stdout.buffer.flush()
        if encoder is not None:
            sys.stdout.buffer.write(encoder.end())


def _spoken(stack: ExitStack, where: Where, text: str, options: dict[str, Any]) -> Any:
    """The sentences of a text; what speaks them is closed with `stack`."""
    from tritone import Voice, load_as  # a server's client need not wait for it

    try:
        if where.url is not None:
            return stack.enter_context(where.connect()).speak_iter(text, where.model, **options)
        voice = load_as(Voice, where.prepared(), **where.loading())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return voice.speak_iter(text, **options)
