"""Windows of Whisper come and go at every step, some tokens are undone, and rows stay those of their callers."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.pipelines.whisper.network import CachedDecoder, Windows


class Special:
    heads, head_dim, eot = 1, 1, 0
    cross_names, self_names = ("cross",), ("self",)


class Adding:
    """Stands for a decoder: its cache is all tokens of a row, and its one logit a number of window and tokens."""

    def __call__(self, inputs: dict[str, np.ndarray], outputs: list[str]) -> list[np.ndarray]:
        tokens, cross, cache = inputs["tokens"], inputs["cross"], inputs["self"]
        assert cross.flags.c_contiguous
        each = len(tokens) // len(cross)
        assert each * len(cross) == len(tokens), "equally many rows of each window, side by side"
        past, cache = cache.shape[2], np.concatenate([cache, tokens[:, None, :, None].astype(np.float32)], axis=2)
        there = np.arange(cache.shape[2]) >= inputs["padding"][:, None]
        sums = np.take_along_axis((cache[:, 0, :, 0] * there).cumsum(axis=1), past + inputs["places"], axis=1)
        return [(np.repeat(cross[:, 0], each)[:, None] * 1000 + sums)[:, :, None], cache][: len(outputs)]


def expected(window: int, tokens: list[int]) -> float:
    return 1000.0 * (window + 1) + sum(tokens)


def put(windows: Windows, names: list[int]) -> None:
    """Add windows, of which each knows its name; some are longer than others."""
    length = 1 + max(names) % 3
    windows.put(names, {"cross": np.array([[name + 1.0] * length for name in names], np.float32)})


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), copies=st.integers(1, 3), most=st.integers(1, 6))
def test_rows_go_on_with_their_own_window_and_text(data: st.DataObject, copies: int, most: int) -> None:
    special: Any = Special()
    graph: Any = Adding()
    windows = Windows(most)
    decoders = [CachedDecoder(graph, special, windows) for _ in range(2)]  # they take turns
    texts: list[list[tuple[int, list[int]]]] = [[], []]  # of each decoder: the window and the tokens of each row
    sources: list[list[int]] = [[], []]
    names = iter(range(100))
    for turn in range(data.draw(st.integers(1, 12))):
        decoder, own, going = decoders[turn % 2], texts[turn % 2], sources[turn % 2]
        room = most - len(windows)
        if room and (new := [next(names) for _ in range(data.draw(st.integers(0, room)))]):
            put(windows, new)
            prompts = [[data.draw(st.integers(1, 9)) for _ in range(data.draw(st.integers(1, 4)))] for _ in new]
            logits = decoder.begin(new, prompts, [[len(prompt) - 1] for prompt in prompts])[:, 0, 0]
            assert logits.tolist() == [expected(*each) for each in zip(new, prompts, strict=True)]
            going += [len(own) + place for place in range(len(new)) for _ in range(copies)]
            own += zip(new, prompts, strict=True)
        if not going:
            continue
        wrong = [data.draw(st.integers(0, len(own[source][1]) - 1)) for source in going]
        before = [own[source][1][: len(own[source][1]) - undone] for source, undone in zip(going, wrong, strict=True)]
        tokens = [data.draw(st.lists(st.integers(1, 9), max_size=3)) for _ in going]
        tokens[0] = tokens[0] or [1]
        found = decoder.step(tokens, going, wrong)
        for row, (source, kept, new_tokens) in enumerate(zip(going, before, tokens, strict=True)):
            for place in range(len(new_tokens)):
                assert found[row, place, 0] == expected(own[source][0], [*kept, *new_tokens[: place + 1]])
        rows = zip(going, before, tokens, strict=True)
        own[:] = [(own[source][0], [*kept, *new_tokens]) for source, kept, new_tokens in rows]
        left = []
        for window in dict.fromkeys(window for window, _ in own):
            if data.draw(st.booleans()):
                left.append(window)
            else:
                windows.drop(window)
        of = {each: [row for row, (window, _) in enumerate(own) if window == each] for each in left}
        going[:] = [data.draw(st.sampled_from(of[each])) for each in left for _ in range(copies)]
