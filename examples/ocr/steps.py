"""What stands around the two networks: a picture for the first, and texts from the boxes that it found."""

import io
from pathlib import Path
from typing import Annotated, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

import tritone
from tritone.errors import InputError

MAX_PIXELS = 40_000_000
SHORT_SIDE, LONG_SIDE = 736, 2016  # pixels of what the detector sees: the first or more, up to the second
STRIDE = 32  # sides are multiples of it
INK, FOUND = 0.3, 0.5  # of a pixel that belongs to a text, and on average of a box that is one
# Only the core of a line is marked: its box is larger by area / perimeter times this. With 1.6 spaces were lost.
GROWTH = 2.0
SMALLEST = 3  # pixels
HEIGHT, WIDTH = 48, 320  # of a line for the recogniser; longer ones are wider
CROPS = 8  # lines in a call of the recogniser

# class 0 is CTC's blank, the last one a space
CHARACTERS = ["", *Path(__file__).with_name("characters.txt").read_text(encoding="utf-8").rstrip("\n").split("\n"), " "]

Pixels = NDArray[np.uint8]
Box = NDArray[np.float32]


class Lines(NamedTuple):
    """The lines of text in a picture, from top to bottom; corners in pixels from the line's upper left, clockwise."""

    text: list[list[str]]
    score: Annotated[NDArray[np.float32], ("lines",)]
    box: Annotated[NDArray[np.float32], ("lines", 4, 2)]


def decode(picture: bytes) -> Pixels:
    """PNG, JPEG or another file of a picture as blue, green and red: (height, width, 3)."""
    try:
        with Image.open(io.BytesIO(picture)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise InputError(f"the picture is {image.width} x {image.height}; send at most {MAX_PIXELS:,} pixels")
            return np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"not a picture that can be read ({error}); send the bytes of a PNG or JPEG file") from error


def prepare(picture: list[bytes]) -> Annotated[NDArray[np.float32], (3, "height", "width")]:
    """The picture as the detector takes it."""
    pixels = decode(picture[0])
    height, width = pixels.shape[:2]
    scale = min(max(1.0, SHORT_SIDE / min(height, width)), LONG_SIDE / max(height, width))
    rows, columns = (max(STRIDE, round(side * scale / STRIDE) * STRIDE) for side in (height, width))
    return normalised(cv2.resize(pixels, (columns, rows)))[None]


def normalised(pixels: Pixels) -> NDArray[np.float32]:
    """(height, width, 3) in 0 to 255  ->  (3, height, width) in -1 to 1."""
    return np.ascontiguousarray((pixels.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1))


def boxes(ink: NDArray[np.float32]) -> list[Box]:
    """Rectangles around the parts of a map, in its pixels: `cv2.minAreaRect` of each, grown by `GROWTH`."""
    core = cv2.dilate((ink > INK).astype(np.uint8), np.ones((2, 2), np.uint8))
    outlines, _ = cv2.findContours(core, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for outline in outlines:
        middle, (width, height), angle = cv2.minAreaRect(outline)
        if min(width, height) < SMALLEST:
            continue
        inside = np.zeros(ink.shape, np.uint8)
        cv2.fillPoly(inside, [cv2.boxPoints((middle, (width, height), angle)).astype(np.int32)], 1)
        if cv2.mean(ink, inside)[0] < FOUND:
            continue
        more = width * height * GROWTH / (width + height)  # twice the distance area / perimeter
        found.append(clockwise(cv2.boxPoints((middle, (width + more, height + more), angle))))
    return found


def clockwise(corners: Box) -> Box:
    """The upper left corner first: the left two by their height, then the right two."""
    left, right = np.split(corners[np.argsort(corners[:, 0], kind="stable")], 2)
    (top_left, bottom_left), (top_right, bottom_right) = (side[np.argsort(side[:, 1])] for side in (left, right))
    return np.stack([top_left, top_right, bottom_right, bottom_left]).astype(np.float32)


def sides(box: Box) -> tuple[int, int]:
    """Width and height in whole pixels."""
    return int(np.linalg.norm(box[1] - box[0])), int(np.linalg.norm(box[3] - box[0]))


def crop(pixels: Pixels, box: Box) -> NDArray[np.float32]:
    """A line of text, upright, `HEIGHT` pixels high, for the recogniser: (3, HEIGHT, a multiple of STRIDE)."""
    width, height = sides(box)
    flat = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    line = cv2.warpPerspective(
        pixels, cv2.getPerspectiveTransform(box, flat), (width, height), cv2.INTER_CUBIC, cv2.BORDER_REPLICATE
    )
    if height >= 1.5 * width:  # letters one above the other, or a line that stands
        line = np.rot90(line)
    columns = max(1, int(np.ceil(HEIGHT * line.shape[1] / line.shape[0])))
    # widths of few sizes, so that lines share calls, and by the line alone, so that its text depends on no other
    found = np.zeros((3, HEIGHT, max(WIDTH, -(-columns // STRIDE) * STRIDE)), np.float32)
    found[:, :, :columns] = normalised(cv2.resize(line, (columns, HEIGHT)))
    return found


def read(
    picture: list[bytes], ink: Annotated[NDArray[np.float32], (1, "height", "width")], models: tritone.Models
) -> Lines:
    """The texts in a picture, of which the detector made a map."""
    pixels, text_map = decode(picture[0]), ink[0, 0]
    size = np.array(pixels.shape[1::-1], np.float32)
    scale = size / np.array(text_map.shape[::-1], np.float32)
    lines = [line for box in boxes(text_map) if min(sides(line := np.clip(box * scale, 0, size - 1))) > SMALLEST]
    lines.sort(key=lambda line: (line[:, 1].mean(), line[0, 0]))
    crops = [crop(pixels, line) for line in lines]
    texts, scores = [""] * len(lines), np.zeros(len(lines), np.float32)
    for width in sorted({each.shape[2] for each in crops}):
        places = [place for place, each in enumerate(crops) if each.shape[2] == width]
        for start in range(0, len(places), CROPS):
            some = places[start : start + CROPS]
            classes = next(iter(models["recogniser"](x=np.stack([crops[place] for place in some])).values()))
            for place, row in zip(some, classes, strict=True):
                texts[place], scores[place] = spell(row)
    kept = [place for place, text in enumerate(texts) if text.strip()]
    corners = np.stack(lines)[kept] if kept else np.zeros((0, 4, 2), np.float32)
    return Lines([[texts[place] for place in kept]], scores[kept][None], corners[None])


def spell(probabilities: NDArray[np.float32]) -> tuple[str, float]:
    """Probabilities (steps, classes) as the best path's text, and the mean probability of its characters."""
    best = probabilities.argmax(axis=1)
    new = (best != 0) & (best != np.concatenate([[0], best[:-1]]))
    text = "".join(CHARACTERS[each] for each in best[new])
    return text, float(probabilities.max(axis=1)[new].mean()) if text else 0.0
