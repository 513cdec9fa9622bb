"""Shards given out to workers that finish in any order or die: every recording has one result, in order if asked."""

import random

import pytest

from tritone.result import EmbeddingResult
from tritone.systems.shards import MAX_BLOCKS, MAX_DEATHS, Shard, Shards

BLOCK = 4


def shards_of(count: int, *, workers: int = 2, ordered: bool = True) -> Shards[EmbeddingResult]:
    paths = [f"{number}.wav" for number in range(count)]
    return Shards(paths, block=BLOCK, workers=workers, result=EmbeddingResult, ordered=ordered)


def results_of(shard: Shard, block: int) -> list[EmbeddingResult]:
    """What a worker returns for a block of a shard: indices count from the shard's start."""
    paths = shard.paths[block * BLOCK : (block + 1) * BLOCK]
    return [EmbeddingResult(index=block * BLOCK + place, source=path) for place, path in enumerate(paths)]


def run(
    shards: Shards[EmbeddingResult], *, workers: int, death_rate: float, seed: int
) -> tuple[list[int], list[Shard]]:
    """Simulate workers that each return one block at a time, and die now and then; returns indices and all shards."""
    chance = random.Random(seed)
    given: list[Shard] = []
    doing: dict[int, tuple[Shard, int]] = {}
    indices: list[int] = []
    while shards.left:
        for worker in range(workers):
            if worker not in doing and (shard := shards.take()) is not None:
                given.append(shard)
                doing[worker] = shard, 0
        worker = chance.choice(sorted(doing))
        shard, block = doing.pop(worker)
        if chance.random() < death_rate:
            ready = shards.lost(shard, "told to")
        else:
            ready = shards.done(shard, results_of(shard, block))
            if (block + 1) * BLOCK < len(shard.paths):
                doing[worker] = shard, block + 1
        assert all(each.source == f"{each.index}.wav" for each in ready)
        indices += [each.index for each in ready]
    return indices, given


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("death_rate", [0.0, 0.2, 0.6])
def test_every_recording_has_one_result_however_workers_die(ordered: bool, death_rate: float):
    for seed in range(5):
        indices, _ = run(shards_of(203, workers=3, ordered=ordered), workers=3, death_rate=death_rate, seed=seed)
        assert sorted(indices) == list(range(203))
        assert not ordered or indices == list(range(203))


def test_shards_begin_at_multiples_of_a_block_and_become_smaller():
    _, given = run(shards_of(400), workers=2, death_rate=0.3, seed=1)
    whole = [shard for shard in given if len(shard.paths) > 1]
    assert all(shard.start % BLOCK == 0 for shard in whole)
    assert all(len(shard.paths) % BLOCK == 0 for shard in whole if shard.start + len(shard.paths) < 400)
    sizes = [len(shard.paths) for shard in run(shards_of(400), workers=2, death_rate=0, seed=1)[1]]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (MAX_BLOCKS * BLOCK, BLOCK)


def test_what_a_dead_worker_had_returned_is_not_computed_again():
    shards = shards_of(64, workers=1)
    shard = shards.take()
    assert len(shard.paths) > 2 * BLOCK
    assert [each.index for each in shards.done(shard, results_of(shard, 0))] == [0, 1, 2, 3]
    assert shards.lost(shard, "gone") == []
    assert shards.take() == Shard(BLOCK, shard.paths[BLOCK : 2 * BLOCK])
    assert shards.take() == Shard(2 * BLOCK, shard.paths[2 * BLOCK :])


def test_a_recording_that_kills_its_workers_fails_and_its_neighbours_do_not():
    shards = shards_of(12, workers=1)
    found: dict[int, EmbeddingResult] = {}
    deaths = 0
    while shards.left:
        shard = shards.take()
        if "6.wav" in shard.paths[:BLOCK]:
            deaths += 1
            ready = shards.lost(shard, "out of memory")
        else:
            ready = shards.done(shard, results_of(shard, 0))
            if len(shard.paths) > BLOCK:
                ready += shards.lost(shard, "a stroke of fate")
        found.update((each.index, each) for each in ready)
    assert deaths == 2 * MAX_DEATHS  # in its block, then alone
    assert [index for index in sorted(found) if found[index].error is not None] == [6]
    assert "6.wav: 3 workers died while they computed it, the last one so: out of memory" in str(found[6].error)


def test_results_do_not_run_away_from_a_shard_that_is_late():
    shards = shards_of(100_000, workers=1)
    late = shards.take()
    taken = 0
    while (shard := shards.take()) is not None:
        taken += len(shard.paths)
        for block in range(len(shard.paths) // BLOCK):
            assert shards.done(shard, results_of(shard, block)) == []
    assert taken < 10 * MAX_BLOCKS * BLOCK
    assert shards.done(late, results_of(late, 0))
