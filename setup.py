"""The name of the wheel: its compiled part is a library without a symbol of Python, so it suits every Python 3."""

import platform
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """`py3-none-manylinux…` with the compiled part, `py3-none-any` where there was no compiler."""

    def get_tag(self) -> tuple[str, str, str]:
        if not any(Path(self.get_finalized_command("build_ext").build_lib).rglob("_fused*.so")):
            return "py3", "none", "any"
        system = super().get_tag()[2]
        name, version = platform.libc_ver()
        if name == "glibc" and system.startswith("linux_"):  # what it was built with is new enough for it
            system = f"manylinux_{version.replace('.', '_')}_{system.removeprefix('linux_')}"
        return "py3", "none", system


setup(cmdclass={"bdist_wheel": Wheel})
