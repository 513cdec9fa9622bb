"""A guard that ends a server whose owner is gone.

    Guard(pid, folder, regions)  ->  waits for the end of this process  ->  the server's group ends, its files go

A killed process cannot tidy up, and the server has a session of its own. Left behind it would keep ports, memory and,
worst of all for the next measurement, cores. `prctl(PR_SET_PDEATHSIG)` would be less, but it fires when the thread
that started the server ends, and needs code between fork and exec.
"""

import subprocess
from pathlib import Path

from tritone.server.installation import USUAL_PROGRAMS

NAME = "tritone-guard"  # among its arguments
# Its standard input is a pipe that only the owner holds open. $1 the group, $2 seconds of patience, $3 the folder,
# $4 what the names of the server's shared memory begin with.
SCRIPT = """
read -r _
kill -TERM "$1"
while [ "$2" -gt 0 ] && kill -0 "$1"; do sleep 1; set -- "$1" "$(($2 - 1))" "$3" "$4"; done
kill -KILL "-$1"
rm -rf -- "$3"
rm -f -- "$4"*
"""


class Guard:
    """Watches over a server until it is dismissed.

    Args:
        pid: of the server, which leads a process group.
        folder: of its temporary files.
        regions: path that its files in shared memory begin with.
        patience_s: how long the server may take to end.
    """

    def __init__(self, pid: int, folder: Path, regions: Path, patience_s: float) -> None:
        arguments = map(str, (pid, round(patience_s), folder, regions))
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, NAME, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": ":".join(USUAL_PROGRAMS)},  # that of this process may have no rm, or be missing
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the watch; the owner tidies up by itself."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
