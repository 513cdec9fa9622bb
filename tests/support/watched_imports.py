"""Models that are served as ever, and whose processes say which modules of ours they imported after they were loaded.

watch_imports(model, file)  ->  after each batch, `file` has a name on each line, and `requests N`
"""

from pathlib import Path

from tritone.repository.folder import BuiltModel

CODE = '''\
"""Watched: see tests/support/watched_imports.py."""

import sys
from pathlib import Path

from tritone.backend.{mode} import TritonPythonModel as Model


def ours():
    return {{name for name in sys.modules if name.split(".")[0] == "tritone"}}


class TritonPythonModel(Model):
    def initialize(self, args):
        super().initialize(args)
        self.loaded, self.asked = ours(), 0

    def execute(self, requests):
        answers = super().execute(requests)
        self.asked += len(requests)
        late = sorted(ours() - self.loaded)
        Path({file!r}).write_text("\\n".join([*late, f"requests {{self.asked}}"]), encoding="utf-8")
        return answers
'''


def watch_imports(model: BuiltModel, mode: str, file: Path) -> None:
    """Have a model's process write `file` before it answers a batch; `mode`: its module of `tritone.backend`."""
    (model.path / "1" / "model.py").write_text(CODE.format(mode=mode, file=str(file)), encoding="utf-8")
