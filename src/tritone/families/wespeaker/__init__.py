"""Speaker models of WeSpeaker: ResNet, ECAPA-TDNN, CAM++, and ready-made ONNX files."""
