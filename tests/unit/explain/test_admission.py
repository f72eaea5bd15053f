"""A workload has devices for all its pods, of all its resources, or it takes no place."""

from dataclasses import replace

from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.policy import load_policy
from gpushare.core.selectors import NO_DEMANDS
from gpushare.explain.admission import AdmissionJudge, KeptPlace
from gpushare.extender.managed_resources import ManagedResources
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.kueue import WorkloadPods
from tests.unit.extender.kit import NPU, managed_resources


def pods(units: int, count: int = 1, resource: str = ALIYUN.resource) -> WorkloadPods:
    return WorkloadPods(
        pod_set="main",
        resource=resource,
        request=Request(units, 1),
        demands=NO_DEMANDS,
        count=count,
    )


def books() -> ManagedResources:
    """One node with a GPU of 16 and an NPU of 16."""
    resources = managed_resources(ALIYUN, NPU)
    for resource in resources:
        resource.ledger.node_changed(NodeSpec("a", (16,), (True,), ("",), ("",)))
    return resources


def judge(*promised: WorkloadPods) -> AdmissionJudge:
    return AdmissionJudge(books().resources, "GiB", load_policy("binpack"), promised)


def test_a_workload_that_fits_keeps_its_places() -> None:
    under_test = judge()
    assert under_test.admit([pods(10)])
    assert not under_test.admit([pods(10)])
    assert under_test.admit([pods(6)])


def test_one_without_devices_of_one_resource_takes_none_of_another() -> None:
    under_test = judge()
    of_both = [pods(10), pods(20, resource=NPU.resource)]
    assert not under_test.admit(of_both)
    reason = under_test.reason(of_both, "team")
    assert reason.startswith("0 of 1 pods main (20 GiB) have a device now")
    assert "it can never fit" in reason
    assert under_test.admit([pods(16), pods(16, resource=NPU.resource)])


def test_promised_pods_come_first() -> None:
    under_test = judge(pods(4, 3))
    assert not under_test.admit([pods(5)])
    reason = under_test.reason([pods(5)], "team")
    assert reason.endswith("; 3 pods of other workloads are promised devices")
    assert under_test.admit([pods(4)])


def test_a_policy_that_pods_may_not_choose_gets_no_devices() -> None:
    resources = books()
    for resource in resources:
        resource.pod_policies = frozenset()
    one = next(iter(resources))
    forbidden = replace(pods(16), request=Request(16, 1, policy="fgd"))
    ref = PodRef("team", "pending", "uid-pending")
    one.ledger.pod_changed(ObservedPod(ref, forbidden.request, created=1.0))
    under_test = AdmissionJudge(resources.resources, "GiB", load_policy("binpack"), ())
    assert not under_test.admit([forbidden])
    assert "pods may not choose 'fgd'" in under_test.reason([forbidden], "team")
    assert under_test.admit([pods(16)])


def test_a_reservation_has_the_free_part_of_its_devices_and_no_cpu() -> None:
    large = Request(20, 1, cpu=2**61)
    for node, device, is_kept in (("a", 0, True), ("a", 7, False), ("gone", 0, False)):
        place = KeptPlace("uid", node, large, ((device, 20),))
        kept = {ALIYUN.resource: [place]}
        resources = books()
        two = NodeSpec("a", (16, 16), (True, True), ("", ""), ("", ""), cpu=1000)
        next(iter(resources)).ledger.node_changed(two)
        policy = load_policy("binpack")
        under_test = AdmissionJudge(resources.resources, "GiB", policy, (), kept=kept)
        assert under_test.admit([pods(16, 2)]) is not is_kept
        assert under_test.admit([pods(16)]) is is_kept


def test_there_is_no_reason_against_pods_that_fit() -> None:
    assert judge().reason([pods(5)], "team") == ""
    assert judge().admit([])
