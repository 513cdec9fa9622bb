"""What the files of torch say of their graphs, read as data: nothing is unpickled, evaluated or run.

model.pt2  ->  names, types and sizes, from model.json
model.ts   ->  names from the text of `forward`; types and sizes from our record, where `tritone export` wrote it
"""

import json
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tritone.errors import BundleError
from tritone.runtime.description import ANY, GraphDescription, Size, TensorDescription, most_common
from tritone.runtime.files.archive import Archive
from tritone.runtime.files.records import Records, field
from tritone.runtime.functions.signature import TYPES

MAX_CODE_BYTES = 2**24  # of the text of all classes
BF16 = "BF16"
FORWARD = re.compile(r"^  def forward\((?P<arguments>[^)]{0,20000})\) -> (?P<result>[^\n]{1,5000}):$", re.MULTILINE)
CALLS = re.compile(r"\b(?:torch|ops\.\w+)\.(\w+)\(")
SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")
WRITES = ("save", "from_file", "_save", "load")  # operators of scripts that open files


class _Script(Records):
    kind = "archive of torch"
    compressible = "code/"


def describe(path: Path) -> GraphDescription:
    """Read a TorchScript file, or one of `torch.export.save`.

    Raises:
        BundleError: it is neither, or damaged; says what a checkpoint is if it is one.
    """
    try:
        names = zipfile.ZipFile(path).namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise BundleError(f"{path} is no archive of torch: {error}") from error
    inner = {name.partition("/")[2] for name in names}
    try:
        if "archive_format" in inner:
            return _describe_program(path)
        if any(name.startswith("code/") for name in inner):
            return _describe_script(path)
    except (ValueError, KeyError, TypeError, AttributeError, LookupError, RecursionError, StopIteration) as error:
        raise BundleError(f"{path} is damaged: {type(error).__name__}: {str(error)[:200]}") from error
    if "data.pkl" in inner:
        raise BundleError(
            f"{path} is a checkpoint (a pickle of torch.save): it has weights and no graph, and reading it could run "
            "any code. `tritone export` of the toolkit it comes from makes a bundle of it, or export the model with "
            "torch.export.save, torch.jit.save or torch.onnx.export."
        )
    raise BundleError(f"{path} is a zip file, but neither of torch.export nor of torch.jit")


def _describe_program(path: Path) -> GraphDescription:
    with Archive(path) as archive:
        module, record = archive.program(), archive.described()
        graph, signature = field(module, "graph", dict), field(module, "signature", dict)
        values = field(graph, "tensor_values", dict)
        specs = [next(iter(each.items())) for each in field(signature, "input_specs", list)]
        inputs = [_value(spec) for kind, spec in specs if kind == "user_input"]
        results = [next(iter(each.items())) for each in field(signature, "output_specs", list)]
        outputs = [_value(spec) for kind, spec in results if kind == "user_output"]
        nodes = [str(node["target"]).removeprefix("torch.ops.") for node in field(graph, "nodes", list)]
        foreign = sorted({each for each in nodes if not each.startswith(("aten.", "_operator.", "higher_order."))})
        version = archive.json("models/model.json").get("torch_version", "")
        held = sum(kind in ("parameter", "buffer", "tensor_constant") for kind, _ in specs)
    return GraphDescription(
        format="torch.export",
        inputs=_tensors(inputs, record.get("inputs", inputs), values, archive),
        outputs=_tensors(outputs, record.get("outputs") or keys_of_results(module, outputs), values, archive),
        facts={
            "written by": f"torch {version}",
            "operators": most_common(Counter(".".join(each.split(".")[:2]) for each in nodes)),
            "weights": f"{held} tensors",
        },
        notes=(f"operators of others, which Tritone does not run: {', '.join(foreign)[:200]}",) if foreign else (),
    )


def keys_of_results(module: Mapping[str, Any], outputs: Sequence[str]) -> list[str]:
    """The keys of the dictionary that a program returns, or else the names of its values."""
    calls = module.get("module_call_graph")
    spec = (calls[0].get("signature") or {}).get("out_spec") if isinstance(calls, list) and calls else None
    found = json.loads(spec)[1] if isinstance(spec, str) else {}
    if isinstance(found, dict) and found.get("type") == "builtins.dict":
        keys = json.loads(found.get("context", "[]"))
        if isinstance(keys, list) and len(keys) == len(outputs) and all(isinstance(key, str) for key in keys):
            return keys
    return [*outputs]


