"""Any other model: graphs of ONNX, torch.export, TorchScript and TensorRT, and Python functions."""

from tritone.families.family import Checkpoint, Family, Seen

FIRST = ("--output", "--name", "--max-batch-size", "--axes", "--labels")


def _onnx(seen: Seen) -> Checkpoint | None:
    if not seen.is_like("*.onnx"):
        return None
    beside = [each for each in seen.folder.glob(f"{seen.path.stem}*") if each.is_file()]
    return Checkpoint(
        what="a graph in ONNX", arguments={"model": seen.path}, files=sorted({seen.path, *beside}), first="model"
    )


def _torch_export(seen: Seen) -> Checkpoint | None:
    if not seen.is_exported:
        return None
    return Checkpoint(
        what="a program of torch.export", arguments={"model": seen.path}, files=[seen.path], first="model"
    )


def _torchscript(seen: Seen) -> Checkpoint | None:
    if not seen.is_script:
        return None
    return Checkpoint(
        what="a TorchScript, which is a program",
        arguments={"model": seen.path},
        files=[seen.path],
        first="model",
        program=True,
    )


FAMILY = (
    Family(
        name="onnx",
        package=__package__,
        what="Make a bundle of any ONNX graph. What is proposed of it is shown before anything is written.",
        export="onnx:export_onnx",
        recognise=_onnx,
        order=90,
        extra="",
        is_graph=True,
        command="generic:onnx",
        first=FIRST,
        examples=(
            "tritone export onnx model.onnx --output my-model",
            "tritone export onnx model.onnx --output my-model --max-batch-size 16 --dry-run",
        ),
        page="docs/models/generic.md",
    ),
    Family(
        name="python",
        package=__package__,
        what="Serve a Python function over batches: its annotations are the inputs and outputs. This imports the "
        "module.\n\nA generator answers many times. The bundle is a program: it runs only with --runtime python.",
        export="python:export_python",
        extra="",
        command="python:python",
        page="docs/models/python-models.md",
        examples=(
            "tritone export python shout.py:shout --output my-model",
            "tritone export python shout.py:shout --output my-model --include words.txt",
        ),
    ),
    Family(
        name="torch-export",
        package=__package__,
        what="Make a bundle of any program of torch.export. It is read as data, and only operators on Tritone's list "
        "run.",
        export="torch_export:export_torch_export",
        recognise=_torch_export,
        weights=("*.pt2",),
        is_graph=True,
        command="torch:torch_export",
        page="docs/models/export-torch.md",
        first=FIRST,
        examples=(
            "tritone export torch-export model.pt2 --output my-model",
            "tritone export torch-export model.pt2 --output my-model --dry-run",
        ),
    ),
    Family(
        name="torchscript",
        package=__package__,
        what="Make a bundle of any TorchScript. A script is a program: this loads and runs it, so do that with your "
        "own.\n\nA script says nothing of types and sizes: give those of its inputs with --type and --dims.",
        export="torchscript:export_torchscript",
        recognise=_torchscript,
        pickles=("*.pt", "*.ts"),
        is_graph=True,
        command="torch:torchscript",
        page="docs/models/export-torch.md",
        first=FIRST,
        examples=(
            "tritone export torchscript model.pt --output my-model",
            "tritone export torchscript model.pt --output my-model --dry-run",
        ),
    ),
    Family(
        name="tensorrt",
        package=__package__,
        what="Make a bundle of a plan that `tritone engine MODEL.onnx` has built. It runs on the GPU it was built for "
        "alone.\n\nA bundle that runs elsewhere too comes from `tritone export onnx`; `tritone engine BUNDLE` adds a "
        "plan to it.",
        export="tensorrt:export_tensorrt",
        extra="",
        command="tensorrt:tensorrt",
        page="docs/models/tensorrt.md",
        first=FIRST,
        examples=(
            "tritone export tensorrt model.plan --output my-model",
            "tritone export tensorrt model.plan --output my-model --dry-run",
        ),
    ),
)
