"""Running a server's image: its options, and the command line."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritone.errors import InputError
from tritone.images.build import version_here
from tritone.images.engine import Engine, option
from tritone.storage import parse

INSIDE = {"http": 8000, "grpc": 8001, "metrics": 8002}  # ports of the image
MODELS, CACHE = "/models", "/cache"  # folders of the image
GRACE_S = 10  # for what a server does after its drain
# Variables that storage is read with; they are passed by name, so that no secret is in a command line.
OF_STORAGE = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_SKIP_SIGNATURE"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    *("HF_ENDPOINT", "HF_TOKEN", "TRITONE_CACHE_GB"),
)


@dataclass(frozen=True, kw_only=True)
class ServerRun:
    """How a server's container is run. Its file system is read-only, but for /tmp, /dev/shm and /cache.

    Raises:
        ValueError: `gpus` is something else.
    """

    image: str = option("", "Image to run; if not given tritone/server with --gpus, else tritone/server-slim.")
    gpus: str = option("none", "none, all, or numbers as in 0,1.")
    shm_size: str = option("1g", "Shared memory, for audio on its way to the models.")
    ulimits: list[str] = option(("memlock=-1", "stack=67108864"), "Limits of processes.", flags=["--ulimit"])
    host: str = option("127.0.0.1", "Address of this machine where ports are published; 0.0.0.0 for every network.")
    http_port: int = option(8000, "Port of HTTP here.", min=1)
    grpc_port: int = option(8001, "Port of gRPC here.", min=1)
    metrics_port: int = option(8002, "Port of metrics here.", min=1)
    network: str = option("", "Network of docker or podman; with host no ports are published.")
    volumes: list[str] = option((), "Further volumes, SOURCE:TARGET or SOURCE:TARGET:ro.", flags=["--volume"])
    environment: list[str] = option((), "Variables, NAME=VALUE, or NAME for its value here.", flags=["--env"])
    memory: str = option("", "Limit of memory, as in 8g.")
    cpus: str = option("", "Limit of processors, as in 4.")
    cache: str = option("tritone-cache", "Volume for compiled code and copies of models.")
    tmp_size: str = option("1g", "Size of /tmp, which is memory.")
    name: str = option("tritone", "Name of the container.")
    detach: bool = option(False, "Run it in the background.")
    drain_s: int = option(10, "How long requests and streams may go on when it is stopped.", min=0)

    def __post_init__(self) -> None:
        if self.gpus not in ("none", "all") and not all(each.isdecimal() for each in self.gpus.split(",")):
            raise ValueError(f"gpus must be none, all, or numbers such as 0,1; got {self.gpus!r:.50}")

    def command(
        self,
        engine: Engine,
        models: str | Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command line that serves a repository.

        Args:
            models: its folder, or an address such as s3://bucket/folder.
            arguments: of `tritone serve`.
            environment: where variables of storage are looked for; that of this process if not given.

        Raises:
            InputError: the folder is missing, or cannot be named to the engine.
        """
        command: list[str] = [engine, "run", "--rm", "--name", self.name]
        command += ["--detach"] if self.detach else []
        command += _gpus(engine, self.gpus)
        command += ["--shm-size", self.shm_size]
        for limit in self.ulimits:
            command += ["--ulimit", limit]
        for name, value in (("--memory", self.memory), ("--cpus", self.cpus), ("--network", self.network)):
            command += [name, value] if value else []
        ports: list[str] = []
        for service, inside in INSIDE.items():
            port = getattr(self, f"{service}_port")
            if self.network != "host":
                command += ["--publish", f"{self.host}:{port}:{inside}"]
            elif port != inside:
                ports += [f"--{service}-port", str(port)]
        if self.network == "host":
            command += ["--env", f"LISTEN={self.host}", "--env", f"HEALTH_URL={self._health_url()}"]
        command += ["--read-only", "--tmpfs", f"/tmp:rw,exec,mode=1777,size={self.tmp_size}"]
        command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        command += ["--stop-timeout", str(self.drain_s + GRACE_S)]
        command += ["--volume", f"{self.cache}:{CACHE}"]
        address = parse(models)
        if address is None:
            folder = Path(models).expanduser().resolve()
            if not folder.is_dir():
                raise InputError(f"there is no folder {models}. Make a repository with `tritone build`.")
            if "," in str(folder):
                raise InputError(f"{folder} has a comma, which docker and podman do not take in a mount")
            command += ["--mount", f"type=bind,source={folder},target={MODELS},readonly"]
        else:
            command += ["--env", f"MODELS={address}"]
            known = os.environ if environment is None else environment
            for name in (each for each in OF_STORAGE if each in known):
                command += ["--env", name]
        for volume in self.volumes:
            command += ["--volume", volume]
        for variable in self.environment:
            command += ["--env", variable]
        image = self.image or f"tritone/{'server-slim' if self.gpus == 'none' else 'server'}:{version_here()}"
        return [*command, image, "--drain-s", str(self.drain_s), *ports, *arguments]

    def _health_url(self) -> str:
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host
        return f"http://{host}:{self.http_port}/v2/health/ready"


def _gpus(engine: Engine, gpus: str) -> list[str]:
    if gpus == "none":
        return []
    if engine == "podman":
        return [word for each in gpus.split(",") for word in ("--device", f"nvidia.com/gpu={each}")]
    # docker reads the value as CSV: numbers need quotes of its own
    return ["--gpus", "all" if gpus == "all" else f'"device={gpus}"']
