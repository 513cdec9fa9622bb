"""Memory that models of a repository need: the longest audio that fits, and what all of them take together.

ModelOptions, bundle  ->  ModelOptions with a `max_audio_s` that the memory is enough for
repository            ->  bytes of each model, of the audio on its way
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritone.backend.settings import MEMORY_MB, Settings
from tritone.bundle.bundle import Bundle
from tritone.bundle.manifest import Memory
from tritone.container import usable_cpus
from tritone.errors import OperatorError, TritoneError
from tritone.kinds import Mode, kind_of
from tritone.pipelines.graphs.budget import MB, longest_s, needed_bytes
from tritone.pipelines.graphs.choice import candidates
from tritone.pipelines.memory import measured_role
from tritone.repository.config import BYTES_PER_SAMPLE, COPIES, MAX_AUDIO_S, ModelOptions, device_of, mode_of
from tritone.repository.models import models_of
from tritone.runtime.memory import machine_bytes

TRITON_BYTES = 150 * MB  # of tritonserver itself, without requests
AUDIBLE = ("offline", "streaming", "embedding", "synthesis")
LEAST_S = 1.0  # a model that cannot take a second of audio is of no use


def fitted(options: ModelOptions, bundle: Bundle, mode: Mode) -> ModelOptions:
    """Options whose `max_audio_s` is a number that the memory of a model process is enough for, or the model's window.

    Where nobody measured what calls take, or the model runs on a GPU, or takes streams, it is 120 s or as asked for.

    Raises:
        ValueError: longer audio was asked for than there is memory for; the message has the numbers.
    """
    if windows := kind_of(bundle).served(bundle).windows:  # which are all that it takes
        window_s = windows[0] / bundle.manifest.sample_rate
        options = replace(options, max_audio_s=min(window_s, options.max_audio_s or window_s))
    memory = memory_of(bundle, options.runtime, options.precision)
    if memory is None or mode in ("streaming", "synthesis") or options.device == "gpu":
        return options
    megabytes = options.memory_mb or MEMORY_MB
    tail_s = bundle.manifest.encoder.tail_samples / bundle.manifest.sample_rate
    longest = round(longest_s(memory, megabytes) - tail_s, 1)
    if longest < LEAST_S:
        least = (needed_bytes(memory, LEAST_S + tail_s)) / MB
        raise ValueError(
            f"{bundle.path}: memory_mb is {megabytes}, but a process of this model takes {memory.process / MB:.0f} MB "
            f"before any audio. Give it at least {least:.0f} MB (--memory-mb)."
        )
    asked = options.max_audio_s
    if options.window_s is not None and 0 < options.window_s <= longest:
        return options  # longer audio is embedded in parts
    if asked is None:
        return replace(options, max_audio_s=min(MAX_AUDIO_S, longest))
    if asked > longest:
        raise ValueError(
            f"{bundle.path}: max_audio_s is {asked:g}, for which a process of this model needs "
            f"{needed_bytes(memory, asked + tail_s) / MB:.0f} MB of memory. Its budget of {megabytes} MB is enough for "
            f"{longest:g} s: build with --max-audio-s {longest:g} (clients and the gateway cut longer recordings, and "
            f"join the texts), or with --memory-mb {-(-needed_bytes(memory, asked + tail_s) // MB):.0f}."
        )
    return options


def memory_of(bundle: Bundle, runtime: str = "", precision: str = "") -> Memory | None:
    """What calls of the graph for whole inputs take that would be run, where it was measured."""
    with suppress(TritoneError):
        found = candidates(bundle, measured_role(bundle.manifest), runtime, precision)
        return found[0].memory
    return None


def memory_needs(path: str | Path) -> dict[str, int]:
    """Bytes that the models of a repository may take, by name: all their processes, and the audio on its way to them.

    Models whose memory nobody measured count nothing, nor do those on GPUs.
    """
    found: dict[str, int] = {}
    for name, config, settings, bundle in models_of(path):
        memory = memory_of(bundle, settings.runtime, settings.precision)
        mode = mode_of(config)
        if memory is None or device_of(config) == "gpu" or mode not in AUDIBLE:
            continue
        processes = sum(group.count for group in config.instance_group)
        each = _process_bytes(mode, config, settings, bundle, memory, settings.threads_of(processes))
        each += _draft_bytes(settings, bundle)
        queued_s = settings.max_queued_s if mode in ("offline", "embedding") else 0.0
        found[name] = int(processes * each + queued_s * settings.sample_rate * BYTES_PER_SAMPLE * COPIES)
    return found


def facts(path: str | Path, names: Container[str]) -> Iterator[str]:
    """A line about each of some models of a repository whose memory is known: the longest audio, and its memory."""
    needs = memory_needs(path)
    for name, config, settings, bundle in models_of(path):
        memory = memory_of(bundle, settings.runtime, settings.precision)
        if name in needs and name in names and memory is not None and mode_of(config) in ("offline", "embedding"):
            megabytes = settings.memory_mb or MEMORY_MB
            yield (
                f"{name}: up to {settings.max_audio_s:g} s of audio a request; {megabytes} MB of memory a process are "
                f"enough for {longest_s(memory, megabytes):g} s"
            )


def _process_bytes(mode: str, config: Any, settings: Settings, bundle: Bundle, memory: Memory, threads: int) -> float:
    streaming = bundle.manifest.streaming
    if mode == "streaming" and streaming is not None:
        chunk, left = streaming.chosen(settings.chunk_size, settings.left_chunks)
        each = streaming.state_bytes(chunk * max(0, left))
        return memory.process + each * (settings.max_streams + config.max_batch_size)
    if mode == "synthesis":  # a sentence at a time, the longest of which was measured
        return needed_bytes(memory, memory.network[-1].seconds)
    # More than all threads can do at once a small model never takes, whatever its budget.
    reach = needed_bytes(memory, settings.max_audio_s, min(threads, usable_cpus()))
    return min(settings.memory_of(threads, machine_bytes()) * MB, reach)


def _draft_bytes(settings: Settings, bundle: Bundle) -> float:
    """What a process takes of the draft that is beside its bundle, where that was measured."""
    if not settings.draft:
        return 0
    memory = memory_of(Bundle.open(bundle.path.parent / settings.draft), precision=settings.draft_precision)
    return 0 if memory is None else memory.process


def check_sum(needs: Mapping[str, int]) -> None:
    """Make sure that this machine, or its container, has the memory for models.

    Raises:
        OperatorError: it has not; the message has the numbers.
    """
    machine, total = machine_bytes(), total_bytes(needs)
    if machine is not None and total > machine:
        listed = ", ".join(f"{name} {needed / MB:.0f} MB" for name, needed in needs.items())
        raise OperatorError(
            f"the models may take {total / MB:.0f} MB of memory with Triton ({listed}), but this machine or its "
            f"container has {machine / MB:.0f} MB. Give models less (--memory-mb, --max-audio-s, "
            "--max-streams, --instances), or build with --overcommit for a larger machine."
        )


def total_bytes(needs: Mapping[str, int]) -> int:
    """What a server with such models takes."""
    return TRITON_BYTES + sum(needs.values()) if needs else 0
