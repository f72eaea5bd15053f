"""A tenant and a node do harm in every way at once; the extender has the manifest's memory limit.

On a real kube-apiserver, with the real kube-scheduler and `gpushare serve` in a control group. The
same honest pods come twice: alone, and beside the harm. `HOSTILE_LOAD=1000` has the tenant make as
many pods of 1.3 MB; everything else is sized by that.
"""

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare_localcluster.client import HttpClient
from tests.contract.apiserver.client import MERGE, Json
from tests.e2e.binaries import needed
from tests.e2e.cage import Cage, highest
from tests.e2e.objects import COUNT, MEM, NODES, PODS
from tests.e2e.plane import Plane
from tests.e2e.world import World
from tests.integration.test_large_objects import limit_of

FAT_PODS = int(os.environ.get("HOSTILE_LOAD", "60"))
BUDGETS, LABELLED = FAT_PODS * 3 // 10, FAT_PODS // 20
FAT = 1_300_000
NODES_OF_ALL, DEVICES, UNITS = 4, 4, 16
HONEST = random.Random(7).choices((2, 3, 4, 6, 8, 10, 16), k=48)
"""Units of the honest pods: some more than there are in all."""
FILTERS = 300
MIB = 2**20
TENANT = "/api/v1/namespaces/tenant/pods"
LIAR = "liar"
JSON_BODY = {"Content-Type": "application/json"}
_INVENTORY = "gpushare.io/devices"
_AT_ONCE = 4


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    """A control plane for this test, with a large etcd."""
    quota = ("--quota-backend-bytes", str(8 * 2**30), "--auto-compaction-retention", "1m")
    target = Plane(tmp_path, needed("etcd"), needed("kube-apiserver"), etcd_flags=quota)
    target.start()
    yield target
    target.stop()


@pytest.fixture
def cage() -> Iterator[Cage]:
    target = Cage(
        "gpushare-hostile-load", limit_of("extender/second-scheduler/deployment.yaml") * 1024
    )
    yield target
    target.close()


@pytest.fixture
def world(plane: Plane, cage: Cage, tmp_path: Path) -> Iterator[World]:
    target = World(plane, tmp_path / "world", extender_prefix=cage.prefix)
    try:
        target.start()
        yield target
    finally:
        target.stop()


@dataclass
class Measured:
    """Results for honest pods: bound shares of device memory; seconds of filters."""

    bound: float
    filters: list[float]

    @property
    def p99(self) -> float:
        return p99_of(self.filters)


def p99_of(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def node_body(name: str, label: str, units: int = DEVICES * UNITS, devices: int = DEVICES) -> Json:
    amounts = {"cpu": "960", "memory": "7680Gi", "pods": "1000", MEM: str(units)}
    amounts[COUNT] = str(devices)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return {"metadata": {"name": name, "labels": {"of": label}}, "status": status}


def pod_body(name: str, units: int, **spec: object) -> Json:
    limits = {MEM: str(units)} if units else {}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0, **spec}
    return {"metadata": {"name": name}, "spec": spec}


def serve_the_honest(world: World, name: str) -> Measured:
    """Have the honest pods come, one after the other; and ask filter about one in between."""
    for at, units in enumerate(HONEST):
        body = pod_body(f"{name}-{at}", units, nodeSelector={"of": "all"})
        _wait_placed(world, world.api.create(PODS, body).body)
    bound_count = sum(
        int(pod["spec"]["containers"][0]["resources"]["limits"][MEM])
        for pod in world.api.get(PODS).body["items"]
        if pod["spec"].get("nodeName")
    )
    return Measured(bound_count / (NODES_OF_ALL * DEVICES * UNITS), filter_seconds(world, name))


