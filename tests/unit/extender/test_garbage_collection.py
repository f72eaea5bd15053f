"""Whole collections come once an hour, and not of themselves."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpushare.extender.garbage_collection import GarbageCollection


class Cycle:
    """What no reference count frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def garbage() -> Iterator[GarbageCollection]:
    before = gc.get_threshold()
    made = GarbageCollection()
    made.start(100.0)
    yield made
    gc.set_threshold(*before)


def old_cycle() -> weakref.ref[Cycle]:
    """One that has become garbage in the oldest generation."""
    cycle = Cycle()
    gc.collect()
    return weakref.ref(cycle)


def whole_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def test_old_garbage_is_collected_once_an_hour(garbage: GarbageCollection) -> None:
    old = old_cycle()
    garbage.tick(100.0 + 3599)
    assert old() is not None
    garbage.tick(100.0 + 3600)
    assert old() is None
    old = old_cycle()
    garbage.tick(100.0 + 2 * 3600 - 1)
    assert old() is not None
    garbage.tick(100.0 + 2 * 3600)
    assert old() is None


def test_many_new_objects_bring_no_whole_collection_but_free_young_garbage(
    garbage: GarbageCollection,
) -> None:
    del garbage
    old, before = old_cycle(), whole_collections()
    kept = [[number] for number in range(1_000_000)]
    young = weakref.ref(Cycle())
    kept += [[number] for number in range(200_000)]
    assert whole_collections() == before
    assert old() is not None
    assert young() is None
    assert len(kept) == 1_200_000
