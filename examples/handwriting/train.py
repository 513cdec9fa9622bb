"""Train the classifier of letters and write it as ONNX: about a minute on two cores.

glyphs of 13 fonts, distorted  ->  handwriting.onnx: image (batch, 128, 128, 3) in [0, 1] -> logits (batch, 26)

python examples/handwriting/train.py --output handwriting.onnx
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from glyphs import FONTS, HELD_OUT, LETTERS, SIZE, glyph
from torch import Tensor, nn
from torch.nn import functional as F

BATCH = 64
SMALL = 64  # pixels that the network sees of 128


class Letters(nn.Module):
    """Colours to grey, half the pixels, four convolutions, one product."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 16, 32, 40, 56)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(widths[-1] * (SMALL // 16) ** 2, len(LETTERS))

    def forward(self, image: Tensor) -> Tensor:
        return self.logits(F.avg_pool2d(image.mean(dim=3).unsqueeze(1), SIZE // SMALL))

    def logits(self, grey: Tensor) -> Tensor:
        """Of grey images (batch, 1, 64, 64). Ink may be dark or light: what counts is how far it is from the paper."""
        paper = grey[:, :, :2, :2].mean(dim=(2, 3), keepdim=True)
        return self.out(self.layers((grey - paper).abs()).flatten(1))


def distorted(ink: Tensor, random: torch.Generator) -> Tensor:
    """Grey images (batch, 1, 64, 64) of ink (batch, 64, 64): turned, sheared, bent, thicker or thinner, with noise."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(shape or (rows,), generator=random) * (high - low) + low

    rows = len(ink)
    angle, shear = uniform(-0.3, 0.3), uniform(-0.3, 0.3)
    across, along = uniform(0.75, 1.5), uniform(0.75, 1.5)
    cos, sin = angle.cos(), angle.sin()
    affine = torch.stack(
        [
            torch.stack([across * cos, across * (shear - sin), uniform(-0.2, 0.2)], dim=1),
            torch.stack([along * sin, along * cos, uniform(-0.2, 0.2)], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(affine, [rows, 1, SMALL, SMALL], align_corners=False)
    bends = F.interpolate(uniform(-0.12, 0.12, rows, 2, 5, 5), (SMALL, SMALL), mode="bilinear", align_corners=True)
    bent = F.grid_sample(ink[:, None], grid + bends.permute(0, 2, 3, 1), align_corners=False)
    weight = uniform(-0.5, 1.0, rows, 1, 1, 1)
    other = torch.where(weight > 0, F.max_pool2d(bent, 3, 1, 1), -F.max_pool2d(-bent, 3, 1, 1))
    shaped = bent + weight.abs() * (other - bent)
    paper, pen = uniform(0.6, 1.0, rows, 1, 1, 1), uniform(0.0, 0.4, rows, 1, 1, 1)
    image = paper * (1 - shaped) + pen * shaped + 0.02 * torch.randn(shaped.shape, generator=random)
    flipped = torch.rand((rows, 1, 1, 1), generator=random) < 0.25  # light on dark
    return torch.where(flipped, 1 - image, image).clamp(0, 1)


def drawn(fonts: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """Glyphs of all letters in some fonts, and which letters they are."""
    ink = [glyph(letter, font) for font in fonts for letter in LETTERS]
    return F.avg_pool2d(torch.from_numpy(np.stack(ink)), SIZE // SMALL), torch.arange(len(LETTERS)).repeat(len(fonts))


def main() -> None:
    """Train, measure on fonts that training never saw, and write the graph."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "handwriting.onnx")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="other numbers sum in another order")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(chosen.seed)
    random = torch.Generator().manual_seed(chosen.seed)
    model = Letters()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, chosen.steps)
    ink, letters = drawn(FONTS)
    for step in range(chosen.steps):
        rows = torch.randint(len(ink), (BATCH,), generator=random)
        loss = F.cross_entropy(model.logits(distorted(ink[rows], random)), letters[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    model.eval()
    ink, letters = drawn(HELD_OUT)
    with torch.no_grad():
        plain = model.logits(1 - 0.8 * ink[:, None]).argmax(1) == letters
        rows = torch.arange(len(ink)).repeat(25)
        bent = [model.logits(distorted(ink[part], random)).argmax(1) == letters[part] for part in rows.split(BATCH)]
    figures = {"plain": float(plain.float().mean()), "distorted": float(torch.cat(bent).float().mean())}
    print(json.dumps({"held_out_fonts": HELD_OUT, "images": [len(ink), len(rows)], "accuracy": figures}))
    torch.onnx.export(
        model,
        (torch.rand(2, SIZE, SIZE, 3),),
        str(chosen.output),
        input_names=["image"],
        output_names=["logits"],
        dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=17,
        dynamo=False,
    )
    print(f"{chosen.output}: {chosen.output.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
