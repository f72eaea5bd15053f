"""Claims and slices of the largest size take bounded memory, and leave the ranking as it is.

`LARGE_CLAIMS=1000` takes so many claims, and a tenth as many slices; a minute.
"""

import json
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from gpushare.extender.claims.service import handlers_of
from gpushare.wire.dra.requests import MAX_CLAIM_TEXT
from tests.support.claim_values import DRIVER, open_claim
from tests.unit.extender.claims.ranking import RankingWorld

_CLAIMS = int(os.environ.get("LARGE_CLAIMS", "20"))
_SLICES, _DEVICES, _ATTRIBUTES = max(_CLAIMS // 10, 8), 128, 32
"""The API server takes so many devices of a slice, and attributes of a device."""
_RANKED = 40
_CARDS = {f"node-{number}": (20 + number % 5, 40, 80) for number in range(20)}

Json = dict[str, Any]


def _claim(number: int, requests: list[Json], parameters: Json) -> Json:
    opaque = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return {
        "metadata": {"namespace": "team", "name": f"large-{number}", "uid": f"large-uid-{number}"},
        "spec": {"devices": {"requests": requests, "config": [opaque]}},
    }


def _alternatives(number: int) -> Json:
    """Return the claim with the most memory for its text that is modelled."""
    amounts = {f"m{at}": f"{number}Gi" for at in range(10)}
    choices = [
        {"name": f"s{at}", "deviceClassName": "gpu", "capacity": {"requests": amounts}}
        for at in range(8)
    ]
    requests: list[Json] = []
    while len(json.dumps(requests, separators=(",", ":"))) < MAX_CLAIM_TEXT - 2500:
        requests.append({"name": f"r{len(requests)}", "firstAvailable": choices})
    return _claim(number, requests, {})


def _configured(number: int) -> Json:
    """Return a claim of a megabyte, in parameters for the driver."""
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    return _claim(number, [request], {"x": "x" * (1 << 20)})


def _selecting(number: int) -> Json:
    """Return a claim of 300 KiB, in selectors."""
    selector = {"cel": {"expression": f"'{number}' == '{'x' * 9000}'"}}
    exactly = {"deviceClassName": "gpu", "selectors": [selector]}
    return _claim(number, [{"name": f"r{at}", "exactly": exactly} for at in range(32)], {})


def _slices() -> Iterator[Json]:
    """Yield slices of one node, as many and as large as a driver can write."""
    attributes = {f"a{at}": {"string": f"value-{at}"} for at in range(_ATTRIBUTES)}
    devices = [{"name": f"d{at}", "attributes": attributes} for at in range(_DEVICES)]
    pool = {"name": "large", "generation": 1, "resourceSliceCount": _SLICES}
    for number in range(_SLICES):
        yield {
            "metadata": {"name": f"large-{number}"},
            "spec": {"driver": DRIVER, "nodeName": "large", "pool": pool, "devices": devices},
        }


@pytest.fixture(name="world")
def _world() -> RankingWorld:
    world = RankingWorld()
    world.nodes(**_CARDS)
    world.claims(*(open_claim(number, 5 + number % 30) for number in range(_RANKED)))
    return world


def _show(world: RankingWorld, collection: str, item: Json) -> None:
    """Show an object as a watch does."""
    codec, handler = handlers_of(world.books, world.ranker.shown)[collection]
    event = {"type": "ADDED", "object": item}
    handler.apply(codec.decode_event(json.dumps(event, separators=(",", ":")).encode()))


def _ranking(world: RankingWorld) -> tuple[list[list[tuple[str, float]]], float]:
    """Return the values of all nodes for each pod, and the seconds of CPU for all calls."""
    names = " ".join([*_CARDS, "large"])
    began = time.thread_time()
    rankings = [world.rank(number, names=names) for number in range(_RANKED)]
    seconds = time.thread_time() - began
    for number in range(_RANKED):
        world.ranker.pod_gone(f"pod-{number}")
    return [
        [*zip(ranking.names, ranking.values, strict=True)] for ranking in rankings if ranking
    ], seconds


@pytest.mark.parametrize(
    ("claim", "count", "most_kib"),
    [
        (_alternatives, _CLAIMS, 110),
        (_configured, max(_CLAIMS // 10, 5), 4),
        (_selecting, _CLAIMS, 4),
    ],
)
def test_large_claims_take_bounded_memory_and_change_no_ranking(
    world: RankingWorld, claim: Callable[[int], Json], count: int, most_kib: int
) -> None:
    _ranking(world)
    before, _ = _ranking(world)
    _show(world, "resourceclaims", claim(_CLAIMS))
    tracemalloc.start()
    for number in range(count):
        _show(world, "resourceclaims", claim(number))
    kept_items, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_items / count < most_kib << 10
    after, _ = _ranking(world)
    assert after == before
    assert len(before) == _RANKED


def test_the_largest_slices_of_one_node_are_not_kept_and_change_no_ranking(
    world: RankingWorld,
) -> None:
    _ranking(world)
    before, seconds_before = _ranking(world)
    tracemalloc.start()
    sizes = []
    for item in _slices():
        _show(world, "resourceslices", item)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert world.books.unmodelled_nodes() == ("large",)
    # The first slices are kept, and of all others a weight alone.
    assert max(after - size for size, after in pairwise(sizes[4:])) < 16 << 10
    assert sizes[-1] < 8 << 20
    after, seconds = _ranking(world)
    assert after == before
    assert seconds < 4 * seconds_before
