"""Real kubelets give each container the GPU and the amount of its claim, even under faults.

Needs a kubelet and a kube-scheduler of 1.36 or later.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.claims import HAS_CLAIMS
from tests.e2e.cluster import pod
from tests.e2e.conftest import MakePlane
from tests.e2e.dra import BothWorlds
from tests.e2e.given import given
from tests.e2e.processes import until

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="shared capacity is on from 1.36 on")
LARGE, SMALL = "GPU-dra-0", "GPU-dra-1"


@pytest.fixture(scope="module")
def shared(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothWorlds]:
    both = BothWorlds(make_plane(), tmp_path_factory.mktemp)
    try:
        both.start()
        yield both
    finally:
        both.stop()
    assert "Traceback" not in both.driver.log


@pytest.fixture
def both(shared: BothWorlds) -> Iterator[BothWorlds]:
    yield shared
    shared.clear()


def test_each_container_has_the_gpu_and_the_amount_of_its_claim(both: BothWorlds) -> None:
    names = [both.claim(gib) for gib in (50, 12, 22)]
    pods = []
    for name in names:
        pods.append(both.with_claim(name))
        both.run(pods[-1])
    large, second, small = pods
    sharing = both.with_claim(names[0])
    both.run(sharing)
    assert [both.has(item) for item in pods] == [both.allocated(name) for name in names]
    # kube-scheduler takes the first device that fits.
    assert both.has(large) == both.has(sharing) == (LARGE, 50)
    assert both.has(second) == (LARGE, 12)
    assert both.has(small) == (SMALL, 22)
    assert all(not both.container(item, "main-1").cdi_devices for item in pods)
    # A shared claim stays prepared until the end of the last pod.
    both.delete(large)
    both.delete(small)
    until(lambda: both.driver.given() == {LARGE: 62}, both.told)
    assert both.has(sharing) == (LARGE, 50)
    both.delete(sharing)
    until(lambda: both.driver.given() == {LARGE: 12}, both.told)


def test_a_kubelet_that_starts_again_wipes_the_slices_and_nothing_is_given_twice(
    both: BothWorlds,
) -> None:
    survivors = [both.with_claim(both.claim(gib)) for gib in (60, 20)]
    both.run(*survivors)
    before, created = both.driver.slices(), both.node.created()
    both.node.kill_kubelet()
    both.node.start_kubelet()
    until(lambda: both.driver.slices() not in ([], before), both.told)
    fits, too_much = both.with_claim(both.claim(20)), both.with_claim(both.claim(21))
    both.run(fits)
    assert both.has(fits) == (SMALL, 20)
    both.waits(too_much, "cannot allocate all claims")
    assert [both.phase(item) for item in survivors] == ["Running"] * 2
    assert both.node.created()[: len(created)] == created
    assert both.driver.given() == {LARGE: 80, SMALL: 20}


def test_what_happens_while_the_driver_is_dead_is_made_up_for(both: BothWorlds) -> None:
    survivors, is_gone = (both.with_claim(both.claim(gib)) for gib in (60, 20))
    both.run(survivors, is_gone)
    both.driver.kill()
    both.objects.delete(is_gone)
    # The slice still exists, so the device is allocated; the kubelet cannot start the pod.
    bound_pod = both.with_claim(both.claim(24))
    both.objects.lands(bound_pod)
    assert both.driver.given() == {LARGE: 80}
    both.driver.start()
    both.run(bound_pod)
    until(lambda: both.driver.given() == {LARGE: 60, SMALL: 24}, both.told)
    assert (both.has(survivors), both.has(bound_pod)) == ((LARGE, 60), (SMALL, 24))


def test_no_slice_comes_back_before_the_driver_does(both: BothWorlds) -> None:
    survivors = both.with_claim(both.claim(60))
    both.run(survivors)
    both.driver.kill()
    both.node.kill_kubelet()
    both.node.start_kubelet()
    until(lambda: not both.driver.slices(), both.told)
    late = both.with_claim(both.claim(20))
    both.waits(late, "cannot allocate all claims")
    both.driver.start()
    both.run(late)
    assert (both.has(survivors), both.has(late)) == ((LARGE, 60), (LARGE, 20))
    assert both.driver.given() == {LARGE: 80}


def test_pods_of_both_worlds_have_the_right_gpu_each(both: BothWorlds) -> None:
    claims = [both.claim(gib) for gib in (5, 7, 9, 30, 3, 11)]
    by_claim, by_annotation = [], []
    for number, name in enumerate(claims):
        by_claim.append(both.with_claim(name))
        by_annotation.append(both.create(pod(2 + number % 3, 1)))
    both.run(*by_claim, *by_annotation)
    assert [both.has(item) for item in by_claim] == [both.allocated(name) for name in claims]
    assert {both.objects.node_of(item) for item in by_claim} == {both.node.name}
    assert {both.objects.node_of(item) for item in by_annotation} == {both.other.name}
    result = given(map(both.objects.get, by_annotation), both.other.created())
    assert (result.right, result.wrong, result.nothing) == (12, [], [])
    used = both.driver.given()
    assert sum(used.values()) == 65
    assert all(used.get(uuid, 0) <= gib for uuid, gib in both.driver.sizes.items())


def test_a_node_with_both_takes_no_new_pods_by_annotation(both: BothWorlds) -> None:
    survivors = both.with_claim(both.claim(10))
    both.run(survivors)
    both.second_plugin.start()
    place = {"kubernetes.io/hostname": both.node.name}
    with_claim = both.with_claim(both.claim(10))
    by_annotation = both.create(pod(2), nodeSelector=place)
    both.waits(by_annotation, "no shared GPU")
    both.run(with_claim)
    assert both.phase(survivors) == "Running"
    assert both.driver.given() == {LARGE: 20}
