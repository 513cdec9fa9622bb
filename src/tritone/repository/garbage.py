"""Versions of a repository in storage that nobody needs any more."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tritone.repository.stored import CLAIM, INDEX, StoredModel, StoredVersion, read_models
from tritone.storage import Store

KEEP = 2  # versions beside those that are served, to go back to
GRACE_H = 24.0  # hours in which a push that is not complete may go on


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A version that may go: of which model, its number and size in bytes, and why."""

    model: str
    version: int
    size: int
    reason: str


def collect(
    store: Store, *, keep: int = KEEP, grace_h: float = GRACE_H, dry_run: bool = False, only: Sequence[str] = ()
) -> list[Garbage]:
    """Remove versions that are neither served nor among the newest `keep` complete others, and pushes that broke.

    What `push` did not write is never removed.

    Args:
        keep: complete versions that stay beside those that are served.
        grace_h: hours since its last write after which a push that is not complete is given up.
        dry_run: only tell what would go.
        only: names of models, if not all.
    """
    found = []
    for model in read_models(store, only=only).values():
        for version, reason in _of_model(model, keep, timedelta(hours=grace_h)):
            found.append(Garbage(model=model.name, version=version.number, size=version.size, reason=reason))
            if not dry_run:
                _remove(store, model, version)
    return found


def _of_model(model: StoredModel, keep: int, grace: timedelta) -> list[tuple[StoredVersion, str]]:
    ours = [each for each in model.versions.values() if each.index is not None or CLAIM in each.files]
    others = [each for each in ours if each.number not in model.served]
    complete = sorted((each for each in others if each.is_complete), key=lambda each: each.number)
    gone = [
        (each, f"not served, and older than the {keep} that stay") for each in complete[: max(0, len(complete) - keep)]
    ]
    now = datetime.now(UTC)
    for each in others:
        written = max((entry.modified for entry in each.files.values() if entry.modified is not None), default=now)
        if not each.is_complete and now - written >= grace:
            gone.append((each, f"its push was not completed; the last file is of {written:%Y-%m-%d %H:%M} UTC"))
    return sorted(gone, key=lambda pair: pair[0].number)


def _remove(store: Store, model: StoredModel, version: StoredVersion) -> None:
    names = [f"{model.name}/{version.number}/{name}" for name in version.files]
    # Without its list it is not complete, whatever of it is left if this breaks; the claim says whose it was.
    first = [name for name in names if name.endswith(f"/{INDEX}")]
    last = [name for name in names if name.endswith(f"/{CLAIM}")]
    store.delete(first)
    store.delete([name for name in names if name not in (*first, *last)])
    store.delete(last)
