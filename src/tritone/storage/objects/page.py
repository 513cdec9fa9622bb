"""The page of a store of objects: a `Scheme` that obstore opens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tritone.storage.scheme import Scheme


@dataclass(frozen=True, kw_only=True)
class ObjectScheme(Scheme):
    """See `Scheme`. `options`: of obstore, beyond what it takes from the environment, made of that."""

    package: str = "tritone.storage.objects"
    store: str = "store:ObjectStore"
    extra: str = "remote"
    files: bool = True
    options: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda environment: {}
