"""When Python collects garbage in a model's process.

Left to itself, the collector looks through all objects there are whenever enough new ones have lived on. That is 0.2 s
with torch imported and 2,500 streams open, about once a second under load, and every stream waits. So what the model is
made of is never looked at, what lives on once a minute, and what is new as always.
"""

import gc
import time

YOUNG = 2_000  # new objects after which they are looked through
SURVIVED = 10  # such looks after which those are looked through that lived on since the last time
NEVER = 2**31 - 1
EVERY_S = 60.0

_due: float | None = None  # on the monotonic clock; None: before the first batch


def start() -> None:
    """Have no collection look through everything any more but those of `before_batch`."""
    gc.set_threshold(YOUNG, SURVIVED, NEVER)


def before_batch() -> None:
    """Collect all garbage where that is due: before the first batch, and then once a minute."""
    global _due
    now = time.monotonic()
    if _due is not None and now < _due:
        return
    gc.collect()
    if _due is None:
        gc.freeze()
    _due = now + EVERY_S
