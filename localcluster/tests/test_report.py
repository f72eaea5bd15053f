"""The output of the demo about pods, devices and expectations; and the checks of expectations."""

import io
from typing import Any

import pytest

from gpushare_localcluster.demo.board import PodState, read_state
from gpushare_localcluster.demo.expectations import Facts, complaint
from gpushare_localcluster.demo.plan import Expect
from gpushare_localcluster.demo.report import Report
from gpushare_localcluster.scheduler.framework import Code, Status
from gpushare_localcluster.scheduler.objects import read_pod
from gpushare_localcluster.scheduler.trace import CycleTrace

Json = dict[str, Any]


def pod(
    name: str,
    units: int = 4,
    *,
    node: str = "",
    devices: str = "",
    reason: str = "",
    phase: str = "Pending",
    count: int = 1,
) -> PodState:
    annotations = {"ALIYUN_COM_GPU_MEM_IDX": devices} if devices else {}
    if count > 1:
        annotations["aliyun.com/gpu-count"] = str(count)
    amounts = {"aliyun.com/gpu-mem": str(units)}
    container = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    condition = {"type": "PodScheduled", "status": "False", "message": reason}
    return read_state(
        {
            "metadata": {"name": name, "uid": name, "annotations": annotations},
            "spec": {"containers": [container], **({"nodeName": node} if node else {})},
            "status": {"phase": phase, "conditions": [condition] if reason else []},
        }
    )


def books(*devices: tuple[int, int, str], name: str = "a", **more: Any) -> Json:
    """A node of the inspect document: (used, total, pod) of each device."""
    devs: list[Json] = [
        {
            "id": index,
            "usedGPU": used,
            "totalGPU": size,
            "pods": [{"name": values, "usedGPU": used}] if values else [],
        }
        for index, (used, size, values) in enumerate(devices)
    ]
    total = sum(device["totalGPU"] for device in devs)
    return {"name": name, "devs": devs, "totalGPU": total, **more}


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def lines(out: io.StringIO) -> list[str]:
    """The lines printed, without the time of day."""
    return [line.partition(" ")[2] for line in out.getvalue().splitlines()]


def test_a_bound_pod_shows_its_device_and_what_was_used_before(out: io.StringIO) -> None:
    report = Report(out)
    report.sizes([books((0, 16, ""), (0, 16, ""))])
    report.on_pod(pod("p"), pod("p", node="a", devices="1"))
    report.on_pod(None, pod("q", 8, node="a", devices="0,1"))
    report.on_pod(pod("q"), pod("q", 8, node="a", devices="0,1", phase="Running", reason=""))
    assert lines(out)[:2] == [
        "pod p -> node a device 1 (+4; 0 of 16 used before)",
        "pod q -> node a device 0 (+4; 0 of 16 used before), device 1 (+4; 4 of 16 used before)",
    ]


def test_a_pod_on_many_devices_stays_on_one_short_line(out: io.StringIO) -> None:
    Report(out).on_pod(None, pod("p", 32, node="a", devices="0,1,2,3"))
    assert lines(out) == [
        "pod p -> node a device 0 (+8; 0 used before), device 1 (+8; 0 used before)"
        " and 2 devices more"
    ]


def test_a_waiting_pod_says_why_once(out: io.StringIO) -> None:
    report = Report(out)
    reason = "0/1 nodes are available: 1 full. preemption: 0/1 nodes are available: 1 no."
    report.on_pod(None, pod("p"))
    report.on_pod(pod("p"), pod("p", reason=reason))
    report.on_pod(pod("p", reason=reason), pod("p", reason=reason))
    report.on_pod(pod("p", reason=reason), pod("p", reason="another"))
    assert lines(out) == [
        "pod p waits: 0/1 nodes are available: 1 full.",
        "pod p waits: another",
    ]


def test_ends_and_deletions_say_what_they_free(out: io.StringIO) -> None:
    report = Report(out)
    running = pod("p", node="a", devices="0", phase="Running")
    ended = pod("p", node="a", devices="0", phase="Succeeded")
    report.on_pod(None, running)
    report.on_pod(running, ended)
    report.on_pod(ended, None)
    report.on_pod(None, pod("q", node="a", devices="0"))
    report.on_pod(pod("q", node="a", devices="0"), None)
    report.on_pod(pod("r"), None)
    assert lines(out)[1:] == [
        "pod p ended: Succeeded, which frees 4 units of device 0 of node a",
        "pod p deleted",
        "pod q -> node a device 0 (+4; 0 used before)",
        "pod q deleted, which frees 4 units of device 0 of node a",
        "pod r deleted",
    ]


def test_a_muted_report_counts_on_in_silence(out: io.StringIO) -> None:
    report = Report(out)
    with report.muted():
        report.on_pod(None, pod("p", node="a", devices="0"))
    report.on_pod(None, pod("q", node="a", devices="0"))
    assert lines(out) == ["pod q -> node a device 0 (+4; 4 used before)"]


