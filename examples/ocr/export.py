"""The two networks of PP-OCRv4 as ONNX files, and the characters that the second writes.

python export.py FOLDER   ->  FOLDER/detector.onnx, FOLDER/recogniser.onnx, FOLDER/characters.txt

They are in the package rapidocr-onnxruntime (Apache-2.0), which need not be imported.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import onnx

PACKAGE = "rapidocr_onnxruntime"
FILES = {"detector": "ch_PP-OCRv4_det_infer.onnx", "recogniser": "ch_PP-OCRv4_rec_infer.onnx"}


def export(folder: Path) -> None:
    """Copy the networks, and write a line for each character of the recogniser, as its metadata has them."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("the package is not installed: pip install --no-deps rapidocr-onnxruntime==1.4.4")
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        shutil.copyfile(Path(spec.origin).parent / "models" / file, folder / f"{name}.onnx")
    properties = {each.key: each.value for each in onnx.load(folder / "recogniser.onnx").metadata_props}
    (folder / "characters.txt").write_text(properties["character"], encoding="utf-8")


if __name__ == "__main__":
    export(Path(sys.argv[1]))
