"""Training steps as CUDA graphs: the thousands of small kernels of a step start with one call instead of one by one.

A small network's step is bound by the time that its kernels take to launch. A graph needs fixed shapes, so batches come
in a few (`dataset.batch_shapes`), and each shape and chunk size gets a graph when it is first seen.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from training.dataset import Batch

WARM_UP = 2  # steps before a graph is captured: libraries load, kernels compile

Compute = Callable[[Batch, int, int], dict[str, Tensor]]
"""A batch on the GPU, chunk size, history -> what to log. Adds to the gradients and waits for nothing."""


class GraphedStep:
    """`compute` of one batch with gradients from zero; replayed from a graph where its shape was met before."""

    def __init__(self, model: nn.Module, compute: Compute, device: torch.device) -> None:
        self.compute, self.device = compute, device
        self.gradients: list[Tensor] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
                self.gradients.append(parameter.grad)
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.captured: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Batch, dict[str, Tensor]]] = {}

    def __call__(self, batch: Batch, chunk: int, left: int) -> dict[str, Tensor]:
        key = (chunk, left, *(tuple(part.shape) for part in batch))
        if key not in self.captured:
            self.captured[key] = self._capture(batch, chunk, left)
        graph, inputs, outputs = self.captured[key]
        for place, part in zip(inputs, batch, strict=True):
            place.copy_(part, non_blocking=True)
        graph.replay()
        # The next replay writes to the same places.
        return {name: value.clone() for name, value in outputs.items()}

    def _capture(self, batch: Batch, chunk: int, left: int) -> tuple[torch.cuda.CUDAGraph, Batch, dict[str, Tensor]]:
        inputs = Batch(*(part.to(self.device) for part in batch))
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._step(inputs, chunk, left)
        torch.cuda.current_stream().wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads pin memory for the batches to come; that must not end the capture.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            outputs = self._step(inputs, chunk, left)
        return graph, inputs, outputs

    def _step(self, batch: Batch, chunk: int, left: int) -> dict[str, Tensor]:
        torch._foreach_zero_(self.gradients)
        return self.compute(batch, chunk, left)
