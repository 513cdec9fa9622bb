"""Where a command's model runs: on a server (--url), or in this process (--bundle)."""

from collections.abc import Mapping

import typer


def check_where(
    url: str | None,
    bundle: str | None,
    example: str,
    *,
    for_server: Mapping[str, object],
    for_bundle: Mapping[str, object],
) -> None:
    """Make sure that one of both is given, and no option of the other.

    Args:
        example: a shipped bundle, to show how it is said.
        for_server, for_bundle: options that only one of them has, by their names; None is not given.

    Raises:
        typer.BadParameter: none or both are given, or options do not belong together.
    """
    if (url is None) == (bundle is None):
        raise typer.BadParameter(
            "give --url (a running server, e.g. --url localhost:8001) or --bundle (run here, e.g. --bundle "
            f"{example}), {'not both' if url else 'one of them is needed'}"
        )
    misplaced = [name for name, value in (for_bundle if url else for_server).items() if value is not None]
    if misplaced:
        raise typer.BadParameter(f"{', '.join(misplaced)} goes with {'--bundle' if url else '--url'}")
