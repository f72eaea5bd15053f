"""Our choice of the node costs pods with claims next to nothing, and leaves room for more.

On a real control plane of 1.36 or later: each case runs with kube-scheduler alone and with our
choice of the node, and prints both. Seconds count from the creation of the first pod until a watch
shows the last pod bound.
"""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.claims import (
    ALONE,
    HAS_CLAIMS,
    WITH_US,
    ClaimWorld,
    memory_request,
)
from tests.e2e.objects import fresh

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="shared capacity is on from 1.36 on")

HOST, ZONE, NET = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "net.example.com"
WAYS = (ALONE, WITH_US)
_AT_ONCE = 16
Made = TypeVar("Made")


@pytest.fixture
def world(claim_world: ClaimWorld) -> Iterator[ClaimWorld]:
    """The world without nodes; each way schedules nothing until the test says so."""
    with claim_world.emptied():
        yield claim_world
    claim_world.healthy()


def at_once(make: Callable[[int], Made], count: int) -> list[Made]:
    """Make so many in threads; make is given the number of each."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(make, range(count)))


def seconds(world: ClaimWorld, make: Callable[[], Sequence[Json]]) -> float:
    """Return the seconds until the new pods are bound; then delete pods and claims."""
    begun = time.monotonic()
    pods = make()
    used = world.placed.wait(pods, world.told) - begun
    world.sound()
    world.clear_pods()
    return used


# -- pods that only kube-scheduler can place -------------------------------------------------------


def labelled(app: str) -> Json:
    return {"labelSelector": {"matchLabels": {"app": app}}}


def with_a_nic(world: ClaimWorld) -> list[Json]:
    """A GPU and a NIC that one of 20 nodes has."""
    nic = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
    return [world.pod(world.claim(memory_request(10)), world.claim(nic))]


def apart(world: ClaimWorld) -> list[Json]:
    """Ten pods that exclude each other from a node."""
    term = {**labelled("apart"), "topologyKey": HOST}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    claims = [world.claim(memory_request(10)) for _ in range(10)]
    return [world.pod(item, labels={"app": "apart"}, affinity=affinity) for item in claims]


def spread(world: ClaimWorld) -> list[Json]:
    """Twelve pods, four in each of three zones."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        **labelled("spread"),
    }
    claims = [world.claim(memory_request(10)) for _ in range(12)]
    return [
        world.pod(item, labels={"app": "spread"}, topologySpreadConstraints=[constraint])
        for item in claims
    ]


def with_host_ports(world: ClaimWorld) -> list[Json]:
    """Ten pods with the same host port."""
    pods = []
    for claim in [world.claim(memory_request(10)) for _ in range(10)]:
        container = {
            "name": "main",
            "image": "x",
            "ports": [{"containerPort": 8080, "hostPort": 8080}],
            "resources": {"claims": [{"name": claim}]},
        }
        pods.append(world.pod(claim, containers=[container]))
    return pods


def with_a_volume(world: ClaimWorld) -> list[Json]:
    """A pod with a volume on one of 20 nodes."""
    core, name = "/api/v1", fresh("volume")
    size, modes = {"storage": "1Gi"}, ["ReadWriteOnce"]
    node = world.objects.nodes()[-1]["metadata"]["name"]
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [node]}]}
    volume = {
        "capacity": size,
        "accessModes": modes,
        "local": {"path": "/data"},
        "storageClassName": "",
        "claimRef": {"namespace": "default", "name": name},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    }
    created = {"pv.kubernetes.io/bind-completed": "yes"}
    spec = {
        "accessModes": modes,
        "resources": {"requests": size},
        "volumeName": name,
        "storageClassName": "",
    }
    world.api.create(f"{core}/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
    claims = f"{core}/namespaces/default/persistentvolumeclaims"
    world.api.create(claims, {"metadata": {"name": name, "annotations": created}, "spec": spec})
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    return [world.pod(world.claim(memory_request(10)), volumes=volumes)]


CASES = [with_a_nic, apart, spread, with_host_ports, with_a_volume]


_ROUNDS = 3


@pytest.mark.timeout(600)
def test_pods_whose_node_only_kube_scheduler_can_tell_are_bound_as_fast(world: ClaimWorld) -> None:
    world.ordinary_class("nic", NET)
    for number in range(20):
        node = world.node(80, 40, labels={ZONE: f"zone-{number % 3}"})
    world.slice(node, NET, devices=[{"name": "nic-0"}])
    used: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(_ROUNDS):
        for way in WAYS:
            world.schedule(way)
            seconds(world, lambda: [world.pod(world.claim(memory_request(1)))])  # it has begun
            for case in CASES:
                for _ in range(_ROUNDS):
                    used[case.__name__, way].append(seconds(world, partial(case, world)))
    print(f"\n{'seconds, median of 9':24}{'alone':>8}{'with us':>9}{'ratio':>7}")
    for case in CASES:
        alone, our_value = (statistics.median(used[case.__name__, way]) for way in WAYS)
        print(f"{case.__name__:24}{alone:8.3f}{our_value:9.3f}{our_value / alone:7.2f}")


# -- how much is allocated -------------------------------------------------------------------------

_SIZES = (5, 8, 10, 12, 16, 20, 24, 30, 40, 60, 80)
_SEEDS = 5


def fill(world: ClaimWorld, seed: int) -> float:
    """Ask for all memory of 12 nodes, claim by claim; return the percent that is allocated."""
    chance = random.Random(seed)
    sizes = [80] * 3 + [40] * 9
    chance.shuffle(sizes)
    for gib in sizes:
        world.node(*[gib] * 4)
    total, request, values = 4 * sum(sizes), 0, 0
    while request < total:
        gib = chance.choice(_SIZES)
        count = 2 if gib <= 40 and chance.random() < 0.2 else 1
        request += gib * count
        pod = world.pod(world.claim(memory_request(gib, count=count)))
        values += gib * count * world.settled(pod)
    world.sound()
    world.clear()
    return 100 * values / total


@pytest.mark.timeout(600)
def test_more_memory_is_allocated_with_our_choice_of_the_node(world: ClaimWorld) -> None:
    percent: dict[str, list[float]] = {}
    for way in WAYS:
        world.schedule(way)
        percent[way] = [fill(world, seed) for seed in range(_SEEDS)]
    print("\npercent of 2,400 GiB allocated, by seed")
    for way, result in percent.items():
        row = "".join(f"{item:7.2f}" for item in result)
        print(f"{way:22}{row}   mean {statistics.mean(result):.2f}")
    assert statistics.mean(percent[WITH_US]) >= statistics.mean(percent[ALONE])


# -- how fast --------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_pods_a_second_on_a_hundred_nodes(world: ClaimWorld) -> None:
    """`tests/bench/claims.py` measures the same, on more nodes too."""
    at_once(lambda _: world.node(*[80] * 8), 100)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(3):
        for way in WAYS:
            world.schedule(way)
            seconds(world, lambda: [world.pod(world.claim(memory_request(1)))])
            rates[way].append(rate(world, 200))
    medians = {way: statistics.median(result) for way, result in rates.items()}
    ratio = medians[WITH_US] / medians[ALONE]
    print(f"\n{medians[ALONE]:.0f} pods/s alone, {medians[WITH_US]:.0f} with us: {ratio:.2f}")


def rate(world: ClaimWorld, count: int) -> float:
    """Return the pods bound a second; each has a claim, which is there before."""
    claims = at_once(lambda _: world.claim(memory_request(4)), count)
    return count / seconds(world, lambda: at_once(lambda at: world.pod(claims[at]), count))
