"""A real server behind a proxy, whose models can be lost, and held while they are loaded again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proxied import Served, post
from tritone.audio.wav import PCM, wav_file
from tritone.keys import find_key
from wire_toys import busy, holding, write_models

WAIT_S = 60.0
SOUND = wav_file(bytes(16000), tag=PCM, width=2, sample_rate=8000)


def until(known: Callable[[], Any]) -> Any:
    """What is known at last."""
    deadline = time.monotonic() + WAIT_S
    while not (found := known()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


class States(Served):
    """A server whose models are held where they are loaded again."""

    def __init__(self, folder: Path) -> None:
        repository = write_models(folder, "count", "running", "slow")
        self.holds = {name: holding(repository, name) for name in ("count", "running")}
        self.busy = busy(repository, "running")
        config = repository / "running" / "config.pbtxt"
        config.write_text(config.read_text(encoding="utf-8").replace("sequences: 8", "sequences: 64"), encoding="utf-8")
        super().__init__(repository)
        self.key = {"tritone-key": find_key(self.grpc) or ""}

    def state(self, model: str) -> str:
        _, index, _ = post(self.http, "/v2/repository/index", b"", self.key)
        return next(each.get("state", "") for each in index if each["name"] == model)

    @contextmanager
    def losing(self, model: str) -> Iterator[None]:
        """Inside, a model whose process was killed is being loaded again; afterwards it is ready."""
        hold = self.holds[model]
        hold.touch()
        try:
            self.stub(model).kill()
            until(lambda: self.state(model) == "LOADING")
            yield
        finally:
            hold.unlink(missing_ok=True)
            until(lambda: self.state(model) == "READY")


def hint(headers: dict[str, str]) -> int:
    return int({name.lower(): value for name, value in headers.items()}["retry-after"])


def form(**fields: str) -> tuple[bytes, dict[str, str]]:
    parts = [f'--b\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in fields.items()]
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return b"".join([*parts, head, SOUND, b"\r\n--b--\r\n"]), {"content-type": "multipart/form-data; boundary=b"}
