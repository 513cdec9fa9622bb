"""A server whose owner is killed: nobody is left who could tidy up, and all the same nothing is left."""

import subprocess
import sys
from pathlib import Path

import psutil

from serving import descendants, left, regions
from tritone.server.guard import Guard
from wire_toys import write_models

OWNER = """
import sys
from pathlib import Path
from tritone.server import ServerOptions, TritonServer
from wire_toys import COMPLETE
with TritonServer(Path(sys.argv[1]), ServerOptions.on_free_ports(drain_s=0, extra=COMPLETE)):
    print("up", flush=True)
    sys.stdin.read()
"""


def test_a_server_ends_with_its_killed_owner_and_leaves_no_memory_and_no_files(tmp_path: Path) -> None:
    write_models(tmp_path / "repository", "count")
    tests = str(Path(__file__).parents[1] / "support")
    command = [sys.executable, "-c", OWNER, str(tmp_path / "repository")]
    (tmp_path / "temporary").mkdir()
    environment = {"PYTHONPATH": tests, "TMPDIR": str(tmp_path / "temporary"), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        below = descendants(owner.pid)
        assert {"tritonserver", "triton_python_b"} <= {each.name()[:15] for each in below}
        assert list((tmp_path / "temporary").glob("tritone-server-*"))
        owner.kill()
    assert left(below) == []
    assert not regions(owner.pid)
    assert not list((tmp_path / "temporary").glob("tritone-server-*"))


STUBBORN = """
trap '' TERM
sleep 600 &
echo $!
wait
"""


def test_whatever_of_the_servers_group_does_not_end_when_told_is_killed(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", STUBBORN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True) as leader:
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        guard = Guard(leader.pid, tmp_path / "none", tmp_path / "no_region", patience_s=1)
        assert guard._process.stdin is not None
        guard._process.stdin.close()  # as the kernel does when the owner is killed
        guard._process.wait(timeout=30)
        still_there = left([child, psutil.Process(leader.pid)])
        for process in still_there:
            process.kill()
    assert still_there == []
