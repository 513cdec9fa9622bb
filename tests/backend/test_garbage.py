"""When a model's process collects garbage, in a process of its own."""

import subprocess
import sys

from tritone.backend.garbage import EVERY_S

CODE = """
import gc, time
from tritone.backend import garbage

class Node:
    pass

def lost():
    one, other = Node(), Node()
    one.other, other.other = other, one
    gc.collect(0), gc.collect(1)  # they live on as long as those of streams do
    return [id(one), id(other)]

old = [Node() for _ in range(50_000)]
looks = []
gc.callbacks.append(lambda phase, info: looks.append(info["generation"]) if phase == "start" else None)
garbage.start()
garbage.before_batch()
print("frozen", gc.get_freeze_count() > 50_000)
looks.clear()
kept = [Node() for _ in range(200_000)]  # Python would look through all of them several times
print("full looks", looks.count(2))
lost()
now, time.monotonic = time.monotonic(), lambda: now + SECONDS
garbage.before_batch()
print("left", sum(isinstance(each, Node) for each in gc.get_objects()) - len(kept))
"""


def told(seconds: float) -> str:
    code = CODE.replace("SECONDS", str(seconds))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60)
    assert not done.stderr
    return done.stdout


def test_what_the_model_is_made_of_is_not_looked_at_again() -> None:
    assert told(1) == "frozen True\nfull looks 0\nleft 2\n"


def test_garbage_that_lived_on_is_collected_after_a_minute() -> None:
    assert told(EVERY_S + 1) == "frozen True\nfull looks 0\nleft 0\n"
