"""Ask served models what drawn images show, and count what is right.

python examples/shapes/ask.py --url localhost:8001 shapes-torch shapes-tensorflow
"""

import argparse

from images import LABELS, draw

import tritone


def main() -> None:
    """Ask each model about images that no training saw."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--url", default="localhost:8001")
    parser.add_argument("--count", type=int, default=200)
    chosen = parser.parse_args()
    images, labels = draw(chosen.count, seed=2)
    with tritone.Client(chosen.url) as client:
        for name in chosen.models:
            channels_first = client.model(name, kind=None).inputs["image"].dims[0] == 1
            sent = images.transpose(0, 3, 1, 2) if channels_first else images
            answers = client.infer([{"image": image} for image in sent], name, classes=1)
            said = [answer.get()["logits"][0].decode().split(":")[2] for answer in answers]
            right = sum(LABELS[label] == each for label, each in zip(labels, said, strict=True))
            print(f"{name}: {said[0]}, {said[1]}, {said[2]}, ...: {right} of {len(said)} right")


if __name__ == "__main__":
    main()
