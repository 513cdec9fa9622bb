"""What somebody names, made ready to run here.

    WHAT  ->  identify  ->  Identified: a bundle that is there, or a checkpoint and its files
          ->  prepare   ->  Prepared: a bundle, exported into the cache if it was not there

An export is the one that `tritone export` makes, with the options that suit the device.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from tritone.bundle import Bundle, resolve, shipped_bundles
from tritone.bundle.bundle import MANIFEST, known
from tritone.errors import BundleError, ExportError, MissingDependencyError, OperatorError, StorageError
from tritone.families.export.options import ExportOptions
from tritone.families.family import Checkpoint, Family
from tritone.families.known import family, recognise
from tritone.installing import pip_install
from tritone.paths import CACHE, local
from tritone.prepare import cache
from tritone.prepare.precision import choose, prefer
from tritone.prepare.stored import fetch_checkpoint, licence_of
from tritone.repository.folder import CONFIG
from tritone.runtime.device import cuda_index
from tritone.runtime.memory import machine_bytes
from tritone.storage import Address, fetch, open_store, parse
from tritone.storage.cache import copy_of, is_offline

Notify: TypeAlias = Callable[[str], None]

# Bytes of an export for each number of the weights, as Whisper tiny.en and base take: on the disk while it is written,
# float32 alone and with int8; in memory at least.
DISK, DISK_INT8, MEMORY = 9, 12, 16
SPARE_BYTES = 400 * 2**20  # of packages, and of the graphs that are compared
NEEDED = {"export": ("torch", "onnx", "onnxscript", "sentencepiece", "safetensors")}


@dataclass(frozen=True, kw_only=True)
class Identified:
    """What a name means. `bundle`: where it is, if it is one; else `checkpoint`. `origin`: what storage says of it."""

    what: str
    bundle: Path | None = None
    checkpoint: Checkpoint | None = None
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A bundle that runs here. `verified`: its checksums were compared just now. `name`: of the model in a server."""

    path: Path
    name: str
    verified: bool = False


def is_repository(what: str | os.PathLike[str]) -> bool:
    """Is it a repository of models, in a folder or in storage?

    Raises:
        StorageError, StorageUnreachableError: it is in storage, and cannot be read there.
    """
    address = parse(what)
    if address is None:
        path = Path(what)
        return path.is_dir() and not (path / MANIFEST).exists() and _has_models(path)
    if is_offline():  # what there is a copy of
        return not _offline_bundle(address)
    names = [entry.name for entry in open_store(address).entries()]
    return MANIFEST not in names and any(name.count("/") == 1 and name.endswith(f"/{CONFIG}") for name in names)


def is_bundle(what: str | os.PathLike[str]) -> bool:
    """Is it a bundle of this machine, which needs no export?"""
    if os.path.exists(what):  # the methods of Path raise on names that are too long
        return os.path.isfile(os.path.join(what, MANIFEST))
    return os.fspath(what) in shipped_bundles()


def identify(what: str | os.PathLike[str], *, trust: bool = False) -> Identified:
    """Say what somebody means; what lies in storage is copied to this machine.

    Raises:
        BundleError: there is nothing of this name, or nothing that can be made a bundle; says what was seen and what
            is needed.
        StorageError, StorageUnreachableError: it is in storage, and cannot be read there; or it is pickled and there
            is no trust.
    """
    name = os.fspath(what)
    if (address := parse(what)) is not None:
        try:
            return Identified(what=name, bundle=resolve(str(address)))
        except StorageError:
            if _holds_bundle(address):
                raise
        folder = fetch_checkpoint(address, trust)
        copy, licence = copy_of(folder), licence_of(folder)
        origin = {"address": str(address), "commit": copy.commit if copy else "", "licence": licence}
        return Identified(what=name, checkpoint=recognise(folder), origin=origin)
    path = local(what, BundleError)
    if (bundle := known(what)) is not None:
        return Identified(what=name, bundle=bundle)
    if not os.path.exists(path):  # the methods of Path raise on names that are too long
        raise BundleError(
            f"there is no {name}. Give a folder or file of a model (a bundle, a checkpoint, an ONNX, TorchScript or "
            f".pt2 file), an address such as hf://OWNER/NAME, or the name of a shipped bundle: "
            f"{', '.join(shipped_bundles())}"
        )
    return Identified(what=name, checkpoint=recognise(path))


