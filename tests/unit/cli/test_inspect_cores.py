"""The command shows compute, and nothing about compute where no pod has any."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpushare.cli.cluster_files import resource_of_report
from gpushare.cli.report import make_report
from gpushare.cli.tables import PLAIN, held_places
from gpushare.core.amounts import compute
from gpushare.core.model import PodRef
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.held import HeldPlace
from tests.unit.cli.fake_kubectl import FakeKubectl, inventory, node, pending, pod
from tests.unit.core.clusters import with_share

Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    """Two devices: of one 30 % are given, of the other all, beside 12 of 16 that are free."""
    pods = [pod("alpha", "a", cores=30), pod("beta", "a", idx="1", cores=100, namespace="team")]
    kubectl.cluster([node("a", inventory=inventory(16, 16))], pods)
    return kubectl


def test_the_details_have_the_cores_below_the_memory_of_each_device(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    code, out, _ = inspect("-d")
    assert code == 0
    assert [line.rstrip() for line in out.splitlines()[4:10]] == [
        "NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Cores(%)",
        "alpha        default    4                0                30",
        "beta         team       0                4                100",
        "Cores :                 30/100           100/100",
        "Stranded :              0                12",
        "Allocated :  8 (25%)",
    ]


def test_the_wide_form_does_not_call_free_what_nobody_can_have(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    head, line, *_ = inspect("-o", "wide")[1].splitlines()
    assert head.endswith("FREE(GiB)  STRANDED(GiB)  GPU Cores(%)    PODS  MODEL  NOTE")
    assert line.split()[-7:] == ["12", "12", "30/100", "100/100", "2", "-", "-"]
    first = inspect("-d", "--no-headers")[1].splitlines()[0]
    assert first.split() == ["a", "alpha", "default", "4", "0", "30"]


def test_the_document_has_the_cores_of_devices_and_pods(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    document = json.loads(inspect("-o", "json")[1])
    (node_document,) = document["nodes"]
    keys = ("allocated", "free", "strandedByCores", "coresAllocated", "coresFree")
    assert [[device[key] for key in keys] for device in node_document["devices"]] == [
        [4, 12, 0, 30, 70],
        [4, 0, 12, 100, 0],
    ]
    assert (
        node_document["free"],
        node_document["strandedByCores"],
        node_document["coresUnplaced"],
    ) == (12, 12, 0)
    assert [item["cores"] for item in node_document["pods"]] == [30, 100]


@pytest.mark.parametrize("form", [(), ("-d",), ("-o", "wide"), ("-d", "-o", "wide")])
def test_without_compute_nothing_is_said_of_it(
    kubectl: FakeKubectl, inspect: Inspect, form: tuple[str, ...]
) -> None:
    kubectl.cluster([node("a")], [pod("alpha", "a"), pending("late")])
    text = inspect(*form)[1].lower()
    assert "core" not in text
    assert "stranded" not in text
    assert "ores" not in inspect("-o", "json")[1]


def test_what_an_unplaced_pod_has_is_free_on_no_device(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    lost = pod("lost", "a", 6, idx=None, cores=60, annotations={"aliyun.com/gpu-count": "2"})
    kubectl.cluster([node("a")], [lost, pod("alpha", "a", cores=50)])
    (node_document,) = json.loads(inspect("-o", "json")[1])["nodes"]
    assert node_document["coresUnplaced"] == 60
    assert [device["coresAllocated"] for device in node_document["devices"]] == [50, 0]
    assert [device["coresFree"] for device in node_document["devices"]] == [0, 40]
    assert [device["free"] for device in node_document["devices"]] == [0, 10]


def test_pods_that_wait_say_what_they_ask_for(kubectl: FakeKubectl, inspect: Inspect) -> None:
    kubectl.cluster([node("a")], [pending("late", 8, cores=30), pending("plain")])
    out = inspect("-o", "wide")[1]
    pending_pods = [line.split() for line in out.splitlines()[-3:]]
    assert pending_pods[0][:7] == [
        "PENDING",
        "POD",
        "NAMESPACE",
        "GPU",
        "Memory(GiB)",
        "GPU",
        "Cores(%)",
    ]
    assert [line[:4] for line in pending_pods[1:]] == [
        ["late", "default", "8", "30"],
        ["plain", "default", "4", "0"],
    ]


def test_a_percentage_without_a_device_is_free_on_no_device(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    lost = pod("lost", "a", 1, idx=None, share=25)
    kubectl.cluster([node("a", inventory=inventory(16, 40))], [lost])
    (node_document,) = json.loads(inspect("-o", "json")[1])["nodes"]
    assert [device["free"] for device in node_document["devices"]] == [12, 30]
    assert (node_document["unplaced"], node_document["pods"][0]["allocated"]) == (10, 10)


def test_pods_that_wait_and_places_that_are_held_have_their_percentage(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    kubectl.cluster([node("a")], [pending("late", 1, share=60)])
    assert inspect("-o", "wide")[1].splitlines()[-1].split()[:3] == ["late", "default", "60%"]
    (document,) = json.loads(inspect("-o", "json")[1])["pending"]
    assert (document["requested"], document["share"]) == (1, 60)
    place = HeldPlace(PodRef("team", "wide", "uid"), "a", 1, 2, percents=with_share(0, 60))
    report = replace(make_report((), (), ALIYUN), holds=(place,))
    assert held_places(report, PLAIN).splitlines()[1].split()[2:6] == ["60%", "x", "2", "a"]


def test_a_place_that_is_held_has_its_compute() -> None:
    place = HeldPlace(PodRef("team", "wide", "uid"), "a", 4, 2, percents=compute(30))
    report = make_report((), (), ALIYUN)
    head, line = held_places(replace(report, holds=(place,)), PLAIN).splitlines()
    assert head.split()[4:] == ["Memory(GiB)", "GPU", "Cores(%)", "NODE", "UNTIL"]
    assert line.split()[2:9] == ["4", "x", "2", "30", "x", "2", "a"]
    head, _ = held_places(
        replace(report, holds=(replace(place, percents=compute(0)),)), PLAIN
    ).splitlines()
    assert "Cores" not in head


def test_a_place_that_is_held_for_a_split_pod_has_its_parts() -> None:
    place = HeldPlace(PodRef("team", "two", "uid"), "a", 30, 2, split=(30, 10))
    report = make_report((), (), ALIYUN)
    _, line = held_places(replace(report, holds=(place,)), PLAIN).splitlines()
    assert line.split()[2:4] == ["30+10", "a"]


def saved(inspect: Inspect, *words: str) -> Any:
    return json.loads(inspect("-o", "json", *words)[1])


@pytest.mark.parametrize("words", [(), ("-n", "team")])
def test_a_saved_report_charges_the_compute_of_all_pods(
    kubectl: FakeKubectl, inspect: Inspect, words: tuple[str, ...]
) -> None:
    """Also that of pods which are not listed in it."""
    both = {"aliyun.com/gpu-count": "2"}
    pods = [
        pod("alpha", "a", cores=30),
        pod("two", "a", 4, idx="0,1", cores=40, annotations=both, namespace="team"),
        pod("lost", "a", 1, idx=None, cores=10),
        pending("late", 4, cores=50, share=20, namespace="team"),
    ]
    kubectl.cluster([node("a")], pods)
    books = resource_of_report(saved(inspect, *words), "saved.json", "binpack")
    assert books.ledger.snapshot().cores_used.tolist() == [[60, 30]]
    assert [item.request.percents for item in books.ledger.waiting()] == [with_share(50, 20)]
