"""Packings are valid, as low as exhaustive search finds them, and the same every time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from cuvil.schedule import packing
from cuvil.schedule.packing import Interval, Packing, pack

GAP = [(2, 3, 4), (2, 3, 7), (1, 1, 5), (2, 7, 8), (1, 5, 6)]
GAP += [(2, 6, 8), (3, 1, 2), (3, 2, 6), (2, 8, 8), (2, 7, 8)]
"""(size, first, last); at most 8 units are alive at once, and yet every packing needs 9."""


def check(buffers: Sequence[Interval], found: Packing) -> None:
    """Nothing alive overlaps; the height and the load are what they are said to be."""
    assert len(found.offsets) == len(buffers) and all(at >= 0 for at in found.offsets)
    places = sorted(zip(buffers, found.offsets), key=lambda place: place[0].first)
    for n, (a, at) in enumerate(places):
        for b, other in itertools.takewhile(lambda place, a=a: place[0].first <= a.last, places[n + 1 :]):
            assert at + a.size <= other or other + b.size <= at, (a, b)
    assert found.height == max((at + b.size for b, at in places if b.size), default=0)
    steps = {b.first for b in buffers}
    assert found.load == max(
        (sum(b.size for b in buffers if b.first <= step <= b.last) for step in steps), default=0
    )


def lowest(buffers: Sequence[Interval]) -> int:
    """The least height, by trying every offset of every buffer."""

    def fits(height: int, n: int) -> bool:
        if n == len(buffers):
            return True
        b = buffers[n]
        for at in range(height - b.size + 1):
            together = ((p, o) for p, o in placed if p.first <= b.last and b.first <= p.last)
            if all(at + b.size <= o or o + p.size <= at for p, o in together):
                placed.append((b, at))
                if fits(height, n + 1):
                    return True
                placed.pop()
        return False

    placed: list[tuple[Interval, int]] = []
    height = max(sum(b.size for b in buffers if b.first <= a.first <= b.last) for a in buffers)
    while not fits(height, 0):
        height += 1
    return height


def numbers(state: int) -> Iterator[int]:
    """A stream of pseudo-random numbers below 2**31 that no library's release changes."""
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield state >> 33


def cut(seed: int, pieces: int, height: int, width: int) -> list[Interval]:
    """A rectangle cut up at random: a packing without any hole exists."""
    stream = numbers(seed)
    whole = [(0, height, 0, width)]
    while len(whole) < pieces:
        n = next(stream) % len(whole)
        low, high, first, end = whole[n]
        if next(stream) % 2 and high - low > 1:
            at = low + 1 + next(stream) % (high - low - 1)
            whole[n : n + 1] = [(low, at, first, end), (at, high, first, end)]
        elif end - first > 1:
            at = first + 1 + next(stream) % (end - first - 1)
            whole[n : n + 1] = [(low, high, first, at), (low, high, at, end)]
    whole.sort(key=lambda piece: hashlib.sha256(repr(piece).encode()).digest())
    return [Interval(high - low, first, end - 1) for low, high, first, end in whole]


def random_buffers(seed: int, most: int) -> list[Interval]:
    rng = np.random.default_rng([seed, 77])
    buffers = []
    for _ in range(int(rng.integers(0, most))):
        first = int(rng.integers(0, 30))
        size = int(rng.integers(0, 9)) * int(rng.choice([1, 64]))
        buffers.append(Interval(size, first, first + int(rng.integers(0, 12))))
    return buffers


@pytest.mark.parametrize("seed", range(80))
def test_random_packings_are_valid(seed: int) -> None:
    buffers = random_buffers(seed, 60)
    found = pack(buffers, budget=300_000)
    check(buffers, found)
    assert found.height <= 1.1 * found.load
    assert found == pack(buffers, budget=300_000)


@pytest.mark.parametrize("seed", range(60))
def test_small_packings_are_optimal(seed: int) -> None:
    buffers = [Interval(1 + b.size % 8, b.first // 3, b.last // 3) for b in random_buffers(seed + 1000, 9)]
    if buffers:
        assert pack(buffers).height == lowest(buffers)


def test_optimum_above_the_load() -> None:
    buffers = [Interval(*b) for b in GAP]
    found = pack(buffers)
    check(buffers, found)
    assert (found.load, found.height, lowest(buffers)) == (8, 9, 9)


def test_nothing_left_to_try_is_told_from_spent() -> None:
    """The search proves at once that the load cannot be reached; a tiny budget leaves it open."""
    problem = packing._problem(sorted((Interval(*b) for b in GAP), key=lambda b: b.first))
    search = packing._Search(problem)
    assert search.run(8, 1_000_000) is None and search.work < 20_000
    assert search.run(9, 1_000_000) is not None
    assert search.run(9, 10) is None


@pytest.mark.parametrize("seed", range(12))
def test_rectangles_cut_up_are_put_together_again(seed: int) -> None:
    buffers = cut(seed, 70, 4096, 60)
    found = pack(buffers)
    check(buffers, found)
    assert found.height == found.load == 4096


def test_plans_are_the_same_on_every_machine() -> None:
    """Pinned: the search ran (no greedy order reaches the load), and went the same way."""
    buffers = cut(5, 120, 1 << 20, 90)
    greedy = pack(buffers, budget=0)
    found = pack(buffers)
    assert greedy.height > found.height == 1 << 20
    digest = hashlib.sha256(",".join(map(str, found.offsets)).encode()).hexdigest()
    assert digest[:16] == "3a1b174f0023a13b"


def test_enough_is_enough() -> None:
    buffers = cut(5, 120, 1 << 20, 90)
    greedy = pack(buffers, budget=0)
    check(buffers, greedy)
    assert pack(buffers, enough=greedy.height) == greedy
    between = pack(buffers, enough=(greedy.height + greedy.load) // 2)
    check(buffers, between)
    assert between.height <= (greedy.height + greedy.load) // 2


def test_parts_whose_lives_do_not_meet_are_packed_apart() -> None:
    """The second part is far below the load of the first, and is not searched for its own."""
    part = [Interval(*b) for b in GAP]
    tall = [Interval(20, 100, 101), Interval(5, 101, 102)]
    found = pack(part + tall)
    check(part + tall, found)
    assert found.height == found.load == 25
    twice = part + [Interval(b.size, b.first + 50, b.last + 50) for b in part]
    assert pack(twice).height == 9


def test_long_chain_is_packed() -> None:
    """3,000 buffers, some of which live longer; more points in time than one window has."""
    stream = numbers(1)
    buffers = []
    for step in range(3000):
        life = 1 if next(stream) % 5 else 1 + next(stream) % 7
        buffers.append(Interval(64 * (1 + next(stream) % 2000), step, step + life))
    found = pack(buffers)
    check(buffers, found)
    assert found.height <= 1.02 * found.load


def test_nothing_to_pack() -> None:
    assert pack([]) == Packing((), 0, 0)
    assert pack([Interval(0, 0, 5), Interval(0, 3, 3)]) == Packing((0, 0), 0, 0)