def _value(spec: Mapping[str, Any]) -> str:
    argument = spec["arg"]
    return str(argument["as_tensor"]["name"]) if "as_tensor" in argument else str(next(iter(argument.values())))


def _tensors(
    values: Sequence[str], names: Any, metas: Mapping[str, Any], archive: Archive
) -> tuple[TensorDescription, ...]:
    names = names if isinstance(names, list) and len(names) == len(values) else values
    found = []
    for value, name in zip(values, names, strict=True):
        if (meta := metas.get(value)) is None:
            found.append(TensorDescription(str(name), "a constant", None))
        else:
            shape = tuple(_size(size) for size in field(meta, "sizes", list))
            found.append(TensorDescription(str(name), type_name(archive.dtype(meta["dtype"])), shape))
    return tuple(found)


def type_name(dtype: torch.dtype) -> str:
    """Triton's name of a type of torch."""
    if dtype is torch.bfloat16:
        return BF16
    wanted = np.dtype(str(dtype).removeprefix("torch."))
    return next(name for name, each in TYPES.items() if each == wanted)


def _size(size: Mapping[str, Any]) -> Size:
    if isinstance(size.get("as_int"), int):
        return int(size["as_int"])
    match = SYMBOL.fullmatch(str(size.get("as_expr", {}).get("expr_str", "")))
    return match[1] if match else ANY


def _describe_script(path: Path) -> GraphDescription:
    with _Script(path) as records:
        record, code = records.described(), _text_of(records)
        arguments, results = forward_of(code, path)
        operators = Counter(CALLS.findall("\n".join(code.values())))
    inputs = [TensorDescription(name, "a tensor" if kind == "Tensor" else kind, None) for name, kind in arguments]
    outputs = [
        TensorDescription(f"result {index}", "a tensor" if kind == "Tensor" else kind, None)
        for index, kind in enumerate(results)
    ]
    if record:
        inputs, outputs = ([_recorded(each) for each in field(record, side, list)] for side in ("inputs", "outputs"))
    notes = ["a script is a program: it is opened only with --runtime torchscript"]
    if harmful := [name for name in WRITES if name in operators]:
        notes.append(f"it calls operators that open files: {', '.join(harmful)}")
    return GraphDescription(
        format="TorchScript",
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        facts={"classes": str(len(code)), "operators": most_common(operators)},
        notes=tuple(notes),
    )


def _recorded(each: Mapping[str, Any]) -> TensorDescription:
    dtype = np.dtype(field(each, "dtype", str))
    kind = next((name for name, other in TYPES.items() if other == dtype), str(dtype))
    return TensorDescription(
        field(each, "name", str), kind, tuple(ANY if a is None else int(a) for a in field(each, "shape", list))
    )


def _text_of(records: Records) -> dict[str, str]:
    """The text of a script's classes by the names of their modules; the one that is called comes first."""
    names = [name for name in records.names if name.startswith("code/") and name.endswith(".py")]
    code, room = {}, MAX_CODE_BYTES
    for name in names:
        text = records.read(name, room)
        code[name.removeprefix("code/").removesuffix(".py").replace("/", ".")] = text.decode()
        room -= len(text)
    main = ""
    for opcode, argument, _ in pickletools.genops(records.read("data.pkl", MAX_CODE_BYTES)):
        if opcode.name == "GLOBAL":  # "module class", the first is the class of the whole
            main = str(argument).partition(" ")[0]
            break
    return {name: code[name] for name in sorted(code, key=lambda name: name != main)}


def forward_of(code: Mapping[str, str], path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    """Arguments of `forward` with their types, and the types of its results, from the text of a script."""
    match = next((found for text in code.values() if (found := FORWARD.search(text))), None)
    if match is None:
        raise BundleError(f"{path} is a script without a function `forward`")
    arguments = [part.strip() for part in _parts(match["arguments"])][1:]  # the first is the module
    pairs = [(name.strip(), kind.partition("=")[0].strip()) for name, _, kind in (a.partition(":") for a in arguments)]
    result = match["result"].strip()
    inner = re.fullmatch(r"Tuple\[(.*)\]", result, re.DOTALL)
    return pairs, [part.strip() for part in _parts(inner[1])] if inner else [result]


def _parts(text: str) -> list[str]:
    """Text cut at commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
