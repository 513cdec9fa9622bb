"""A picture with lines of text, drawn with fonts that matplotlib brings, one of them at an angle.

python draw.py poster.png
"""

import sys
from pathlib import Path

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

LINES = (
    # text, font, size, left, top, degrees
    ("Serving models", "DejaVuSans-Bold", 44, 60, 40, 0),
    ("Tuesday 24 November, 18:30", "DejaVuSerif", 30, 60, 130, 0),
    ("Room 204, second floor", "DejaVuSans", 30, 60, 190, 0),
    ("Entry: 7.50", "STIXGeneralBol", 34, 60, 250, 0),
    ("bring a checkpoint", "DejaVuSans", 32, 420, 230, 8),
    ("Questions? Ask the front desk.", "DejaVuSans-Oblique", 34, 60, 330, 0),
)
SIZE = (860, 420)
PAPER, PEN = (246, 240, 222), (28, 36, 92)


def poster() -> Image.Image:
    """The picture: dark letters on light paper."""
    page = Image.new("RGB", SIZE, PAPER)
    for text, font, size, left, top, degrees in LINES:
        letters = ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", f"{font}.ttf")), size)
        ink = Image.new("L", (int(letters.getlength(text)) + 4, 2 * size))
        ImageDraw.Draw(ink).text((2, 0), text, fill=255, font=letters)
        ink = ink.rotate(degrees, resample=Image.Resampling.BICUBIC, expand=True)
        page.paste(PEN, (left, top), ink)
    return page


if __name__ == "__main__":
    poster().save(sys.argv[1])
