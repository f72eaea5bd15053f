"""From the original's pods to ours by the chart, to its next revision, and back, while pods come.

The test plays a kubelet: a pod of the chart's Deployment is two processes with the arguments in the
object. The strategy is Recreate, so old processes end before new ones start.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.chart import CHART, call
from tests.e2e.conftest import MakePair, MakePlane
from tests.e2e.objects import Objects
from tests.e2e.pair import Pair, moved
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import PATIENCE, until
from tests.e2e.test_installed import OURS, no_right_was_missed, placed, second_scheduler
from tests.e2e.test_taking_over import load

_BURST = 80
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
_ASSUMED = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"

pytestmark = pytest.mark.timeout(300)


class ChartRelease:
    """The chart's release, and the pair of processes of the Deployment's pod."""

    def __init__(self, plane: Plane, make_pair: MakePair) -> None:
        self._plane, self._make_pair = plane, make_pair
        self._objects = plane.objects()

    def helm(self, *arguments: str | Path) -> None:
        path = ("--namespace", "kube-system", "--kubeconfig", self._plane.kubeconfig(ADMIN))
        finished = call(*arguments, *path)
        assert finished.returncode == 0, finished.stderr

    def pod(self) -> tuple[Pair, list[str]]:
        """The current pod of the Deployment, not started, and the extender's flags."""
        text, access, flags = second_scheduler(self._plane)
        return self._make_pair(moved(text), access, flags=flags), flags

    def exchange(self, old: Pair) -> tuple[Pair, list[str], float]:
        """The new pair, the flags, and the seconds without scheduling; binds are running."""
        objects = self._objects
        new, flags = self.pod()
        before = bound(objects)
        with ThreadPoolExecutor(1) as pool:
            arrivals = pool.submit(objects.many, [1] * _BURST, schedulerName=OURS)
            until(lambda: bound(objects) > before, lambda: f"none is bound; {old.told()}")
            old.end()
            # Release the Leases: otherwise the new pair would wait for their expiry.
            assert self._holders() == {"gpushare-extender": "", "gpushare-scheduler": ""}
            bound_by_old = bound(objects) - before
            begin(new)
            pods = arrivals.result()
        assert bound_by_old < _BURST, "all were bound before the old processes ended"
        no_right_was_missed(old)
        for pod in pods:
            objects.lands(pod, new.told)
        times = sorted(
            int(objects.get(pod)["metadata"]["annotations"][_ASSUMED]) / 1e9 for pod in pods
        )
        return new, flags, max(after - before for before, after in itertools.pairwise(times))

    def _holders(self) -> dict[str, str]:
        """The holders of the two Leases."""
        leases = {
            item["metadata"]["name"]: item for item in self._plane.api().get(_LEASES).body["items"]
        }
        names = ("gpushare-extender", "gpushare-scheduler")
        return {name: leases[name]["spec"].get("holderIdentity") or "" for name in names}


def begin(pair: Pair) -> None:
    """Start both at once, as the containers of a pod."""
    pair.extender.launch()
    pair.start_scheduler()


def bound(objects: Objects) -> int:
    return sum("nodeName" in pod["spec"] for pod in objects.pods())


def versions(objects: Objects) -> dict[str, str]:
    """The resource version of each bound pod, by uid."""
    return {
        pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"]
        for pod in objects.pods()
        if "nodeName" in pod["spec"]
    }


def test_pods_run_on_from_the_original_to_the_next_revision_and_back(
    make_plane: MakePlane, make_pair: MakePair
) -> None:
    # A separate plane: helm installs nothing over the rights that other tests leave behind.
    plane = make_plane()
    objects, release = plane.objects(), ChartRelease(plane, make_pair)
    load(objects, "one-node")
    for _ in range(2):
        objects.node(devices=4, units=64)
    originals = versions(objects)
    release.helm("install", "gpushare", CHART)
    try:
        pair, first_flags = release.pod()
        begin(pair)
        placed(objects, 3, pair.told, schedulerName=OURS)
        running = versions(objects)
        assert originals.items() <= running.items()

        release.helm("upgrade", "gpushare", CHART, "--set", "extender.args={--policy=binpack}")
        pair, flags, forth = release.exchange(pair)
        assert flags == [*first_flags, "--policy=binpack"]

        release.helm("rollback", "gpushare", "1")
        pair, flags, back = release.exchange(pair)
        assert flags == first_flags
        no_right_was_missed(pair)
    finally:
        release.helm("uninstall", "gpushare")
    # No running pod was written or ended, and no device is overcommitted.
    assert running.items() <= versions(objects).items()
    assert pair.extender.inspect() == objects.inspect()
    objects.sound()
    alarms = [line for line in pair.extender.metrics().splitlines() if "alarms_total{" in line]
    assert alarms
    assert all(line.endswith(" 0.0") for line in alarms), alarms
    print(f"seconds without scheduling: upgrade {forth:.1f}, rollback {back:.1f}")
    assert max(forth, back) < PATIENCE