def prepare(
    what: str | os.PathLike[str],
    *,
    device: str = "cpu",
    precision: str | None = None,
    name: str | None = None,
    trust: bool = False,
    notify: Notify = lambda line: None,
) -> Prepared:
    """Make a bundle that runs here of what somebody has; what was exported before is taken from the cache.

    Args:
        what: a bundle's folder or address, the name of a shipped one, a checkpoint's file or folder, a graph's file,
            or an address of one (hf://owner/name).
        device: where it is to run: `cpu`, `cuda` or `cuda:N`.
        precision: None chooses: on a CPU int8 where its gate passes and it is faster, else fp32; on a GPU bf16.
        name: of the bundle that is exported; None takes that of the folder, the file or the repository.
        trust: take pickles from storage, and programs, too.
        notify: is called with lines about what was found, what is done and what was chosen.

    Raises:
        BundleError, StorageError, StorageUnreachableError: as of `identify`.
        MissingDependencyError: the export needs an extra that is not installed.
        OperatorError: the cache cannot be written, or there is not enough disk or memory; says how much is needed.
        ExportError: the checkpoint cannot be exported.
    """
    gpu = cuda_index(device) is not None
    found = identify(what, trust=trust)
    if found.bundle is not None:
        return Prepared(path=found.bundle, name=Bundle.open(found.bundle).manifest.name)
    checkpoint = found.checkpoint
    assert checkpoint is not None
    if checkpoint.program and not trust:
        raise OperatorError(
            f"{what} is {checkpoint.what}: loading it runs it, with your rights. If you trust who made it, say so: "
            "--trust (in Python trust=True)"
        )
    options = _options(checkpoint, gpu, precision)
    name = name or model_name(found)
    entry_name = f"{name[:60]}-{_key(found, checkpoint, options, precision)}"
    entry = cache.find(entry_name)
    if entry is None and precision is not None:  # the export that chose between precisions may have this one, too
        chosen = cache.find(f"{name[:60]}-{_key(found, checkpoint, _options(checkpoint, gpu, None), None)}")
        if chosen is not None and precision in chosen.about.get("precisions", ()):
            entry = chosen
    if entry is None:
        notify(f"{what}: {checkpoint.what}")
        for key, value in found.origin.items():
            notify(f"{key}: {value or 'none is given'}")
        _check_packages(what, checkpoint)
        write = partial(_export, found, checkpoint, options, name, precision is None and not gpu, notify)
        entry = cache.make(entry_name, write, f"{what} is being exported by another process; waiting ...")
    if why := entry.about.get("why"):
        notify(f"{entry.about['precision']}: {why}" if precision is None else f"{precision}, as asked for")
    notify(f"bundle {entry.bundle}")
    return Prepared(path=entry.bundle, name=name, verified=True)


def model_name(found: Identified) -> str:
    """What a model is called: after its repository of the hub, its folder or its file."""
    if (address := parse(found.what)) is not None:
        raw = address.name
    else:
        path = Path(found.what).resolve()
        raw = path.name if path.is_dir() else path.stem
        if raw in ("model", "final", "pretrained", "avg_model", "checkpoint", "embedding_model"):  # says nothing
            raw = path.parent.name
    return (
        "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in raw)[
            :100
        ].strip("._-")
        or "model"
    )


def _has_models(path: Path) -> bool:
    return any((each / CONFIG).is_file() or (each / "1").is_dir() for each in path.iterdir() if each.is_dir())


def _holds_bundle(address: Address) -> bool:
    if is_offline():
        return _offline_bundle(address)
    return any(entry.name == MANIFEST for entry in open_store(address).entries())


def _offline_bundle(address: Address) -> bool:
    try:
        return (fetch(address, first=MANIFEST) / MANIFEST).is_file()
    except OperatorError:
        return False


def _options(checkpoint: Checkpoint, gpu: bool, precision: str | None) -> dict[str, Any]:
    """The options of the export, as its function takes them."""
    graph = {each.suffix for each in checkpoint.files} == {".onnx"} and precision in (None, "fp32")
    if not _is_network(checkpoint) or graph:  # which is taken as it is
        return {}
    if precision is not None:
        runtimes = ("torch",) if gpu or precision == "bf16" else ("onnxruntime",)
        return {"runtimes": runtimes, "precisions": (precision,)}
    if gpu:
        return {"runtimes": ("torch",), "precisions": ("bf16",), "lenient": True}
    if checkpoint.int8:
        return {"precisions": ("fp32", "int8"), "lenient": True}
    return {"precisions": ("fp32",)}


def _is_network(checkpoint: Checkpoint) -> bool:
    """Has its export precisions and runtimes?"""
    of = family(checkpoint.family)
    return bool(of.options) and issubclass(of.option_class, ExportOptions)


