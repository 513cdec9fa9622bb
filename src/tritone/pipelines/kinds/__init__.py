"""Kinds of models: each is one object that answers all that the rest of the project asks of a kind.

Ours stand in a module each. Kinds of other packages are found by their entry points: a package names an object of class
`Kind` in the group `tritone.kinds`, under the kind's name.

    [project.entry-points."tritone.kinds"]
    loudness = "my_package.loudness:LOUDNESS"
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from tritone.bundle.bundle import Bundle
from tritone.errors import BundleError, OperatorError
from tritone.pipelines.kinds.base import Kind

__all__ = ["GROUP", "Kind", "compile_search", "kind_named", "kind_of"]

GROUP = "tritone.kinds"
BUILT_IN = {
    "ctc": "tritone.pipelines.kinds.ctc:CTC",
    "transducer": "tritone.pipelines.kinds.transducer:TRANSDUCER",
    "embedding": "tritone.pipelines.kinds.embedding:EMBEDDING",
    "whisper": "tritone.pipelines.kinds.whisper:WHISPER",
    "voice-activity": "tritone.pipelines.kinds.voice_activity:VOICE_ACTIVITY",
    "generic": "tritone.pipelines.kinds.generic:GENERIC",
}


def kind_of(bundle: Bundle) -> Kind:
    """The kind of a bundle's model, after checking that the manifest has the parts that the kind needs.

    Raises:
        BundleError: the kind is unknown here, or parts of the manifest are missing or too many.
        OperatorError: another package has the kind, but it cannot be used.
    """
    try:
        kind = kind_named(bundle.manifest.kind)
    except KeyError as error:
        raise BundleError(
            f"{bundle.path} is of kind {bundle.manifest.kind!r}; known are {', '.join(sorted(_known()))}. Install the "
            f"package that has this kind (an entry point of the group {GROUP}), or upgrade Tritone."
        ) from error
    if fault := kind.fault(bundle.manifest):
        raise BundleError(f"{bundle.path}: {fault}. Mend the manifest or export the bundle again.")
    return kind


def kind_named(name: str) -> Kind:
    """The kind of this name.

    Raises:
        KeyError: there is none.
        OperatorError: another package has it, but it cannot be loaded or is something else.
    """
    # Looking for those of other packages takes tens of milliseconds.
    point = EntryPoint(name, BUILT_IN[name], GROUP) if name in BUILT_IN else _known()[name]
    try:
        kind = point.load()
    except Exception as error:  # code of others
        raise OperatorError(
            f"kind {name!r} cannot be loaded from {point.value}: {type(error).__name__}: {error}. Repair or remove the "
            "package that has it."
        ) from error
    if not isinstance(kind, Kind) or kind.name != name:
        raise OperatorError(
            f"the entry point {name} = {point.value} of the group {GROUP} must be a Kind whose name is {name!r}, got "
            f"{getattr(kind, 'name', kind)!r}. Repair or remove the package that has it."
        )
    return kind


def compile_search(kind: str, mode: str) -> None:
    """Compile what models of a kind need to be searched in a mode, or load it from the cache."""
    if compiler := kind_named(kind).compiler(mode):
        compiler()


def _known() -> Mapping[str, EntryPoint]:
    """All kinds by name; nobody can replace ours."""
    ours = (EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items())
    return {point.name: point for point in (*entry_points(group=GROUP), *ours)}
