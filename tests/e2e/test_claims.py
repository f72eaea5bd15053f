"""What we write into claims holds on a real control plane, and the fence keeps others off.

The allocator here is the test itself, with the account's own rights. Needs a kube-scheduler of 1.36
or later.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpushare.core.model import PodRef
from gpushare.wire.dra.claims import FINALIZER, given_devices
from gpushare.wire.dra.writes import release, settlement
from tests.e2e.binaries import RELEASE
from tests.e2e.claims import CLAIMS, CLASS, DRIVER, ClaimWorld, ref
from tests.e2e.conftest import MakePlane
from tests.e2e.processes import until
from tests.e2e.world import apply

GIB = 2**30
_FIRST = 36
"""The first minor release with all that is used here switched on."""

pytestmark = pytest.mark.skipif(
    int(RELEASE.split(".")[1]) < _FIRST, reason=f"claims are allocated from outside from 1.{_FIRST}"
)


@pytest.fixture(scope="module")
def shared(make_plane: MakePlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClaimWorld]:
    world = ClaimWorld(make_plane(), tmp_path_factory.mktemp("claims"))
    yield world
    world.stop()


@pytest.fixture
def claims(shared: ClaimWorld) -> Iterator[ClaimWorld]:
    yield shared
    shared.clear()


def test_three_claims_are_bound_where_first_fit_leaves_one_waiting(claims: ClaimWorld) -> None:
    other = "other.example.com"
    claims.node(80, 24, driver=other)
    ordinary = claims.device_class(other)
    small = [claims.pod(claims.claim(10, ordinary)) for _ in range(2)]
    claims.bound(small)
    large = claims.pod(claims.claim(80, ordinary))
    claims.objects.refusal(large, "cannot allocate all claims")

    node = claims.node(80, 24)
    names = [claims.claim(gib) for gib in (10, 10, 80)]
    pods = [claims.pod(name) for name in names]
    for name, pod, number in zip(names, pods, (1, 1, 0), strict=True):
        claims.allocate(name, pod, claims.card(node, number))
    claims.bound(pods)
    assert {claims.objects.node_of(pod) for pod in pods} == {node}
    assert not claims.objects.node_of(large)


def test_an_allocation_is_read_back_as_it_was_written(claims: ClaimWorld) -> None:
    node = claims.node(80, 24, 80)
    name = claims.claim(10, count=2)
    pod = claims.pod(name)
    claims.allocate(name, pod, claims.card(node, 0), claims.card(node, 2))
    found = claims.read(name)
    assert found.status
    assert found.status.allocation
    assert found.status.allocation.allocation_timestamp
    given = given_devices(found.status.allocation)
    assert [(each.key.device, each.memory) for each in given] == [
        ("gpu-0", 10 * GIB),
        ("gpu-2", 10 * GIB),
    ]
    claims.bound([pod])


def test_requests_of_a_claim_have_devices_of_their_own(claims: ClaimWorld) -> None:
    node = claims.node(80, 24)
    name = claims.claim(10, more=60)
    pod = claims.pod(name)
    claims.allocate(name, pod, claims.card(node, 0), claims.card(node, 1))
    status = claims.read(name).status
    assert status
    assert status.allocation
    given = given_devices(status.allocation)
    assert [(each.key.device, each.memory) for each in given] == [
        ("gpu-0", 60 * GIB),
        ("gpu-1", 10 * GIB),
    ]
    results = (status.allocation.devices and status.allocation.devices.results) or ()
    assert [each.request for each in results] == ["more", "gpu"]
    claims.bound([pod])


def test_of_two_allocators_one_wins_and_neither_meets_a_claim_made_anew(
    claims: ClaimWorld,
) -> None:
    node = claims.node(80, 24)
    name = claims.claim(10)
    pod = claims.pod(name, scheduler="none")
    read = claims.read(name)
    first, second = (claims.allocation(read, pod, claims.card(node, number)) for number in (0, 1))
    assert claims.patch(name, first, "/status").status == 200
    assert claims.patch(name, second, "/status").status == 409

    old = claims.read(name)
    assert claims.patch(name, release(old, ref(pod)), "/status").status == 200
    claims.api.delete(f"{CLAIMS}/{name}")
    claims.gone(name)
    claims.claim(10, name=name)
    reply = claims.patch(name, first, "/status")
    assert reply.status in {409, 422}, reply.body
    claims.waits(name, allocated=False)


def test_after_a_settlement_nothing_lands_that_was_made_before_it(claims: ClaimWorld) -> None:
    node = claims.node(80)
    name = claims.claim(10)
    pod = claims.pod(name, scheduler="none")
    read = claims.read(name)
    sent = claims.allocation(read, pod, claims.card(node, 0))
    assert read.metadata
    own = PodRef("default", name, read.metadata.uid or "")
    assert claims.patch(name, settlement(replace(own, uid="other"), "1")).status in {409, 422}
    assert claims.patch(name, settlement(own, "1")).status == 200
    assert claims.patch(name, sent, "/status").status == 409
    # One that has landed stays, and shows.
    later = claims.allocation(claims.read(name), pod, claims.card(node, 0))
    assert claims.patch(name, later, "/status").status == 200
    reply = claims.patch(name, settlement(own, "2"))
    assert (reply.status, bool(reply.body["status"]["allocation"])) == (200, True)


def test_a_claim_deleted_under_its_pod_keeps_its_card_until_the_pod_ends(
    claims: ClaimWorld,
) -> None:
    node = claims.node(80)
    name = claims.claim(10)
    pod = claims.pod(name)
    claims.allocate(name, pod, claims.card(node, 0))
    claims.bound([pod])
    claims.api.delete(f"{CLAIMS}/{name}")
    found = claims.read(name)
    assert found.metadata
    assert found.metadata.deletion_timestamp
    assert found.status
    assert found.status.allocation
    claims.objects.delete(pod)
    claims.gone(name)


def test_a_claim_of_our_class_comes_protected_and_without_the_policy_we_protect_it(
    claims: ClaimWorld,
) -> None:
    assert claims.comes_protected()
    assert not claims.comes_protected(claims.device_class("other.example.com"))
    binding = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
    claims.api.delete(f"{binding}/gpushare-claims-protect")
    try:
        until(lambda: not claims.comes_protected(), "a new claim is not protected")
        node, name = claims.node(80), claims.claim(10)
        pod = claims.pod(name)
        claims.allocate(name, pod, claims.card(node, 0))
        claims.bound([pod])
    finally:
        apply(claims.plane, "extender/claims")


def test_a_claim_that_is_protected_alone_goes_when_it_is_deleted(claims: ClaimWorld) -> None:
    name = claims.claim(10)
    claims.api.delete(f"{CLAIMS}/{name}")
    claims.gone(name)


def test_what_kube_scheduler_takes_back_is_written_anew_elsewhere(claims: ClaimWorld) -> None:
    full, free = claims.node(80, cpu="1"), claims.node(80)
    name = claims.claim(10)
    pod = claims.pod(name, cpu="2")
    claims.allocate(name, pod, claims.card(full, 0))
    claims.waits(name, allocated=False)
    assert FINALIZER in (claims.api.get(f"{CLAIMS}/{name}").meta.get("finalizers") or ())
    claims.allocate(name, pod, claims.card(free, 0))
    claims.bound([pod])
    assert claims.objects.node_of(pod) == free


def test_a_claim_of_several_pods_is_allocated_once(claims: ClaimWorld) -> None:
    node = claims.node(80)
    name = claims.claim(10)
    pods = [claims.pod(name) for _ in range(2)]
    claims.allocate(name, pods[0], claims.card(node, 0))
    claims.bound(pods)
    status = claims.read(name).status
    assert status
    assert len(status.reserved_for or ()) == 2


def test_what_an_allocator_left_behind_stays_until_it_is_taken_back(claims: ClaimWorld) -> None:
    node = claims.node(80)
    left, other = claims.claim(80), claims.claim(80)
    gone, pod = claims.pod(left, scheduler="none"), claims.pod(other)
    claims.allocate(left, gone, claims.card(node, 0))
    claims.objects.refusal(pod, "cannot allocate all claims")
    claims.waits(left, allocated=True)
    assert claims.patch(left, release(claims.read(left), ref(gone)), "/status").status == 200
    claims.allocate(other, pod, claims.card(node, 0))
    claims.bound([pod])
    claims.waits(left, allocated=False)


def test_what_is_reserved_for_a_pod_that_goes_before_its_bind_is_taken_back(
    claims: ClaimWorld,
) -> None:
    node = claims.node(80)
    name = claims.claim(10)
    pod = claims.pod(name, scheduler="none")
    claims.allocate(name, pod, claims.card(node, 0))
    claims.objects.delete(pod)
    # By the controller of claims: nobody of ours has to be there.
    claims.waits(name, allocated=False)


def test_a_pod_that_has_ended_gives_its_card_back(claims: ClaimWorld) -> None:
    node = claims.node(80)
    name = claims.claim(10)
    pod = claims.pod(name)
    claims.allocate(name, pod, claims.card(node, 0))
    claims.bound([pod])
    claims.objects.patch(f"{claims.objects.path(pod)}/status", {"status": {"phase": "Succeeded"}})
    claims.waits(name, allocated=False)
    # It can be given out again, while the pod that has ended is still there.
    later = claims.pod(name)
    claims.allocate(name, later, claims.card(node, 0))
    claims.bound([later])


def test_the_fence_keeps_kube_scheduler_off_our_devices_and_lets_us_in(
    claims: ClaimWorld,
) -> None:
    node = claims.node(80)
    ordinary = claims.device_class(DRIVER)
    foreign = claims.claim(10, ordinary, tolerations=[{"operator": "Exists"}])
    pod = claims.pod(foreign)
    claims.objects.refusal(pod, "given out by gpushare alone", f"device class {CLASS}")
    ours = claims.claim(10)
    mine = claims.pod(ours)
    claims.allocate(ours, mine, claims.card(node, 0))
    claims.bound([mine])
    claims.waits(foreign, allocated=False)
    # Without the fence it is given out: the fence it was that kept it.
    binding = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    claims.api.delete(f"{binding}/gpushare-claims")
    try:
        claims.waits(foreign, allocated=True)
        claims.bound([pod])
    finally:
        apply(claims.plane, "extender/claims")
