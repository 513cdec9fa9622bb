"""Bundles of random weights for benchmarks: drift is told, and does not keep them from being made."""

from pathlib import Path
from typing import Any

import pytest
from benchmarks.models.random_bundle import export_random, kept_bundle
from benchmarks.models.wenet import ModelSize, write_checkpoint

from tritone.errors import ExportError
from tritone.families.wenet.export import export_wenet

SIZE = ModelSize(width=16, heads=2, blocks=1, linear_units=16, kernel=3, vocab_size=40)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_random_network_that_drifts_beyond_the_limit_still_becomes_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"runtimes": ("torchscript",), "precisions": ("bf16",), "max_drift": 0.0}
    files = write_checkpoint(SIZE, tmp_path / "files")
    with pytest.raises(ExportError, match="drifts too far"):
        export_wenet(**files, output=tmp_path / "refused", **options)

    def export() -> Any:
        return export_random(export_wenet, lambda folder: write_checkpoint(SIZE, folder), tmp_path / "b", **options)

    bundle = kept_bundle(tmp_path / "b", export)
    assert bundle.artifacts("encoder")[0].precision == "bf16"
    said = capsys.readouterr().out
    assert "exporting b with random weights" in said
    assert "encoder.bf16.ts on audio, against float32: " in said
    assert "random weights: not limited" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "files", "refused"]
    kept_bundle(tmp_path / "b", lambda: pytest.fail("it is there already"))
