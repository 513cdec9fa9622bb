"""TensorRT: engines, each for one version of it and one kind of GPU, which lie in torch's memory."""

from tritone.runtime.runtime import NativeBackend, Runtime

RUNTIME = Runtime(
    name="tensorrt",
    package=__package__,
    graph="graph:TensorRtGraph",
    suffix=".plan",
    takes=("engine",),
    needs="torch",
    extra="torch",
    oldest=(2, 11),
    on_cpu=False,
    programs="engines",
    order=40,
    opaque="an engine of TensorRT, which shows nothing until TensorRT has loaded it",
    native=NativeBackend("tensorrt", "tensorrt_plan", "model.plan"),
)
