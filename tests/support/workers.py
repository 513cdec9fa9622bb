"""How pytest-xdist spreads tests over its workers: by file, and by server where the tests of whole folders share one.

The longest come first, so that the last to finish finishes soon after the others.
"""

from typing import Any

import pytest

LONGEST = ("server", "families", "parity", "cli", "client", "e2e", "loadtest", "training")  # folders, in this order
SERVED = {"server": "server", "cli": "wire", "client": "wire"}  # folder -> what names the server of its tests


def rank(item: pytest.Item) -> int:
    """The place of a test's folder among the longest."""
    folders = item.path.relative_to(item.config.rootpath).parts
    return next((place for place, name in enumerate(LONGEST) if name in folders), len(LONGEST))


def scope(nodeid: str) -> str:
    """What a test shares with those that run on the same worker, one after the other."""
    file = nodeid.split("::")[0]
    folder = file.split("/")[1]  # after tests/
    return SERVED.get(folder, file)


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler that starts scopes in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling  # only where tests are spread

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
