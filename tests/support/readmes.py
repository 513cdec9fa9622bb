"""Commands and programs of an example's README, run in a copy of it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


def blocks(readme: Path, language: str) -> list[str]:
    """The blocks of code in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def followed(example: Path, folder: Path) -> Path:
    """A copy of an example in which the commands of its README ran, but for those that install and serve."""
    copy = Path(shutil.copytree(example, folder / "example"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for line in "".join(blocks(example / "README.md", "sh")).splitlines():
        if not line.startswith(("pip ", "tritone serve ")):
            words = [*shlex.split(line), *(["--no-trial"] if line.startswith("tritone ensemble") else [])]
            done = subprocess.run(
                words, cwd=copy, env={**os.environ, "PATH": path}, capture_output=True, encoding="utf-8", check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return copy
