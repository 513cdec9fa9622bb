"""onnxruntime: graphs in ONNX, on a CPU or a GPU. What Tritone runs where nothing else is asked for."""

from tritone.runtime.runtime import NativeBackend, Runtime

RUNTIME = Runtime(
    name="onnxruntime",
    package=__package__,
    graph="graph:OnnxGraph",
    suffix=".onnx",
    takes=("packed", "quiet"),
    needs="onnxruntime",
    order=10,
    describe=".files.onnx_description:describe",
    slow="fusing:slow",
    native=NativeBackend("onnxruntime", "onnxruntime_onnx", "model.onnx"),
    precisions=("fp32", "fp16", "int8"),  # it has hardly a kernel for bf16
    written_with="torch, onnx and onnxruntime",
)
