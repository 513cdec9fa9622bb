"""Capital letters drawn with the fonts that matplotlib brings.

"K", a font  ->  (128, 128) ink in [0, 1]

python examples/handwriting/glyphs.py TRITON --output letters     # letters/1-T.png, letters/2-R.png, ...
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

SIZE = 128  # pixels
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Oblique"),
    *(
        "DejaVuSerif",
        "DejaVuSerif-Bold",
        "STIXGeneral",
        "STIXGeneralBol",
        "STIXGeneralItalic",
        "cmr10",
        "cmss10",
        "cmtt10",
    ),
)
HELD_OUT = ("DejaVuSerif-Italic", "STIXGeneralBolIta", "cmb10")
"""Fonts that training never sees."""

Ink = npt.NDArray[np.float32]


def glyph(letter: str, font: str, height: int = 84) -> Ink:
    """A letter in the middle of a square, `height` pixels of font size."""
    path = Path(get_data_path(), "fonts", "ttf", f"{font}.ttf")
    image = Image.new("L", (SIZE, SIZE))
    draw = ImageDraw.Draw(image)
    draw.text((SIZE // 2, SIZE // 2), letter, fill=255, font=ImageFont.truetype(path, height), anchor="mm")
    return np.asarray(image, np.float32) / 255


def main() -> None:
    """Draw a word, a dark letter on light paper in each file."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("word", help="capital letters")
    parser.add_argument("--font", default=HELD_OUT[0])
    parser.add_argument("--output", type=Path, default=Path("letters"))
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    for place, letter in enumerate(chosen.word, start=1):
        ink = glyph(letter, chosen.font)[..., None]
        paper, pen = np.array([246, 240, 222]), np.array([28, 36, 92])
        pixels = np.rint(paper * (1 - ink) + pen * ink).astype(np.uint8)
        Image.fromarray(pixels).save(chosen.output / f"{place}-{letter}.png")


if __name__ == "__main__":
    main()