def test_the_table_shows_devices_and_folds_idle_nodes(out: io.StringIO) -> None:
    idle = books((0, 16, ""), (0, 16, ""), name="n10")
    lost = [{"name": "lost", "namespace": "x", "usedGPU": 3}]
    busy = books((8, 16, "p"), (0, 16, ""), name="n2", unplaced=lost)
    Report(out).devices([idle, busy])
    assert out.getvalue().splitlines() == [
        "   NODE  DEVICE  USED                    PODS",
        "   n2    0       8/16  ########........  p (8)",
        "   n2    1       0/16  ................",
        "   n2    ?       3                       lost",
        "   n10   0-1     0/32  ................",
    ]


def test_colours_only_where_asked_for(out: io.StringIO) -> None:
    Report(out).expectation("all is well", None)
    assert out.getvalue() == "   ✓ all is well\n"
    coloured = io.StringIO()
    Report(coloured, colours=True).expectation("all is well", "it is not")
    assert coloured.getvalue() == "   \x1b[31m✗\x1b[0m all is well: it is not\n"


BOUND = pod("bound", node="a", devices="1")
WAITS = pod("waits", 4, reason="0/1 nodes are available: 1 full.")


@pytest.mark.parametrize(
    ("check", "result"),
    [
        (Expect(pod="bound", node="a", devices=(1,)), None),
        (Expect(pod="bound"), None),
        (Expect(pod="bound", node="b"), "it is on a device 1"),
        (Expect(pod="bound", node="a", devices=(0, 1)), "it is on a device 1"),
        (Expect(pod="waits"), "it is pending: 0/1 nodes are available: 1 full."),
        (Expect(pod="none"), "there is no such pod"),
        (Expect(pod="waits", pending="1 full"), None),
        (Expect(pod="waits", pending="2 full"), "its reason is: 0/1 nodes are available: 1 full."),
        (Expect(pod="bound", pending=""), "it is on a device 1"),
        (Expect(pod="none", pending=""), "there is no such pod"),
        (Expect(device="a/1", used=4), None),
        (Expect(device="a/1", used=5), "4 units are in use"),
        (Expect(device="b/0", used=0), "the extender does not know this device"),
        (Expect(bound=1, pods="*"), None),
        (
            Expect(bound=1, pods="w*"),
            "0 are bound; waits waits: 0/1 nodes are available: 1 full.",
        ),
    ],
)
def test_an_expectation_is_judged_by_what_is_true(check: Expect, result: str | None) -> None:
    facts = Facts({"bound": BOUND, "waits": WAITS}, (), [books((14, 16, ""), (4, 16, "bound"))])
    assert complaint(check, facts) == result


def test_a_trace_is_judged_by_its_lines_and_counted() -> None:
    body: Json = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}
    error = CycleTrace(read_pod(body), Status(Code.UNSCHEDULABLE, ("full",)))
    bound_pod = CycleTrace(read_pod(body), Status(plugin="DefaultBinder"), "a")
    facts = Facts({}, (), (), [error, bound_pod])
    assert complaint(Expect(pod="p", trace="Chosen a"), facts) is None
    assert complaint(Expect(pod="p", trace="Waits full"), facts) is None
    assert complaint(Expect(pod="p", trace="Chosen b"), facts) == (
        "its trace is: cycle of default/p by default-scheduler; Waits full;"
        " cycle of default/p by default-scheduler; Chosen a; Bind by DefaultBinder"
    )
    assert complaint(Expect(pod="q", trace="Chosen"), facts) == "its trace is: (none yet)"
    assert complaint(Expect(pod="p", cycles=2), facts) is None
    assert complaint(Expect(pod="p", cycles=1), facts) == "2 times"


def node(name: str = "a", units: int = 32, **spec: Any) -> Json:
    amounts = {"aliyun.com/gpu-mem": str(units)}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": amounts}}


@pytest.mark.parametrize(
    ("pods", "nodes", "inspected", "result"),
    [
        ([WAITS], [node()], [books((13, 16, ""), (16, 16, ""))], None),
        (
            [WAITS],
            [node()],
            [books((12, 16, ""))],
            "pod waits is pending although node a has room: 0/1 nodes are available: 1 full.",
        ),
        ([WAITS], [node(unschedulable=True)], [books((0, 16, ""))], None),
        ([WAITS], [node(taints=[{"key": "k"}])], [books((0, 16, ""))], None),
        ([WAITS], [node(units=3)], [books((0, 16, ""))], None),
        ([pod("two", 8, count=2)], [node()], [books((12, 16, ""), (13, 16, ""))], None),
        (
            [pod("two", 8, count=2)],
            [node()],
            [books((12, 16, ""), (12, 16, ""))],
            "pod two is pending although node a has room",
        ),
        ([], [], [books((17, 16, ""))], "device 0 of a: 17 of 16 units are in use"),
        ([], [], [books(unplaced=[{}])], "node a has pods without a device"),
    ],
)
def test_packed_means_no_device_is_over_and_no_pending_pod_would_fit(
    pods: list[PodState], nodes: list[Json], inspected: list[Json], result: str | None
) -> None:
    assert (
        complaint(Expect(packed=True), Facts({p.name: p for p in pods}, nodes, inspected)) == result
    )


def test_of_a_part_that_held_one_line_is_printed_and_of_another_all(out: io.StringIO) -> None:
    report = Report(out, brief=True)
    for title, held in (("good", True), ("bad", False)):
        report.title(title)
        report.write("half of ")
        report.write("a line\n")
        report.end(title, held=held)
    assert out.getvalue() == "✓ good\n\n== bad\nhalf of a line\n"
