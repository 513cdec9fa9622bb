"""How pytest-xdist spreads tests over its workers: by file, or by what the tests of several files share.

The longest come first, so that the last to finish finishes soon after the others. The first of them compiles the search
where that was not done on this machine; those of the other workers come first that do not need it.
"""

from typing import Any

import pytest

# Folders, in this order: what takes minutes on one worker does not begin last. What is in none of them takes a few
# seconds a file, and so the workers end nearly together.
LONGEST = (
    *("backend", "server", "icefall", "wenet", "wespeaker", "families", "parity"),
    *("cli", "client", "gateway", "examples", "e2e", "benchmarks", "runtime", "loadtest", "training"),
    *("systems", "kinds", "proxy", "prepare", "compatibility", "pipelines"),
)
# How the paths of files begin whose tests share a server or exports -> its name.
TOGETHER = {
    "tests/backend/": "server",
    "tests/monitor/": "server",
    "tests/loadtest/test_stream_load_served": "server",
    "tests/server/test_serve.py": "server",
    "tests/gateway/": "gateway",
    "tests/cli/": "toys on the wire",
    "tests/client/": "toys on the wire",
    "tests/families/icefall/": "exports of icefall",
    "tests/families/wenet/": "exports of WeNet",
    "tests/parity/test_served": "golden exports of WeNet",
    "tests/parity/test_wenet": "golden exports of WeNet",
}


def rank(item: pytest.Item) -> int:
    """The place of a test's folder among the longest."""
    folders = item.path.relative_to(item.config.rootpath).parts
    return next((place for place, name in enumerate(LONGEST) if name in folders), len(LONGEST))


def scope(nodeid: str) -> str:
    """What a test shares with those that run on the same worker, one after the other."""
    file = nodeid.split("::")[0]
    return next((shared for begin, shared in TOGETHER.items() if file.startswith(begin)), file)


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A scheduler that starts scopes in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling  # only where tests are spread

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)