def filter_seconds(world: World, name: str) -> list[float]:
    """The seconds of many filter calls for a pod of that name."""
    probe = pod_body(f"{name}-probe", 2) | {"kind": "Pod"}
    probe["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
    names = [f"n{number}" for number in range(NODES_OF_ALL)]
    request = json.dumps({"Pod": probe, "NodeNames": names}).encode()
    # In another process: the threads that do harm here would slow it down.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(time_filters, world.extender.url, request).result()


def time_filters(url: str, request: bytes) -> list[float]:
    """Call filter, and return the seconds of each call."""
    client, result = HttpClient(url), []
    for _ in range(FILTERS):
        began = time.perf_counter()
        reply = client.call("POST", "/filter", request, timeout=15.0, headers=JSON_BODY)
        result.append(time.perf_counter() - began)
        assert reply.status == 200, reply
        assert not json.loads(reply.body)["Error"], reply
        time.sleep(0.02)
    client.close()
    return result


def _wait_placed(world: World, pod: Json) -> None:
    """Return once the pod is bound, or kube-scheduler has found that it fits nowhere."""
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        collected = world.objects.get(pod)
        conditions = collected["status"].get("conditions") or ()
        if collected["spec"].get("nodeName") or any(
            c["reason"] == "Unschedulable" for c in conditions
        ):
            return
        time.sleep(0.02)
    raise AssertionError(f"nobody looked at {pod['metadata']['name']}: {world.told()}")


@dataclass
class Harm:
    """The hostile tenant and node. done: counts by action; errors: unexpected failures."""

    world: World
    done: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def pile_up(self) -> None:
        """Create large objects that stay."""
        api = self.world.api
        api.create("/api/v1/namespaces", {"metadata": {"name": "tenant"}})
        labels = {f"example.com/{at:06}": "v" * 60 for at in range(FAT // 82)}
        budget = {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}}
        policies = "/apis/policy/v1/namespaces/tenant/poddisruptionbudgets"

        def fat(at: int) -> tuple[str, Json]:
            units = 99 if at % 10 > 7 else 1
            body = pod_body(f"fat-{at}", units)
            body["spec"]["containers"][0]["args"] = ["x" * FAT]
            if at % 10 <= 4:
                body["spec"]["schedulingGates"] = [{"name": "example.com/never"}]
            elif at % 10 <= 7:
                body["spec"]["schedulerName"] = "nobody"
            return TENANT, body

        def labelled(at: int) -> tuple[str, Json]:
            body = pod_body(f"labelled-{at}", 1, nodeName=LIAR)
            body["metadata"]["labels"] = labels
            return TENANT, body

        def budgets(at: int) -> tuple[str, Json]:
            return policies, {"metadata": {"name": f"budget-{at}"}, **budget}

        makers = ((labelled, LABELLED), (budgets, BUDGETS), (fat, FAT_PODS))
        jobs = [(make, at) for make, count in makers for at in range(count)]

        def send(job: tuple[Callable[[int], tuple[str, Json]], int]) -> None:
            reply = api.call("POST", *job[0](job[1]))
            assert reply.status == 201, str(reply.body)[:500]

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(send, jobs))

    def go_on(self, *works: Callable[[int], None]) -> None:
        """Do these again and again, until `end`."""
        for work in works:
            self._threads.append(threading.Thread(target=self._again, args=(work,)))
            self._threads[-1].start()

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _again(self, work: Callable[[int], None]) -> None:
        for number in itertools.count():
            if self._ends.wait(0.05):
                return
            try:
                work(number)
                self.done[work.__name__] = number + 1
            except Exception as error:  # told by the test, whatever it is
                self.errors.append(repr(error))
                return

    def write_secrets(self, number: int) -> None:
        """Put the same load on the API server, with objects that the extender does not watch."""
        api, secrets = self.world.api, "/api/v1/namespaces/default/secrets"
        body = {"metadata": {"name": f"s-{number}"}, "stringData": {"note": "x" * 261_000}}
        self._answered(api.call("POST", secrets, body).status)
        if number >= 20:
            api.delete(f"{secrets}/s-{number - 20}", {"gracePeriodSeconds": 0})

    def _answered(self, status: int) -> None:
        """Count refusals of a busy API server; any other refusal is an error of the test."""
        self.done["too busy"] = self.done.get("too busy", 0) + (status >= 500)
        assert status < 400 or status >= 500, status

    def lie(self, number: int) -> None:
        lies: tuple[Sequence[int], ...] = (
            range(1, 65),
            [2**31 - 1],
            [],
            [1 + at % 8 for at in range(64)],
            [7, 7],
        )
        devices = [
            {"mem": units, "uuid": f"GPU-{number}-{at}"}
            for at, units in enumerate(lies[number % len(lies)])
        ]
        text = json.dumps({"v": 1, "unit": "GiB", "devices": devices})
        change = {"metadata": {"annotations": {_INVENTORY: text}}}
        self._answered(self.world.api.patch(f"{NODES}/{LIAR}", change, MERGE).status)

    def come_and_go(self, number: int) -> None:
        name = f"buyer-{number}"
        annotations = (
            {"gpushare.io/policy": "binpack"},
            {COUNT: f"many-{number}"},
            {"note": "x" * 261_000},
            {},
        )[number % 4]
        units = 99 if number % 4 == 3 else 1
        body = pod_body(name, units, nodeSelector={"of": LIAR})
        body["metadata"]["annotations"] = annotations
        body["spec"]["terminationGracePeriodSeconds"] = 10**9
        api = self.world.api
        self._answered(api.call("POST", TENANT, body).status)
        if number >= 20:
            is_gone = {"gracePeriodSeconds": 0 if number % 2 else 10**9}
            api.delete(f"{TENANT}/buyer-{number - 20}", is_gone)


@contextlib.contextmanager
def always_ready(world: World) -> Iterator[None]:
    """Fail where the extender is not ready while this lasts."""
    ends, late = threading.Event(), list[float]()

    def look() -> None:
        while not ends.wait(0.5):
            if not world.extender.ready():
                late.append(time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
    assert not late, f"not ready {len(late)} times: {world.told()}"


@pytest.mark.timeout(200 + FAT_PODS)
def test_beside_all_harm_at_once_the_honest_are_served_within_the_memory(
    world: World, cage: Cage
) -> None:
    for number in range(NODES_OF_ALL):
        world.api.create(NODES, node_body(f"n{number}", "all"))
    world.api.create(NODES, node_body(LIAR, LIAR))
    quiet = serve_the_honest(world, "quiet")
    world.objects.delete(*world.api.get(PODS).body["items"])
    bystander, harm = Harm(world), Harm(world)
    bystander.go_on(bystander.write_secrets)
    busy = filter_seconds(world, "busy")
    bystander.end()
    began = time.monotonic()
    with always_ready(world):
        harm.pile_up()
    piled = time.monotonic() - began
    # All of it comes in lists now, and no longer one by one.
    world.extender.kill()
    began = time.monotonic()
    world.extender.start()
    started = time.monotonic() - began
    harm.go_on(harm.lie, harm.come_and_go)
    try:
        with always_ready(world):
            neighbours = serve_the_honest(world, "beside")
    finally:
        harm.end()
    peak = cage.peak() if cage.holds else highest("gpushare.cli.main")
    print(
        f"{FAT_PODS} pods of 1.3 MB, {BUDGETS} budgets and {LABELLED} bound pods with labels of"
        f" 1.2 MB, made in {piled:.0f} s; ready {started:.1f} s after a start; {harm.done}.\n"
        f"filter p99 {quiet.p99 * 1e3:.1f} ms alone, {p99_of(busy) * 1e3:.1f} ms while the API"
        f" server is as busy with Secrets, {neighbours.p99 * 1e3:.1f} ms beside;"
        f" allocated {quiet.bound:.1%} alone, {neighbours.bound:.1%} beside;"
        f" {peak / MIB:.0f} MiB of {cage.limit / MIB:.0f} at most"
        f" ({'a control group' if cage.holds else 'resident'})"
    )
    assert [*harm.errors, *bystander.errors] == []
    assert min(harm.done[item] for item in ("lie", "come_and_go")) > 10
    assert peak < cage.limit
    assert abs(quiet.bound - neighbours.bound) <= 0.01
    assert neighbours.p99 < 2.0
