"""Whether the kernels of this package can be used on a device: Triton compiles there, and they find what is right.

device  ->  modules `kernels`, `whole` and `ctc_kernels`, or None
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tritone.search.device import attending, ctc
from tritone.search.device.bonuses import BonusTables
from tritone.search.device.choosing import Chooser, Column, Specials, Texts
from tritone.search.device.greedy import GreedyLoop
from tritone.search.device.modified_beam import SOURCE_BITS, ModifiedBeamLoop
from tritone.search.device.stateful import FIRST, StatefulLoop, StateRows
from tritone.search.device.stateful_beam import StatefulBeamLoop, beam_rows
from tritone.search.device.stateless import StatelessWeights

LOGGER = logging.getLogger(__name__)
ROWS, FRAMES, VOCAB, BEAM = 3, 16, 37, 4  # of the searches that are tried
MANY_FRAMES = 700  # of greedy tokens, which a kernel looks at in parts
OTHER_TOKENS = "its kernel for the next tokens of texts finds others than torch"
DIM = 64  # of the network that whole searches are tried with


@cache
def kernels_for(device: str) -> Any:
    """The module `kernels` if its kernels can be used on a device; else None, with a word in the log.

    They are tried on small searches and compared with the operators of torch, which takes a second or two.
    """
    if torch.device(device).type != "cuda":
        return None
    return tried("kernels", fault_of, device, "transducers are searched in more, smaller steps")


@cache
def stateful_for(device: str) -> Any:
    """The module `kernels` if its kernel for predictors with a state can be used; otherwise as `kernels_for`."""
    if torch.device(device).type != "cuda":
        return None
    return tried("kernels", fault_of_stateful, device, "transducers with a state are searched in more, smaller steps")


@cache
def stateful_beams_for(device: str) -> Any:
    """The module `kernels` if its kernel for beams of such predictors can be used; otherwise as `kernels_for`."""
    if torch.device(device).type != "cuda":
        return None
    return tried("kernels", fault_of_stateful_beams, device, "beams with a state are searched in more, smaller steps")


@cache
def attending_for(device: str) -> Any:
    """The module `attending_kernels` if its kernels can be used; otherwise as `kernels_for`."""
    if torch.device(device).type != "cuda":
        return None
    with torch.cuda.device(device):
        return tried("attending_kernels", fault_of_attending, device, "what texts attend to is copied for each token")


@cache
def beams_for(device: str) -> Any:
    """The same module if its kernel for tokens can be used where there are beams; otherwise as `kernels_for`."""
    if attending_for(device) is None:
        return None
    with torch.cuda.device(device):
        return tried("attending_kernels", fault_of_beams, device, "beams are chosen by torch's operators")


@cache
def whole_for(device: str) -> Any:
    """The module `whole` if its kernels can be used on a device; otherwise as `kernels_for`."""
    if kernels_for(device) is None:
        return None
    return tried("whole", fault_of_whole, device, "transducers are searched in steps, not as one kernel")


@cache
def greedy_tokens_for(device: str) -> Any:
    """The module `ctc_kernels` if its kernel for greedy tokens can be used; otherwise as `kernels_for`."""
    if torch.device(device).type != "cuda":
        return None
    return tried("ctc_kernels", fault_of_greedy, device, "greedy tokens are found by torch")


@cache
def top_tokens_for(device: str) -> Any:
    """The module `ctc_kernels` if its kernel for the best tokens can be used; otherwise as `kernels_for`."""
    if torch.device(device).type != "cuda":
        return None
    return tried("ctc_kernels", fault_of_tops, device, "the best tokens of frames are found by torch")


def tried(name: str, fault_of: Callable[[Any, str], str], device: str, otherwise: str) -> Any:
    """A module of this package if it has no fault on a device; else None, and the log says what is done instead."""
    try:
        module = import_module(f"{__package__}.{name}")
        fault = fault_of(module, device)
    except Exception as error:  # whatever the compiler, a program of the machine, or a small GPU lacks
        fault = str(error)
    if fault:
        LOGGER.warning("%s, because Triton cannot be used: %s", otherwise, fault)
        return None
    return module


def greedy_block(best_tokens: Tensor, best_log_probs: Tensor, num_frames: Tensor, blank_id: int) -> Tensor:
    """As `ctc.greedy_block`, by a kernel where there is one for it."""
    made: Any = greedy_tokens_for(str(best_tokens.device)) or ctc
    found: Tensor = made.greedy_block(best_tokens, best_log_probs, num_frames, blank_id)
    return found


def greedy_block_of(log_probs: Tensor, num_frames: Tensor, blank_id: int) -> Tensor:
    """The same for log-probabilities (batch, frames, vocab), of whose largest the first counts."""
    best = log_probs.max(-1)
    return greedy_block(best.indices, best.values, num_frames, blank_id)


def top_block(log_probs: Tensor, k: int) -> Tensor:
    """As `ctc.top_block`, by a kernel where there is one for it."""
    kernels = top_tokens_for(str(log_probs.device))
    made: Any = kernels if kernels is not None and kernels.takes(log_probs, k) else ctc
    found: Tensor = made.top_block(log_probs, k)
    return found


def fault_of_greedy(ctc_kernels: Any, device: str) -> str:
    """What the kernel for greedy tokens finds otherwise than torch does; empty if nothing."""
    random = torch.Generator().manual_seed(0)
    frames = MANY_FRAMES
    ids = torch.randint(3, (ROWS, frames), generator=random).to(device)
    log_probs = -torch.rand(ROWS, frames, generator=random).to(device)
    num_frames = torch.tensor([frames, 0, frames - 5]).to(device)
    with torch.inference_mode():
        expected, found = (_said(made.greedy_block(ids, log_probs, num_frames, 0)) for made in (ctc, ctc_kernels))
    return "" if torch.equal(expected, found) else "its kernel for greedy tokens finds others than torch"


def _said(block: Tensor) -> Tensor:
    """A greedy block with nothing in what is never read."""
    ended = (block[:, :1] == ctc.UNUSED).cumsum(-1) > 0
    return torch.where(ended, ctc.UNUSED, block)


def fault_of_tops(top_tokens: Any, device: str) -> str:
    """What the kernel for the best tokens finds otherwise than torch does; empty if nothing."""
    random = torch.Generator().manual_seed(0)
    # Many are equal, some are ruled out, and rows have more columns than are looked at.
    log_probs = -torch.randint(12, (ROWS, FRAMES, 8 * VOCAB), generator=random).to(device).to(torch.float32)
    log_probs[log_probs == -3.0] = -torch.inf
    log_probs = log_probs[:, :, : 7 * VOCAB]
    with torch.inference_mode():
        expected, found = (made.top_block(log_probs, BEAM) for made in (ctc, top_tokens))
    return "" if torch.equal(expected, found) else "its kernel for the best tokens finds others than torch"


def fault_of_whole(whole: Any, device: str) -> str:
    """What the kernels for whole searches find otherwise than torch does; empty if nothing."""
    weights, frames, lengths, penalties = _stateless(device)
    common: dict[str, Any] = {"blank_id": 0, "unk_id": 2}
    stepped = {**common, "predict": weights.predict, "join": weights.join, "vocab_size": VOCAB, "device": device}
    with torch.inference_mode():
        contexts = torch.tensor([-1, 0], device=device).repeat(ROWS, 1)
        greedy = [
            _greedy_of(made, 2 * FRAMES, frames, lengths, contexts, penalties)
            for made in (
                GreedyLoop(**stepped, max_symbols=2, penalised=True),
                whole.WholeGreedy(weights, **common, max_symbols=2),
            )
        ]
        beam = [
            _beam_of(made, frames, lengths, penalties)
            for made in (
                ModifiedBeamLoop(**stepped, beam=BEAM, start=(-1, 0), penalised=True),
                whole.WholeBeam(weights, **common, beam=BEAM, start=(-1, 0)),
            )
        ]
    for name, (expected, found) in {"greedy": greedy, "modified beam": beam}.items():
        if not all(torch.allclose(a, b, atol=5e-2) for a, b in zip(expected, found, strict=True)):
            return f"its kernel for {name} search finds other tokens than torch"
    return ""


def fault_of(kernels: Any, device: str) -> str:
    """What the kernels find otherwise than torch does; empty if nothing."""
    with torch.inference_mode():
        greedy, beam = ([search(made, device) for made in (None, kernels)] for search in (_greedy, _beam))
    for name, (expected, found) in {"greedy": greedy, "modified beam": beam}.items():
        if not all(torch.allclose(a, b, atol=1e-3) for a, b in zip(expected, found, strict=True)):
            return f"its kernel for {name} search finds other tokens than torch"
    return ""


def fault_of_stateful(kernels: Any, device: str) -> str:
    """What the kernel for predictors with a state finds otherwise than torch does; empty if nothing."""
    with torch.inference_mode():
        for durations in ((), (0, 1, 2, 5, 0)):
            expected, found = (_stateful(made, device, durations) for made in (None, kernels))
            if not all(torch.allclose(a, b, atol=1e-3) for a, b in zip(expected, found, strict=True)):
                return "its kernel for predictors with a state finds other tokens than torch"
    return ""


def fault_of_stateful_beams(kernels: Any, device: str) -> str:
    """What the kernel for beams of predictors with a state finds otherwise than torch does; empty if nothing."""
    with torch.inference_mode():
        for durations in ((), (0, 1, 2, 5, 0)):  # with hotwords in one of them: each form is compiled, which takes long
            expected, found = (_stateful_beams(made, device, durations, bool(durations)) for made in (None, kernels))
            if not all(torch.allclose(a, b, atol=1e-3) for a, b in zip(expected, found, strict=True)):
                return "its kernel for beams with a state finds other hypotheses than torch"
    return ""


def fault_of_attending(kernels: Any, device: str) -> str:
    """What the kernels for steps of texts find otherwise than torch does; empty if nothing."""
    random = torch.Generator().manual_seed(0)
    heads, context = 3, 150

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(device)

    norm = attending.Affine(drawn(heads * DIM), drawn(heads * DIM))
    qkv, query = drawn(ROWS, 3 * heads * DIM), drawn(ROWS, heads * DIM)
    own, audio = drawn(2, ROWS + 1, heads, context, DIM), drawn(2, ROWS, heads, MANY_FRAMES, DIM)
    origin = torch.full((ROWS, context), ROWS, device=device)  # a row that nobody writes to
    position, window = torch.tensor([context - 1, 0, 70], device=device), torch.tensor([2, 0, 1], device=device)
    with torch.inference_mode():
        for rows in (ROWS, 1):
            both: Any = (attending.Plain(), own.clone()), (kernels, own.clone())
            expected, found = (
                (
                    made.attend_text(qkv[:rows], *kept, origin, position[:rows]),
                    *kept,
                    made.attend_audio(query[:rows], *audio, window[:rows]),
                    *made.added_norm(query[:rows], query[:rows] ** 2, norm),
                    made.activation(query[:rows].clone()),
                )
                for made, kept in both
            )
            if not all(torch.allclose(a, b, atol=1e-4) for a, b in zip(expected, found, strict=True)):
                return "its kernels for attention of single tokens find something else than torch"
        return "" if _chooses_alike(kernels, device, 1) else OTHER_TOKENS


def fault_of_beams(kernels: Any, device: str) -> str:
    """What the kernel for the next tokens finds otherwise than torch does where there are beams; empty if nothing."""
    with torch.inference_mode():
        return "" if _chooses_alike(kernels, device, 3) else OTHER_TOKENS


def _chooses_alike(kernels: Any, device: str, beam: int) -> bool:
    """Whether the kernel for the next tokens takes those that torch takes, with all their numbers."""
    random = torch.Generator().manual_seed(0)
    vocab, times, rows, place = 9000, 8000, 8, torch.device(device)
    specials = Specials(eot=7000, no_timestamps=7999, timestamp_begin=times, no_speech=7900, suppress_first=(3, 7000))
    chooser = Chooser(specials, vocab, place)
    both = [Texts(rows, 16, vocab, place) for _ in range(2)]
    each = torch.arange(rows)
    numbers = torch.zeros(rows, len(Column) + 16, dtype=torch.int64)
    numbers[:, len(Column) :] = torch.arange(16)
    numbers[:, Column.START], numbers[:, Column.MOST], numbers[:, Column.GOING] = 1 + each % 3, 9, 1
    numbers[:, Column.TIMES], numbers[:, Column.EARLY], numbers[:, Column.LAST] = each % 2, 50, -1
    numbers[:, Column.HEAT], numbers[:, Column.SEED], numbers[:, Column.FIRST] = each // 4 * 600_000, each << 40, each
    if beam > 1:  # of the last rows, greedy and sampled ones before them
        numbers[-beam:, Column.FIRST], numbers[-beam:, Column.WIDTH] = rows - beam, beam
        numbers[-beam:, [Column.HEAT, Column.SEED]] = 0
        numbers[-beam:, Column.START] = numbers[-1, Column.START]
    for texts in both:
        texts.begin(each.to(place), numbers.to(place), torch.zeros(rows, 16, dtype=torch.int64, device=place))
        texts.forbid(each.to(place), torch.arange(0, times, 7, device=place))
    for _ in range(10):
        logits = (3 * torch.randn(rows, vocab, generator=random)).to(place)
        logits[:, times:] += 2
        expected = chooser.choose(logits, both[0], sampled=True, told=True, beam=beam)
        found = kernels.choose(chooser, logits, both[1], sampled=True, beam=beam)
        same = zip((expected[0], both[0].table, both[0].origin), (found[0], both[1].table, both[1].origin), strict=True)
        if not all(torch.equal(a, b) for a, b in same):
            return False
        if not torch.allclose(expected[:4], found[:4], atol=1e-3):
            return False
        if not torch.allclose(expected[5:, -beam:], found[5:, -beam:], atol=1e-3):
            return False
    return True


def _greedy(kernels: Any, device: str) -> list[Tensor]:
    """Counts, tokens and their log-probabilities, contexts."""
    network, frames, lengths, penalties = _network(device)
    loop = GreedyLoop(**network, max_symbols=2, penalised=True, kernels=kernels)
    contexts = torch.tensor([-1, 0], device=device).repeat(ROWS, 1)
    return _greedy_of(loop, 2 * FRAMES, frames, lengths, contexts, penalties)


def _greedy_of(loop: Any, steps: int, *inputs: Tensor) -> list[Tensor]:
    state = loop.start(*inputs)
    for _ in range(steps):
        state = loop.step(*state)
    counts, tokens, log_probs, last = loop.finish(*state)
    inside = torch.arange(tokens.shape[-1], device=counts.device) < counts.unsqueeze(1)
    return [counts, tokens * inside, torch.where(inside, log_probs, 0.0), last]


def _stateful(kernels: Any, device: str, durations: tuple[int, ...]) -> list[Tensor]:
    """Tokens and where each row is after them, log-probabilities, and the predictor's states."""
    network, first, frames, lengths, penalties = _remembering(device, durations)
    rows = StateRows(first, device)
    rows.grow()
    loop = StatefulLoop(**network, rows=rows, max_symbols=3, penalised=True, kernels=kernels)
    each = torch.arange(ROWS, device=device)
    numbers = torch.stack([lengths, each % 2, each % 2, 1 + each, FIRST + 0 * each, FIRST + 1 + each], 1)
    state = loop.start(frames, numbers, penalties)
    for _ in range(4 * FRAMES):
        state = loop.step(*state)
    (block,) = loop.finish(*state)
    inside = torch.arange(block.shape[2], device=device) <= block[:, :1, 0]
    block = torch.where(inside.unsqueeze(1), block, 0)
    return [block[:, :3], block[:, 3, 1:].contiguous().view(torch.float32), *rows.tensors]


