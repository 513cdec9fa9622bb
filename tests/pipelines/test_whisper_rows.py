"""Windows of Whisper that end make room for others without a copy, and rows stay those of their callers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from tritone.bundle.manifest import Whisper
from tritone.pipelines.whisper.network import CachedDecoder, Heard


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
        cache = np.concatenate([cache, tokens[:, None, :, None].astype(np.float32)], axis=2)
        logits = np.repeat(cross, each)[:, None] * 1000 + cache.sum(axis=(1, 2))
        return [np.repeat(logits[:, None], inputs["places"].shape[1], axis=1), cache][: len(outputs)]


def expected(window: int, tokens: list[int]) -> float:
    return 1000.0 * (window + 1) + sum(tokens)


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), windows=st.integers(1, 6), copies=st.integers(1, 3))
def test_rows_go_on_with_their_own_window_and_text(data: st.DataObject, windows: int, copies: int) -> None:
    special: Whisper = Special()  # type: ignore[assignment]
    heard = Heard(Adding(), special, {"cross": np.arange(1, windows + 1, dtype=np.float32)})  # type: ignore[arg-type]
    for _ in range(2):  # whatever an earlier decoder has moved
        chosen = data.draw(st.permutations(range(windows)))[: data.draw(st.integers(1, windows))]
        decoder: CachedDecoder = heard.decoder(chosen)
        logits = decoder.begin([[window + 1] for window in chosen], [[0]] * len(chosen))[:, 0, 0]
        texts = [(window, [window + 1]) for window in chosen]
        assert logits.tolist() == [expected(*each) for each in texts]
        sources = [place for place in range(len(texts)) for _ in range(copies)]
        while sources:
            tokens = [data.draw(st.integers(1, 9)) for _ in sources]
            texts = [
                (texts[source][0], [*texts[source][1], token]) for source, token in zip(sources, tokens, strict=True)
            ]
            assert decoder.step(tokens, sources)[:, 0].tolist() == [expected(*each) for each in texts]
            left = [each for each in dict.fromkeys(window for window, _ in texts) if data.draw(st.booleans())]
            of = {each: [row for row, (window, _) in enumerate(texts) if window == each] for each in left}
            sources = [data.draw(st.sampled_from(of[each])) for each in left for _ in range(copies)]
