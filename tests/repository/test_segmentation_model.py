"""A served segmentation network takes a window at most, and its warm-up is no longer."""

from pathlib import Path

import numpy as np

from toy_segmentation import FIELD, FRAME, SAMPLE_RATE, write_toy_segmentation
from tritone.bundle import Bundle
from tritone.kinds import kind_of
from tritone.kinds.segmentation.pipeline import SegmentationPipeline
from tritone.repository import build_repository
from tritone.repository.config import from_text, parameter


def test_a_served_network_takes_windows_and_answers_with_frames_of_speakers(tmp_path: Path) -> None:
    bundle = write_toy_segmentation(tmp_path / "toy")
    build_repository([bundle], tmp_path / "models", names=["segmentation"])
    config = from_text((tmp_path / "models" / "segmentation" / "config.pbtxt").read_text(encoding="utf-8"))
    assert float(parameter(config, "max_audio_s")) == 1.0
    assert list(config.model_warmup[0].inputs["WAV"].dims) == [SAMPLE_RATE]
    assert [(each.name, list(each.dims)) for each in config.output] == [("PROBABILITIES", [-1, 3])]
    opened = Bundle.open(bundle)
    window = np.zeros(SAMPLE_RATE, np.float32)
    window[4000:8000] = 0.5
    answer = kind_of(opened).answer(SegmentationPipeline(opened).segment([window, window[:4000]]), ("PROBABILITIES",))
    (talks, nobody) = answer["PROBABILITIES"]
    first, last = (4000 - FIELD) // FRAME + 1, 8000 // FRAME - 1
    assert np.flatnonzero(talks[:, 0]).tolist() == list(range(first, last + 1))
    assert not talks[:, 1:].any()
    assert not nobody.any()
