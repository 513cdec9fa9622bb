"""Systems for embeddings as people write them on a command line.

    NAME=BUNDLE[,key=value...]                       a bundle folder, or a shipped one by name, in this process
    NAME=grpc://host:port/model[,key=value...]       a served model; http://, grpcs:// and https:// as well

As in `spec.py`. For bundles the keys are the options of `tritone.load_embedder`, for served models those of `SERVED`.
"""

from collections.abc import Mapping

from tritone import load_embedder
from tritone.systems.embedding import EmbeddingSystem
from tritone.systems.embedding_bundled import BundleEmbedding
from tritone.systems.embedding_served import DEFAULT_CONCURRENCY, ServedEmbedding
from tritone.systems.spec import Spec, load_options, option_values, parse_spec, split_address

SERVED = {"timeout_s": "float", "concurrency": "int", "window_s": "float", "shift_s": "float"}


def open_embedder_system(
    spec: Spec | str, *, concurrency: int | None = None, timeout_s: float | None = None
) -> EmbeddingSystem:
    """Open what a specification names. Close it when it is no longer needed.

    Args:
        concurrency, timeout_s: requests in flight and the limit of one in seconds, for a served model whose own options
            do not say otherwise.

    Raises:
        ValueError: the specification, an option of it or the address makes no sense.
        TritoneError: the bundle is missing, damaged or of another kind. A server is not asked before `prepare`.
    """
    spec = parse_spec(spec, _known) if isinstance(spec, str) else spec
    options = option_values(spec, _known(spec.is_served))
    if not spec.is_served:
        return BundleEmbedding(load_embedder(spec.target, **options), name=spec.name, options=options)
    from tritone.client import Client

    address, model = split_address(spec.target)
    concurrency = options.pop("concurrency", concurrency) or DEFAULT_CONCURRENCY
    windows = {key: options.pop(key, None) for key in ("window_s", "shift_s")}
    if timeout_s is not None:
        options.setdefault("timeout_s", timeout_s)
    return ServedEmbedding(Client(address, **options), model, name=spec.name, concurrency=concurrency, **windows)


def _known(served: bool) -> Mapping[str, str]:
    return SERVED if served else load_options(load_embedder)