def _stateful_beams(kernels: Any, device: str, durations: tuple[int, ...], scored: bool) -> list[Tensor]:
    """Scores and hashes of the hypotheses, and of each its extension in each frame, and the states after all of it."""
    network, first, frames, lengths, penalties = _remembering(device, durations)
    rows, tables = beam_rows(first[0], first[1:], BEAM, device), None
    rows.grow()
    if scored:
        tables = BonusTables(VOCAB, (0,), device)
        random = torch.Generator().manual_seed(1)
        tables.gains[:3] = torch.randn(3, VOCAB, generator=random)
        tables.gains[:, 0] = 0
        tables.following[:3] = torch.randint(3, (3, VOCAB), generator=random)
    loop = StatefulBeamLoop(**network, rows=rows, tables=tables, beam=BEAM, penalised=True, kernels=kernels)
    each = torch.arange(ROWS, device=device)
    numbers = torch.stack([each % 2, lengths - 1, FIRST + 0 * each, FIRST + 1 + each, each % 2, 0 * each - 1], 1)
    state = loop.start(frames, numbers, penalties, 1 + each.to(torch.float64) / 4)
    for _ in range(FRAMES + 1):
        state = loop.step(*state)
    scores, hashes, found = loop.finish(*state)
    lives, told = scores[:, :1] > -torch.inf, []
    rank = torch.arange(BEAM, device=device).expand(ROWS, -1)
    for frame in reversed(range(FRAMES)):
        inside = (frame < numbers[:, 1:2]) & lives[:, 0]
        pointer, span, said = (found[:, part, frame].gather(1, rank) for part in range(3))
        speaks = (pointer >> SOURCE_BITS > 0) & inside
        told += [torch.where(speaks, pointer >> SOURCE_BITS, 0), torch.where(speaks, span, 0)]
        told += [torch.where(speaks, said.view(torch.float32), 0.0)]
        rank = torch.where(inside, (pointer & (2**SOURCE_BITS - 1)).to(torch.int64), rank)
    kept = [
        torch.where(lives.view(ROWS, BEAM, *[1] * (each.dim() - 2)), each[FIRST + 1 : FIRST + 1 + ROWS], 0)
        for each in rows.tensors
    ]
    return [torch.where(lives, scores, 0.0), torch.where(lives[:, 0], hashes, 0), *told, *kept]


