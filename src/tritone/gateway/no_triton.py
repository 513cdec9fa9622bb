"""The place of the client in a gateway that has no Triton, but upstreams alone."""

from tritone.client.async_client import AsyncClient
from tritone.client.models import Kind, ModelInfo
from tritone.errors import InputError
from tritone.longform import OpenActivity


class NoTriton(AsyncClient):
    """A client without a server: it has no models, and whatever asks for one gets an `InputError`."""

    endpoint = "no Triton"  # type: ignore[assignment]

    def __init__(self) -> None:  # there is nothing to connect to
        pass

    async def models(self) -> list[ModelInfo]:
        return []

    async def model(self, name: str | None = None, *, kind: Kind | None = "offline") -> ModelInfo:
        what = f"model '{name}'" if name else f"{kind} model"
        raise InputError(f"there is no {what} here: this gateway has no Triton, and serves models of upstreams alone")

    async def is_ready(self, timeout_s: float) -> bool:
        return True

    async def activity(self, sample_rate: int) -> OpenActivity | None:
        return None

    async def close(self) -> None:
        pass
