"""What sentence-transformers makes of the sentences of sentences.txt, for comparison.

pip install sentence-transformers && python expected.py   ->  expected.npy (sentences, 384) float32
"""

from pathlib import Path

import numpy as np
from export import model_folder
from sentence_transformers import SentenceTransformer

HERE = Path(__file__).parent

if __name__ == "__main__":
    sentences = (HERE / "sentences.txt").read_text(encoding="utf-8").splitlines()
    model = SentenceTransformer(str(model_folder()), device="cpu", local_files_only=True)
    np.save(HERE / "expected.npy", model.encode(sentences, normalize_embeddings=True).astype(np.float32))
