"""A small convolutional network in PyTorch, trained on drawn shapes, and its ONNX graph.

python examples/shapes/in_torch.py FOLDER     writes FOLDER/shapes-torch.onnx and FOLDER/labels.txt
"""

import sys
import warnings
from pathlib import Path

import torch
from images import LABELS, SIZE, draw
from torch import nn
from torch.nn import functional


def main(folder: Path) -> None:
    """Train for some seconds, and write the graph."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * (SIZE // 4) ** 2, len(LABELS)),
    )
    images, labels = (torch.from_numpy(each) for each in draw(2000, seed=0))
    images = images.permute(0, 3, 1, 2)  # channels first
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(150):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    right = (model(images).argmax(dim=1) == labels).float().mean()
    print(f"loss {loss.item():.3f}, {right.item():.1%} of the training images right")

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own future
        torch.onnx.export(
            model.eval(),
            (images[:2],),
            str(folder / "shapes-torch.onnx"),
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
            opset_version=17,
            dynamo=False,
        )
    print(folder / "shapes-torch.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
