"""torch: programs of torch.export, read as data, and TorchScript, which torch loads itself; on a CPU or a GPU."""

from tritone.runtime.runtime import NativeBackend, Runtime

ZIP = b"PK\x03\x04"

RUNTIME = (
    Runtime(
        name="torch",
        package=__package__,
        graph="graph:TorchGraph",
        suffix=".pt2",
        needs="torch",
        extra="torch",
        oldest=(2, 11),
        order=20,
        describe=".files.torch_description:describe",
        starts=ZIP,
        kept="kept",
        precisions=("fp32", "fp16", "bf16"),  # there is no product of int8 here
        written_with="torch",
    ),
    Runtime(
        name="torchscript",
        package=__package__,
        graph="script:ScriptGraph",
        suffix=".ts",
        needs="torch",
        extra="torch",
        oldest=(2, 11),
        programs="scripts of torch",
        order=30,
        describe=".files.torch_description:describe",
        starts=ZIP,
        native=NativeBackend("pytorch", "pytorch_libtorch", "model.pt", numbered=True),
        precisions=("fp32", "fp16", "bf16"),
        written_with="torch",
    ),
)
