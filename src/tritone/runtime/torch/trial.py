"""Trying compiled calls in a process of its own: code that ends the process that runs it should not end ours.

    program file, device  ->  python -m tritone.runtime.torch.trial ...  ->  why its compiled calls must not be used

On an H200 with torch 2.11, processes of a plain interpreter that opened compiled calls ended without a word, and
Triton's did not; why is not known. Triton's are not asked: there a process that dies is started again, and its log
says so.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

from tritone.runtime.torch.compiled import CompiledStore
from tritone.runtime.torch.program import read_program

TOLD = 500  # characters of what a process wrote last
LIMIT_S = 120.0
EXECUTABLE = Path("/proc/self/exe")


def is_plain_interpreter(executable: Path = EXECUTABLE) -> bool:
    """Whether this process is Python's own, and not a program that embeds it, as Triton's are."""
    try:
        return executable.resolve().name.startswith("python")
    except OSError:
        return True


def fault(path: Path, device: torch.device) -> str | None:
    """Why the compiled calls of a program must not be used here; None if another process has run them all."""
    command = [sys.executable, "-m", __name__, str(path.resolve()), str(device)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"a process that tried them had not ended after {LIMIT_S:g} s"
    if done.returncode == 0:
        return None
    how = f"signal {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"code {done.returncode}"
    return f"a process that tried them ended with {how} {(done.stdout + done.stderr)[-TOLD:]}".rstrip()


def main() -> None:
    """Run every compiled call of a program once, on zeros."""
    path, device = Path(sys.argv[1]), torch.device(sys.argv[2])
    program = read_program(path, device)
    with torch.inference_mode():
        for each in CompiledStore(program, device).open():
            each(
                *(
                    torch.zeros(shape, dtype=getattr(torch, program.inputs[name].dtype.name), device=device)
                    for name, shape in each.call.shapes.items()
                )
            )
        if device.type == "cuda":
            torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
