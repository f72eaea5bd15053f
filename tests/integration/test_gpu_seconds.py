"""Over three restarts of the extender the counters of GPU-seconds add up to the integral of the
books, as Prometheus adds them up.
"""

import itertools
import math
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.gpu_seconds import GpuSeconds
from gpushare.kube.election import stamp
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.metrics import read_samples, total
from tests.integration.cluster import LEASES, Cluster
from tests.integration.conftest import StartExtender
from tests.support.waiting import poll
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import managed_resources

SCRAPE = 15
UNITS = 80
NODES = [f"n{number}" for number in range(4)]
MODELS = ("A100", "A100", "T4", "T4")
DEVICES = len(NODES) * len(MODELS)
RESTARTS = ((0.2, 40, "a"), (0.5, 3, "a"), (0.8, 25, "b"))
"""When a process ends, as a part of all time; the seconds until the next one leads; its name."""

Samples = dict[str, list[tuple[float, float]]]
"""By series, time and value of each scrape."""


@dataclass
class History:
    """A cluster in churn, and what a Prometheus reads of it."""

    begin: float
    seconds: int
    samples: Samples = field(default_factory=lambda: defaultdict(list))
    truth: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The integral of the books, in GPU-seconds by namespace."""

    def __post_init__(self) -> None:
        self._chance = random.Random(3)
        self._pods: dict[str, tuple[ObservedPod, float]] = {}
        self._free = {(node, device): UNITS for node in NODES for device in range(len(MODELS))}
        self._now = self.begin
        self._born = 0

    def play(self) -> "History":
        """Let the time pass, a second at a time."""
        restarts = [(int(part * self.seconds), gap, name) for part, gap, name in RESTARTS]
        instance, renewed = "a", math.nan
        process: tuple[ManagedResources, GpuSeconds] | None = self._process(renewed)
        leads_at = 0
        for second in range(self.seconds):
            self._now = self.begin + second
            if restarts and second == restarts[0][0]:
                _, gap, instance = restarts.pop(0)
                leads_at, process = second + gap, None
            if process is None and second >= leads_at - 2:
                process = self._process(renewed)
            resources, counters = process or (None, None)
            ended = [uid for uid, (_, end) in self._pods.items() if end <= self._now]
            for uid in ended:
                pod, end = self._pods.pop(uid)
                self._count(pod, 1.0 - (self._now - end))
                self._release(pod)
                if resources is not None:
                    resources.resources[0].ledger.pod_gone(uid)
            for pod, _ in self._pods.values():
                self._count(pod, 1.0)
            leads = counters is not None and second >= leads_at
            if leads and self._chance.random() < 0.05:
                self._bind(resources)
            if counters is not None:
                counters.tick(leads)
                renewed = self._now if leads and second % 2 == 0 else renewed
                if second % SCRAPE == 7:
                    self._scrape(counters, instance)
        return self

    def _process(self, renewed: float) -> tuple[ManagedResources, GpuSeconds]:
        resources = managed_resources(ALIYUN)
        ledger = resources.resources[0].ledger
        for name in NODES:
            ledger.node_changed(make_node(name, *(UNITS for _ in MODELS), models=MODELS))
        ledger.replace_pods([pod for pod, _ in self._pods.values()])
        now = lambda: self._now  # noqa: E731
        counters = GpuSeconds(resources, "pods", lambda: renewed, clock=now)
        return resources, counters

    def _bind(self, resources: ManagedResources | None) -> None:
        assert resources is not None
        units = self._chance.choice((10, 20, 40, 80))
        place = next((place for place, free in self._free.items() if free >= units), None)
        if place is None:
            return
        self._born += 1
        namespace = self._chance.choice(("red", "green", "blue"))
        ref = PodRef(namespace, f"web-5f-{self._born}", f"uid-{self._born}")
        pod = ObservedPod(
            ref,
            Request(units, 1),
            place[0],
            ((place[1], units),),
            labels=(("pod-template-hash", "5f"),),
            running=True,
        )
        self._pods[ref.uid] = pod, self._now + self._chance.expovariate(1 / 600) + 5
        self._free[place] -= units
        resources.resources[0].ledger.pod_changed(pod)

    def _release(self, pod: ObservedPod) -> None:
        for device, units in pod.placement or ():
            self._free[pod.node, device] += units

    def _count(self, pod: ObservedPod, seconds: float) -> None:
        self.truth[pod.ref.namespace] += seconds * pod.request.units / UNITS

    def _scrape(self, counters: GpuSeconds, instance: str) -> None:
        for sample, value in read_samples(counters.text().decode()).items():
            series = sample.replace("{", f'{{instance="{instance}",', 1)
            self.samples[series].append((self._now, value))


def increase(samples: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """What Prometheus' `increase` says of a counter over (begin, end]: docs of its functions, and
    `extrapolatedRate`, which goes on to the ends of the time where the samples come near to them.
    """
    samples = [sample for sample in samples if begin < sample[0] <= end]
    if len(samples) < 2:
        return 0.0
    pairs = list(itertools.pairwise(samples))
    gained = sum(value - last if value >= last else value for (_, last), (_, value) in pairs)
    covered = samples[-1][0] - samples[0][0]
    usual = covered / len(pairs)
    before, after = samples[0][0] - begin, end - samples[-1][0]
    before = before if before < 1.1 * usual else usual / 2
    after = after if after < 1.1 * usual else usual / 2
    if gained > 0:
        before = min(before, covered * samples[0][1] / gained)
    return gained * (covered + before + after) / covered


def increases(samples: Samples, family: str, begin: float, end: float) -> Mapping[str, float]:
    """The sum over all processes of the increases of a family, by namespace."""
    sums: dict[str, float] = defaultdict(float)
    for series, values in samples.items():
        if series.startswith(f"{family}{{"):
            _, _, after = series.partition('namespace="')
            sums[after.partition('"')[0]] += increase(values, begin, end)
    return sums


def families() -> Iterator[str]:
    yield "gpushare_namespace_gpu_seconds_total"
    yield "gpushare_workload_gpu_seconds_total"


def test_the_counters_add_up_to_the_integral_of_the_books_over_three_restarts() -> None:
    history = History(1e9, 24 * 3600).play()
    end = history.begin + history.seconds
    assert len(history.truth) == 3
    all_seconds = sum(history.truth.values())
    assert all_seconds > 0.3 * history.seconds * DEVICES
    for family in families():
        sums = increases(history.samples, family, history.begin, end)
        assert abs(sum(sums.values()) - all_seconds) < 0.001 * all_seconds
        for namespace, seconds in history.truth.items():
            assert abs(sums[namespace] - seconds) < 0.003 * seconds
    # Promised and idle are all devices, all the time.
    models = increases(history.samples, "gpushare_gpu_seconds_total", history.begin, end)
    devices = history.seconds * DEVICES
    assert abs(sum(models.values()) - devices) < 0.001 * devices


def test_a_process_that_begins_to_lead_counts_the_time_without_a_leader(
    cluster: Cluster, start_extender: StartExtender
) -> None:
    """The leader before ended a quarter of an hour ago; three devices have been idle."""
    cluster.node(devices=3)
    cluster.release_lease()
    ended = stamp(time.time() - 900)
    cluster.change(
        LEASES,
        "kube-system",
        "gpushare-extender",
        lambda lease: {**lease, "spec": {**lease["spec"], "renewTime": ended}},
    )
    extender = start_extender(leadership="lease")
    extender.wait_ready()

    def idle() -> float:
        samples = read_samples(extender.probe("/metrics").body.decode())
        return total(samples, "gpushare_gpu_seconds_total", state="idle") or 0.0

    poll(lambda: idle() > 0, "nothing is counted")
    assert 3 * 900 <= idle() < 3 * (900 + 600)
