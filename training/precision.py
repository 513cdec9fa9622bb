"""Where true float32 is wanted while networks compute in TF32."""

from __future__ import annotations

import torch


class full_precision:  # noqa: N801 (used like torch.no_grad)
    """Within it, CUDA products are true float32: fbank energies and scores do not stand TF32's ten bits."""

    def __enter__(self) -> None:
        self.before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.before
