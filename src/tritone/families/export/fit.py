"""Whether a checkpoint's tensors are those of a network: by name, by shape, and numbers all of them."""

from collections.abc import Callable, Mapping

from tritone.errors import ExportError

SHOWN = 20  # problems in one message


def require_shapes(
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    origin: str,
    network: str,
    wrong_numbers: Callable[[str], str | None],
) -> None:
    """Compare the tensors of a checkpoint with those of a network.

    Args:
        wanted: the shapes of all tensors of the network.
        found: those of the checkpoint.
        origin: where the tensors come from, for errors.
        network: what they do not fit, for errors: "its config".
        wrong_numbers: what a tensor holds that is no number, of its name; None if it holds numbers alone.

    Raises:
        ExportError: names every tensor that is missing, misshapen, not finite, or unknown to the network.
    """
    problems = [f"missing {name} {shape}" for name, shape in wanted.items() if name not in found]
    problems += [
        f"{name} is {found[name]}, the network asks for {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    problems += [f"unknown {name} {shape}" for name, shape in found.items() if name not in wanted]
    if not problems:
        problems = [f"{name} holds {wrong}" for name in found if (wrong := wrong_numbers(name)) is not None]
    if problems:
        more = f"\n  … and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        shown = "\n  ".join(problems[:SHOWN]) + more
        raise ExportError(f"checkpoint {origin} does not fit {network}:\n  {shown}")
