"""Ready-made ONNX graphs that take features, as folders of sherpa-onnx have them: graphs of ours made of them."""
