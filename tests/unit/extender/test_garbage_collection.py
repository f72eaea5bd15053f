"""Whole collections come once an hour, and not of themselves; freed memory is given back."""

import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from gpushare.extender.garbage_collection import GarbageCollection


class Cycle:
    """Objects that no reference count frees."""

    def __init__(self) -> None:
        self.itself = self


class TimedCollection(GarbageCollection):
    """A garbage collection with a clock of the test."""

    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now)

    def tick_at(self, now: float) -> None:
        self.now = now
        self.tick()


@pytest.fixture
def garbage() -> Iterator[TimedCollection]:
    before = gc.get_threshold()
    objects = TimedCollection()
    objects.start()
    yield objects
    gc.set_threshold(*before)


def old_cycle() -> weakref.ref[Cycle]:
    """One that has become garbage in the oldest generation."""
    cycle = Cycle()
    gc.collect()
    return weakref.ref(cycle)


def whole_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def test_old_garbage_is_collected_once_an_hour(garbage: TimedCollection) -> None:
    old = old_cycle()
    garbage.tick_at(100.0 + 3599)
    assert old() is not None
    garbage.tick_at(100.0 + 3600)
    assert old() is None
    old = old_cycle()
    garbage.tick_at(100.0 + 2 * 3600 - 1)
    assert old() is not None
    garbage.tick_at(100.0 + 2 * 3600)
    assert old() is None


def test_many_new_objects_bring_no_whole_collection_but_free_young_garbage(
    garbage: TimedCollection,
) -> None:
    del garbage
    old, before = old_cycle(), whole_collections()
    objects = [[number] for number in range(1_000_000)]
    young = weakref.ref(Cycle())
    objects += [[number] for number in range(200_000)]
    assert whole_collections() == before
    assert old() is not None
    assert young() is None
    assert len(objects) == 1_200_000


LARGE_REQUESTS = """
import os
from pathlib import Path
from gpushare.extender.garbage_collection import GarbageCollection

def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

def used():
    return b"x" * 20 * 2**20

now = 100.0
garbage = GarbageCollection(lambda: now)
garbage.start()
now = 130.0
garbage.tick()
used()  # freed, and from now on the C library keeps twice as much
first = resident()
blocks = [b"x" * 100_000 for _ in range(300)]
last, between = blocks[-1], blocks[150]
del blocks
kept = resident() - first
now = 159.9
garbage.tick()
early = resident() - first
now = 160.0
garbage.tick()
print(kept, early, resident() - first)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_memory_that_was_freed_is_given_back_once_a_minute() -> None:
    # In a process of its own: freed memory depends on all earlier work of the process.
    output = subprocess.run(
        [sys.executable, "-P", "-c", LARGE_REQUESTS],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        check=True,
    )
    objects, early, later = map(float, output.stdout.split())
    assert objects > 20
    assert early > 20
    assert later < 5


PAGES = """
import resource
from gpushare.extender.garbage_collection import GarbageCollection

def page():
    return b"".join([bytes(256 << 10) for _ in range(12)])

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

GarbageCollection().start()
page()
before = faults()
for _ in range(100):
    page()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_each_page_of_a_list_is_read_into_the_memory_of_the_one_before() -> None:
    output = subprocess.run(
        [sys.executable, "-P", "-c", PAGES],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        check=True,
    )
    # 150,000 without `start`: a page fault for each 4 KiB of each page.
    assert int(output.stdout) < 15_000