def _remembering(device: str, durations: tuple[int, ...]) -> tuple[dict[str, Any], list[Any], Tensor, Tensor, Tensor]:
    """A network with a state and what its searches start with, frames and their numbers, blank penalties."""
    _, frames, lengths, penalties = _network(device)
    random = torch.Generator().manual_seed(0)
    tables = torch.randn(11, VOCAB + len(durations), generator=random).to(device)
    frames = torch.cat([frames, 2 * torch.randn(*frames.shape[:2], len(durations), generator=random).to(device)], 2)
    frames[0, 3], frames[2, 2, 1:5], frames[2, :, 3] = torch.nan, torch.inf, -torch.inf

    def predict(tokens: Tensor, stirred: Tensor) -> list[Tensor]:
        after = (3 * stirred + tokens[:, 0] + 1) % len(tables)
        return [tables[after], after]

    network = {
        "predict": predict,
        "join": lambda chosen, vectors: chosen + vectors,
        "vocab_size": VOCAB,
        "blank_id": 0,
        "durations": durations,
        "device": device,
    }
    return network, [tables[:1].cpu().numpy(), np.zeros(1, np.int64)], frames, lengths, penalties


def _beam(kernels: Any, device: str) -> list[Tensor]:
    """Log-probabilities, and of the best hypotheses the tokens of each frame and their log-probabilities."""
    network, frames, lengths, penalties = _network(device)
    loop = ModifiedBeamLoop(**network, beam=BEAM, start=(-1, 0), penalised=True, kernels=kernels)
    return _beam_of(loop, frames, lengths, penalties)


