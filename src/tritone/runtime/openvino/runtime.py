"""OpenVINO: the graphs of onnxruntime on a CPU, where it is asked for by name."""

from tritone.runtime.runtime import Runtime

RUNTIME = Runtime(
    name="openvino",
    package=__package__,
    graph="graph:OpenVinoGraph",
    suffix=".onnx",
    needs="openvino",
    extra="openvino",
    oldest=(2025, 4),
    named=True,
    order=60,
)
