"""Models that are served as ever, and whose processes say which modules of ours they imported after they were loaded.

watch_imports(model, file)  ->  once the server has stopped, `file` has a name on each line, and `requests N`
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
        self.asked += len(requests)
        return super().execute(requests)

    def finalize(self):
        late = sorted(ours() - self.loaded)
        super().finalize()
        Path({file!r}).write_text("\\n".join([*late, f"requests {{self.asked}}"]), encoding="utf-8")
'''


def watch_imports(model: BuiltModel, mode: str, file: Path) -> None:
    """Have a model's process write `file` when it is unloaded; `mode`: its module of `tritone.backend`."""
    (model.path / "1" / "model.py").write_text(CODE.format(mode=mode, file=str(file)), encoding="utf-8")
