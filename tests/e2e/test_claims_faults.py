"""Pods with claims go on while the extender is away, hangs, or starts again.

On a real control plane of 1.36 or later, with the entry that we ship (`ignorable: true`).
"""

import threading
import time
from collections.abc import Iterator

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.claims import HAS_CLAIMS, WITH_US, ClaimWorld, memory_request

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="shared capacity is on from 1.36 on")


@pytest.fixture
def world(claim_world: ClaimWorld) -> Iterator[ClaimWorld]:
    claim_world.schedule(WITH_US)
    with claim_world.emptied():
        yield claim_world
        if not claim_world.extender.ready():
            claim_world.extender.kill()
            claim_world.extender.start()
    claim_world.healthy()


def small(world: ClaimWorld) -> Json:
    return world.pod(world.claim(memory_request(10)))


def test_pods_go_on_while_the_extender_is_dead(world: ClaimWorld) -> None:
    world.node(80, 24)
    world.bound(small(world))
    world.extender.kill()
    world.bound(*(small(world) for _ in range(4)))
    world.extender.start()
    world.bound(small(world))
    world.sound()


def test_pods_go_on_while_the_extender_hangs(world: ClaimWorld) -> None:
    for _ in range(2):
        world.node(80, 24)
    world.bound(small(world))
    world.extender.pause()
    try:
        # Each waits for the timeout of the call, one after the other.
        world.bound(*(small(world) for _ in range(4)))
    finally:
        world.extender.resume()
    world.bound(small(world))
    world.sound()


def test_a_burst_is_bound_while_the_extender_is_killed_and_started(world: ClaimWorld) -> None:
    for _ in range(10):
        world.node(80, 24)
    pods: list[Json] = []
    finished = threading.Event()

    def make() -> None:
        for _ in range(80):
            pods.append(small(world))
            time.sleep(0.02)  # a user's pace, so that pods come before, while and after
        finished.set()

    making = threading.Thread(target=make)
    making.start()
    for _ in range(2):
        time.sleep(0.3)
        world.extender.kill()
        world.extender.start()
    making.join()
    assert finished.is_set()
    world.bound(*pods)
    world.sound()


def test_claims_that_were_allocated_meanwhile_count_after_a_restart(world: ClaimWorld) -> None:
    tight, wide = world.node(24), world.node(80)
    world.extender.kill()
    first = world.pod(
        world.claim(memory_request(20)), nodeSelector={"kubernetes.io/hostname": tight}
    )
    world.bound(first)
    world.extender.start()
    # The best fit of an empty cluster would be the small card, which has 4 GiB left.
    second = small(world)
    world.bound(second)
    assert world.placed.node[second["metadata"]["uid"]] == wide
    third = world.pod(world.claim(memory_request(4)))
    world.bound(third)
    assert world.placed.node[third["metadata"]["uid"]] == tight