def _key(found: Identified, checkpoint: Checkpoint, options: Mapping[str, Any], precision: str | None) -> str:
    """Stands for the content of the files, how they are exported, and by which version.

    Of copies of storage the checksums are known. For other files, place, size and both times stand: no change of the
    content leaves all of them, and files of many GB need not be read at each start.
    """
    copy = copy_of(checkpoint.files[0].parent) if found.origin else None
    if copy is not None:
        read: list[list[Any]] = [[each.name, copy.sums[each.name]] for each in checkpoint.files]
    else:
        seen = [(each.resolve(), each.stat()) for each in checkpoint.files]
        read = [[str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for path, stat in seen]
    parts = [version("tritone"), checkpoint.family, read, {**options}, precision]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _check_packages(what: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    extra = checkpoint.extra or ""
    if missing := [each for each in NEEDED.get(extra, ()) if find_spec(each) is None]:
        raise MissingDependencyError(
            f"{what} is {checkpoint.what}, and exporting it needs {', '.join(missing)}: {pip_install(extra)}"
        )


def _export(
    found: Identified,
    checkpoint: Checkpoint,
    options: Mapping[str, Any],
    name: str,
    choosing: bool,
    notify: Notify,
    target: Path,
) -> dict[str, Any]:
    """Export into a folder of the cache; returns what is kept beside the bundle."""
    _check_room(checkpoint, "int8" in options.get("precisions", ()), target.parent, notify)
    of = family(checkpoint.family)
    more = {"progress": notify} if of.options else {}
    try:
        report = of.exporter(checkpoint.arguments)(**checkpoint.arguments, output=target, name=name, **options, **more)
    except ExportError as error:
        raise ExportError(
            f"{error} `tritone export {checkpoint.family}` has more options; what it writes can be served."
        ) from error
    about: dict[str, Any] = {
        "what": found.what,
        "is": checkpoint.what,
        "version": version("tritone"),
        "command": checkpoint.command(
            name, **{key: "" if value is True else ",".join(value) for key, value in options.items()}
        ),
        **found.origin,
    }
    bundle = Bundle.open(target)
    if "int8" in options.get("precisions", ()) and choosing:
        if "int8" in {each.precision for each in bundle.manifest.artifacts}:
            notify("comparing the time of a clip in fp32 and in int8")
        moved = [drift.moved for file, drift in report.drifts.items() if ".int8." in file]
        refused = " ".join(note for note in report.notes if "int8" in note)
        choice = choose(bundle, max(moved, default=None), ExportOptions.usual_drift, refused)
        prefer(target, choice.precision)
        about |= {"precision": choice.precision, "why": choice.why}
    about["precisions"] = sorted({each.precision for each in bundle.manifest.artifacts})
    return about


def _check_room(checkpoint: Checkpoint, int8: bool, folder: Path, notify: Notify) -> None:
    """Raise `OperatorError` if the disk or the memory cannot be enough."""
    numbers = _numbers(checkpoint)
    disk = numbers * (DISK_INT8 if int8 else DISK) if _is_network(checkpoint) else 4 * numbers
    disk += 2**20
    memory = numbers * MEMORY + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    notify(f"needs about {disk / 1e6:.0f} MB of disk and at least {memory / 1e6:.0f} MB of memory for the export")
    if disk > free:
        raise OperatorError(
            f"the export needs about {disk / 1e6:.0f} MB, but {folder.parent} is on a disk with {free / 1e6:.0f} MB "
            f"free. Free some (`tritone cache clear` removes older exports), or name another folder with {CACHE}"
        )
    have = min(psutil.virtual_memory().available, machine_bytes() or 2**62)
    if memory > have:
        raise OperatorError(
            f"the export needs at least {memory / 1e6:.0f} MB of memory, but {have / 1e6:.0f} MB are free here. Export "
            "on a larger machine, with the command that `tritone inspect` prints, and copy the bundle"
        )


def _numbers(checkpoint: Checkpoint) -> int:
    """About how many numbers the weights have, as the family or the heads of safetensors' files say; else of 4 bytes
    each."""
    return sum(_numbers_in(each, family(checkpoint.family)) for each in checkpoint.files)


def _numbers_in(path: Path, of: Family) -> int:
    size = path.stat().st_size
    if (count := of.count_numbers(path)) is not None:
        return count
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            head = file.read(2**20)
        return size // (2 if head.count(b'"F16"') + head.count(b'"BF16"') > head.count(b'"F32"') else 4)
    return size // 4
