"""Jobs of a real Kueue (`make kueue`) are admitted by devices: the check of a real extender, and
a real kube-scheduler for the pods.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from gpushare.wire.kueue import API
from tests.e2e.binaries import needed
from tests.e2e.conftest import MakePlane
from tests.e2e.extender import doctor_findings
from tests.e2e.kueue import CHECK, CHECKED, POOL, RACK, Kueue, Queue, create
from tests.e2e.objects import fresh
from tests.e2e.plane import ADMIN
from tests.e2e.processes import Process, until
from tests.e2e.world import World, apply


class KueueWorld:
    """kube-scheduler, the extender, the Job controller and Kueue on a plane."""

    def __init__(self, world: World, kueue: Kueue) -> None:
        self.world, self.kueue, self.objects = world, kueue, world.objects
        self.controllers: Process | None = None

    def start_controllers(self) -> None:
        program = needed("kube-controller-manager")
        self.controllers = self.world.plane.start_controllers(program, "job-controller")

    def stop_controllers(self) -> None:
        if self.controllers:
            self.controllers.kill()

    def told(self) -> str:
        workloads = self.world.api.get(f"{API}/workloads").body["items"]
        statuses = {item["metadata"]["name"]: item.get("status") for item in workloads}
        return f"{statuses}\n{self.world.told()}\n{self.kueue.told()}"


@pytest.fixture(scope="module")
def shared(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KueueWorld]:
    plane = make_plane()
    kueue = Kueue(plane, tmp_path_factory.mktemp("kueue"))
    world = World(plane, tmp_path_factory.mktemp("world"), flags=("--leadership", "off", "--kueue"))
    result = KueueWorld(world, kueue)
    try:
        kueue.start()
        apply(plane, "extender/kueue")
        world.start()
        result.start_controllers()
        until(lambda: _is_active(world), result.told)
        yield result
    finally:
        result.stop_controllers()
        world.stop()
        kueue.stop()


@pytest.fixture
def kueue(shared: KueueWorld) -> Iterator[KueueWorld]:
    """The same; after the test the log of the extender is clean."""
    yield shared
    log = shared.world.extender.log
    assert not [word for word in ("Traceback", "orbidden") if word in log], log


def _is_active(world: World) -> bool:
    check = world.api.get(f"{API}/admissionchecks/{CHECK}").body
    conditions = (check.get("status") or {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Active", "True") for one in conditions)


def test_a_job_that_fits_by_sum_and_on_no_device_blocks_nobody(kueue: KueueWorld) -> None:
    queue = Queue(kueue.objects, 12)
    node = queue.node(devices=2)
    tens = kueue.objects.many([10, 10], nodeSelector={POOL: queue.name})
    for pod in tens:
        kueue.objects.lands(pod, kueue.told)
    large = queue.job(8)
    until(lambda: queue.was_refused(large), kueue.told)
    small = queue.job(6, 2)
    until(lambda: queue.is_bound(small, 2), kueue.told)
    assert not queue.condition(large, "Admitted")
    assert queue.pods(large) == []
    # Room for it: kept from the queue by Kueue for up to 5 minutes, it comes as soon as the books
    # have room.
    queue.delete(small)
    kueue.objects.delete(tens[0])
    until(lambda: queue.is_bound(large), kueue.told)
    assert queue.pods(large)[0]["spec"]["nodeName"] == node


def test_what_was_promised_is_not_promised_again(kueue: KueueWorld) -> None:
    """While no Job controller creates the pods, only the promise keeps the device; another process
    of the extender keeps it, too.
    """
    queue = Queue(kueue.objects, 64)
    queue.node()
    kueue.stop_controllers()
    first = queue.job(12)
    until(lambda: queue.condition(first, "Admitted"), kueue.told)
    kueue.world.extender.kill()
    kueue.world.extender.start()
    second = queue.job(12)
    until(lambda: queue.was_refused(second), kueue.told)
    kueue.start_controllers()
    until(lambda: queue.is_bound(first), kueue.told)
    assert not queue.condition(second, "Admitted")
    queue.delete(first)
    until(lambda: queue.is_bound(second), kueue.told)


def test_without_an_extender_a_job_waits(kueue: KueueWorld) -> None:
    queue = Queue(kueue.objects, 64)
    queue.node()
    kueue.world.extender.kill()
    job = queue.job(12)
    until(lambda: queue.condition(job, "QuotaReserved"), kueue.told)
    assert queue.check(job)["state"] == "Pending"
    assert not queue.condition(job, "Admitted")
    kueue.world.extender.start()
    until(lambda: queue.is_bound(job), kueue.told)


@pytest.mark.parametrize("level", ["kubernetes.io/hostname", RACK])
def test_a_topology_must_end_above_the_node(kueue: KueueWorld, level: str) -> None:
    """One node has 6 free on each of two devices, and is fuller than an empty one beside."""
    topology = fresh("topology")
    levels = [RACK, level] if level != RACK else [level]
    spec = {"levels": [{"nodeLabel": name} for name in levels]}
    create(kueue.world.api, "Topology", topology, spec)
    queue = Queue(kueue.objects, 64, topology=topology)
    queue.node(devices=2, rack="r")
    for pod in kueue.objects.many([10, 10], nodeSelector={POOL: queue.name}):
        kueue.objects.lands(pod, kueue.told)
    empty = queue.node(rack="r")
    job = queue.job(8, annotations={"kueue.x-k8s.io/podset-required-topology": level})
    if level == RACK:
        until(lambda: queue.is_bound(job), kueue.told)
        assert queue.pods(job)[0]["spec"]["nodeName"] == empty
    else:
        until(lambda: queue.check(job).get("retryCount", 0) >= 2, kueue.told)
        assert "above kubernetes.io/hostname" in queue.check(job)["message"]
        assert not queue.condition(job, "Admitted")
        extender = kueue.world.extender
        kubeconfig = kueue.world.plane.kubeconfig(ADMIN)
        finding = doctor_findings(kubeconfig, "--extender", extender.health_url)["kueue"]
        assert finding["level"] == "warn"
        assert queue.name in finding["what"]


def test_a_group_of_plain_pods_is_admitted_whole(kueue: KueueWorld) -> None:
    queue = Queue(kueue.objects, 64)
    queue.node(devices=2)
    ten = kueue.objects.pod(10, nodeSelector={POOL: queue.name})
    kueue.objects.lands(ten, kueue.told)
    name = fresh("group")
    labels = {"kueue.x-k8s.io/queue-name": queue.name, "kueue.x-k8s.io/pod-group-name": name}
    total = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    pods = kueue.objects.many([9, 9], labels=labels, annotations=total)
    until(lambda: queue.was_refused(pods[0]["metadata"]["name"]), kueue.told)
    kueue.objects.delete(ten)
    for pod in pods:
        kueue.objects.lands(pod, kueue.told)


def test_a_team_that_lent_gets_its_devices_back(kueue: KueueWorld) -> None:
    """Kueue preempts before it asks the check."""
    cohort = fresh("cohort")
    preemption = {"reclaimWithinCohort": "Any"}
    borrower = Queue(kueue.objects, 16, cohortName=cohort)
    lender = Queue(
        kueue.objects, 16, flavor=borrower.name, cohortName=cohort, preemption=preemption
    )
    borrower.node(devices=2)
    jobs = [borrower.job(16) for _ in range(2)]
    for job in jobs:
        until(partial(borrower.is_bound, job), kueue.told)
    own = lender.job(12)
    until(lambda: lender.is_bound(own), kueue.told)
    assert sum(borrower.is_bound(job) for job in jobs) == 1


def test_a_job_that_is_admitted_in_part_needs_devices_for_that_part(kueue: KueueWorld) -> None:
    queue = Queue(kueue.objects, 24)
    queue.node(devices=2)
    job = queue.job(12, 3, least=1)
    until(lambda: queue.is_bound(job, 2), kueue.told)


def test_a_queue_that_gets_the_check_keeps_its_running_jobs(kueue: KueueWorld) -> None:
    queue = Queue(kueue.objects, 64, checked=False)
    queue.node()
    running = queue.job(12)
    until(lambda: queue.is_bound(running), kueue.told)
    kueue.objects.patch(f"{API}/clusterqueues/{queue.name}", {"spec": CHECKED})
    until(lambda: queue.check(running).get("state") == "Ready", kueue.told)
    late = queue.job(12)
    until(lambda: queue.was_refused(late), kueue.told)
    assert queue.is_bound(running)
    assert queue.condition(running, "Admitted")