def _beam_of(loop: Any, frames: Tensor, lengths: Tensor, penalties: Tensor) -> list[Tensor]:
    state = loop.start(frames, lengths, penalties, torch.ones(ROWS, dtype=torch.float64, device=frames.device))
    for _ in range(FRAMES + 1):
        state = loop.step(*state)
    totals, pointers, log_probs = loop.finish(*state)
    rank, said = totals.argmax(1, keepdim=True), []
    for frame in reversed(range(FRAMES)):
        pointer = pointers[:, frame].gather(1, rank)
        said += [pointer >> SOURCE_BITS, log_probs[:, frame].gather(1, rank) * (pointer >> SOURCE_BITS > 0)]
        rank = (pointer & (2**SOURCE_BITS - 1)).to(torch.int64)
    return [totals, *said]


def _network(device: str) -> tuple[dict[str, Any], Tensor, Tensor, Tensor]:
    """A network of tables, frames and their numbers, blank penalties."""
    random = torch.Generator().manual_seed(0)
    tables = torch.randn(2, VOCAB + 1, VOCAB, generator=random).to(device)
    frames = (2 * torch.randn(ROWS, FRAMES, VOCAB, generator=random)).to(device)
    frames[:, :, 0] += 3.0
    network = {
        "predict": lambda contexts: tables[0][contexts[:, 0]] + tables[1][contexts[:, 1]],
        "join": lambda chosen, vectors: chosen + vectors,
        "vocab_size": VOCAB,
        "blank_id": 0,
        "unk_id": 2,
        "device": device,
    }
    return network, frames, torch.tensor([FRAMES, 0, FRAMES - 5]).to(device), torch.tensor([0.0, 1.0, -1.0]).to(device)


def _stateless(device: str) -> tuple[StatelessWeights, Tensor, Tensor, Tensor]:
    """A stateless network whose best tokens are far from the next ones, frames and their numbers, blank penalties."""
    random = torch.Generator().manual_seed(0)

    def drawn(*shape: int, by: float = 1.0) -> Tensor:
        return (by * torch.randn(*shape, generator=random)).to(device)

    half = torch.bfloat16
    weights = StatelessWeights(
        tables=drawn(2, VOCAB, DIM),
        projection=drawn(DIM, DIM, by=0.1).to(half),
        projection_bias=drawn(DIM).to(half),
        output=drawn(DIM, VOCAB, by=4.0).to(half),
        output_bias=drawn(VOCAB).to(half),
    )
    weights.output_bias[0] += 40
    lengths = torch.tensor([FRAMES, 0, FRAMES - 5]).to(device)
    return weights, drawn(ROWS, FRAMES, DIM, by=3.0), lengths, torch.tensor([0.0, 1.0, -1.0]).to(device)
