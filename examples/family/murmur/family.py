"""What Tritone may know of Murmur without torch: how its files are recognised, and what exports them."""

from tritone.families.family import Checkpoint, Family, Seen


def recognise(seen: Seen) -> Checkpoint | None:
    """A file of torch.save with the names that `write_checkpoint` gives; nothing of it is loaded."""
    if {"murmur", "mix.0.weight"} <= seen.words:
        return Checkpoint(what="a Murmur", arguments={"checkpoint": seen.path}, files=[seen.path])
    return None


FAMILY = Family(
    name="murmur",
    package=__package__,
    interface=1,
    what="Export a Murmur, waveform in: causal convolutions with CTC, for whole utterances and for streams.",
    options="options:MurmurOptions",
    export="export:export_murmur",
    recognise=recognise,
    pickles=("*.murmur",),
    int8=True,
    examples=(
        "tritone export murmur --checkpoint small.murmur --output my-murmur",
        "tritone export murmur --checkpoint small.murmur --streaming --chunk-size 8 --output my-murmur",
    ),
)
