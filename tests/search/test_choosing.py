"""The device's choice of next tokens: rules of rows are those of the host, and rows move on by themselves."""

import numpy as np
import torch

from tritone.search.device.choosing import NO_LIMIT, Chooser, Column, Specials, Texts, hashed
from tritone.search.whisper.rules import Rules

VOCAB, EOT, NO_TIMES, TIMES, CONTEXT, ROWS, MOST = 90, 60, 64, 65, 16, 8, 9
SPECIALS = Specials(eot=EOT, no_timestamps=NO_TIMES, timestamp_begin=TIMES, no_speech=63, suppress_first=(3, EOT))
CPU = torch.device("cpu")


def begun(texts: Texts, row: int, prompt: list[int], **columns: int) -> None:
    numbers = np.zeros((1, len(Column) + CONTEXT), np.int64)
    usual = {"TOKEN": prompt[0], "START": len(prompt), "GOING": 1, "MOST": MOST, "LAST": -1, "WIDTH": 1, "FIRST": row}
    for name, value in {**usual, "EARLY": NO_LIMIT, **columns}.items():
        numbers[0, Column[name]] = value
    numbers[0, len(Column) : len(Column) + len(prompt)] = prompt
    origin = torch.full((1, CONTEXT), row)
    texts.begin(torch.tensor([row]), torch.from_numpy(numbers), origin)


def test_rules_of_each_row_are_those_of_the_host() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        texts, chooser = Texts(ROWS, CONTEXT, VOCAB, CPU), Chooser(SPECIALS, VOCAB, CPU)
        rules, written = [], [list[int]() for _ in range(ROWS)]
        for row in range(ROWS):
            suppress, early, timed = random.integers(0, TIMES, 5).tolist(), int(random.integers(1, 9)), row % 2
            rules.append(
                Rules(
                    eot=EOT,
                    no_timestamps=NO_TIMES,
                    timestamp_begin=TIMES,
                    suppress=suppress,
                    suppress_first=SPECIALS.suppress_first,
                    timestamps=bool(timed),
                    max_initial_timestamp=early,
                )
            )
            begun(texts, row, [1], TIMES=timed, EARLY=early)
            texts.forbid(torch.tensor([row]), torch.tensor(suppress))
        for _ in range(MOST):
            logits = (3 * random.normal(size=(ROWS, VOCAB))).astype(np.float32)
            logits[:, TIMES:] += random.choice([-3, 0, 3])
            logits[:, EOT] -= 5
            expected = logits.copy()
            for row, tokens in enumerate(written):
                rules[row].apply(expected[row], tokens)
            np.testing.assert_array_equal(chooser.scores(torch.from_numpy(logits), texts), expected)
            going = texts.column(ROWS, Column.GOING).tolist()
            found = chooser.choose(torch.from_numpy(logits), texts, sampled=False, scored=False).numpy()
            for row in np.flatnonzero(going).tolist():
                assert found[0, row] == expected[row].argmax()
                written[row].append(int(found[0, row]))
                assert found[3, row] == (written[row][-1] == EOT or len(written[row]) == MOST)


def test_a_prompt_is_read_before_anything_is_written_and_silence_is_told_where_it_is_asked() -> None:
    texts, chooser = Texts(1, CONTEXT, VOCAB, CPU), Chooser(SPECIALS, VOCAB, CPU)
    begun(texts, 0, [7, 8, 9], QUIET=1)
    logits = torch.zeros(1, VOCAB)
    logits[0, 20] = 5.0
    read, told = [], []
    for _ in range(4):
        read.append(int(texts.column(1, Column.TOKEN)[0]))
        told.append(chooser.choose(logits, texts, sampled=False, scored=False)[:, 0].tolist())
    assert read == [7, 8, 9, 20]
    assert [each[0] for each in told] == [-1, -1, 20, 20]
    silence = float(torch.softmax(logits[0], 0)[63])
    np.testing.assert_allclose([each[2] for each in told], [0, silence, 0, 0], rtol=1e-5)


def test_samples_follow_the_probabilities_and_are_a_rows_own() -> None:
    chooser = Chooser(SPECIALS, VOCAB, CPU)
    probabilities = torch.tensor([0.5, 0.3, 0.2])
    logits = torch.full((2000, VOCAB), -50.0)
    logits[:, 5:8] = probabilities.log()
    texts = Texts(2000, CONTEXT, VOCAB, CPU)
    for row in range(2000):
        begun(texts, row, [1], HEAT=10**6, SEED=row << 20)
    before = texts.table.clone()
    found = chooser.choose(logits, texts, sampled=True, scored=False)[0]
    counts = torch.bincount(found.long(), minlength=VOCAB)[5:8] / 2000
    np.testing.assert_allclose(counts, probabilities, atol=0.04)  # three deviations of 2,000 samples
    texts.table[:1] = before[1999:]
    assert chooser.choose(logits[:1], texts, sampled=True, scored=False)[0, 0] == found[1999]


def test_hashes_of_neighbours_look_random() -> None:
    bits = hashed(torch.arange(4096).unsqueeze(1)) >> torch.arange(53) & 1
    np.testing.assert_allclose(bits.double().mean(0), 0.5, atol=0.04)
    assert len(set(hashed(torch.arange(4096)).tolist())) == 4096
