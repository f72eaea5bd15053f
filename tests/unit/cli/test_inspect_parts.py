"""Parts of the command: units, columns, YAML, completion, the watch."""

import gc
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli.completion import complete_plugin
from gpushare.cli.documents import to_yaml
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.lister import Observed, Scope, follow, observe
from gpushare.cli.report import Report, make_report
from gpushare.cli.tables import align, details
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.printable import printable
from tests.unit.cli.fake_kubectl import MEM, FakeKubectl, inventory, node, pod


def report_of(nodes: list[Any], pods: list[Any], unit: str = "") -> Report:
    observed = Observed(ALIYUN, Scope())
    for item in nodes:
        observed.take_node(item)
    for item in pods:
        observed.take_pod(item)
    return make_report(observed.nodes.values(), observed.pods.values(), ALIYUN, unit)


@pytest.mark.parametrize(
    ("nodes", "flag", "unit", "unit_from"),
    [
        ([], "", "GiB", "guess"),
        ([], "MiB", "MiB", "flag"),
        ([node("a", 200, 2)], "", "GiB", "guess"),
        ([node("a", 202, 2)], "", "MiB", "guess"),
        ([node("a", 282, 2)], "GiB", "GiB", "flag"),
        ([node("a", 282, 2), node("b", inventory=inventory(141))], "", "GiB", "inventory"),
        ([node("a", 282, 2), node("b", inventory=inventory(141))], "MiB", "MiB", "flag"),
        ([node("b", inventory=inventory(64, unit="256MiB"))], "MiB", "256MiB", "inventory"),
    ],
)
def test_the_unit_is_guessed_only_where_nobody_says_it(
    nodes: list[Any], flag: str, unit: str, unit_from: str
) -> None:
    report = report_of(nodes, [], flag)
    assert (report.unit, report.unit_from) == (unit, unit_from)


def test_nodes_of_several_units_are_shown_in_the_one_that_is_exact_for_all() -> None:
    nodes = [
        node("a", inventory=inventory(2)),
        node("b", inventory=inventory(3, unit="256MiB")),
        node("c", inventory=inventory(500, unit="MiB")),
    ]
    report = report_of(nodes, [pod("p", "a", 1), pod("q", "b", 1), pod("r", "c", 1)])
    assert report.unit == "MiB"
    assert [(line.allocated, line.total) for line in report.nodes] == [
        (1024, 2048),
        (256, 768),
        (1, 500),
    ]
    assert "(256MiB: b; GiB: a; MiB: c)" in report.warnings[0]


def test_what_is_closed_gives_nothing_out() -> None:
    (line,) = report_of([node("a", 33, 2)], []).nodes
    assert [(device.total, device.free) for device in line.devices] == [(16, 0), (16, 0)]


def test_devices_that_the_kubelet_offers_none_of_are_unhealthy() -> None:
    away = node("a")
    away["status"]["allocatable"] = {MEM: "0", "aliyun.com/gpu-count": "2"}
    (line,) = report_of([away], [pod("p", "a")]).nodes
    assert [(device.healthy, device.free) for device in line.devices] == [(False, 0)] * 2
    assert (line.allocated, line.total) == (4, 32)


def test_a_pod_that_was_given_another_card_counts_on_both() -> None:
    notes = {ALIYUN.uuids: "GPU-1", ALIYUN.given: '{"GPU-2":3}'}
    nodes = [node("a", inventory=inventory(16, 16))]
    (line,) = report_of(nodes, [pod("p", "a", annotations=notes)]).nodes
    assert [(device.total, device.free) for device in line.devices] == [(16, 12), (16, 13)]


def test_columns_are_as_wide_as_their_block() -> None:
    rows = [["a", "bb", "c"], ["aaa", "b", "c"], ["alone"], ["x", ""], ["", "end"]]
    assert align(rows) == "a    bb  c\naaa  b   c\nalone\nx  \n   end\n"


def test_dashes_of_every_node_are_those_of_the_first() -> None:
    report = report_of([node("a"), node("b")], [pod("p", "a"), pod("longer", "b")])
    dashes = {line for line in details(report).splitlines() if line.startswith("--")}
    assert dashes == {"-" * (len("p\tdefault\t4\t0\t\n") + 10)}


@given(st.text())
def test_printable_text_is_printable_and_encodes(text: str) -> None:
    output = printable(text)
    assert output.isprintable()
    output.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet="abyn:- #'\"1."), inner),
)


@given(JSON)
def test_yaml_is_read_back_as_it_was(document: Any) -> None:
    assert yaml.safe_load(to_yaml(document)) == document


@pytest.mark.parametrize(
    "word", ["y", "No", "null", "true", "~", "1e3", "0x1", "a: b", "- a", "", "a #b", "GiB", "é"]
)
def test_words_that_yaml_takes_for_something_else_stay_texts(word: str) -> None:
    assert yaml.safe_load(to_yaml({word: [word]})) == {word: [word]}


def test_a_large_cluster_is_read_without_looking_for_garbage_that_is_not_there(
    kubectl: FakeKubectl,
) -> None:
    kubectl.cluster([node("a")], [pod(f"p{number}", "a") for number in range(1000)])
    phases: list[str] = []

    def collected(phase: str, _: object) -> None:
        phases.append(phase)

    gc.callbacks.append(collected)
    try:
        observed, *_ = observe(Kubectl(str(kubectl.path)), Scope(), ALIYUN)
    finally:
        gc.callbacks.remove(collected)
    assert len(observed.pods) == 1000
    assert phases.count("start") <= 2  # no events before the start or after the end
    assert gc.isenabled()


# -- completion ----------------------------------------------------------------------------------

PLUGIN = [
    "defrag\tSay which few pods would have to move so that a pod fits, or move them.",
    "doctor\tSay what is mis-wired, one line for each check. Changes nothing.",
    "explain\tSay why a pod is pending and what would help, or why it is where it is.",
    "report\tSay who was promised how many GPU-hours, who used them, and their cost.",
    "whatif\tSay whether pods would fit, now or with nodes gone or added. Changes nothing.",
]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([""], ["a", "b", *PLUGIN, ":4"]),
        (["d"], [*PLUGIN[:2], ":4"]),
        (["explain", ""], ["p1", "p2", ":4"]),
        (["explain", "-n", "team", ""], ["t1", ":4"]),
        (["explain", "p1", ""], [":4"]),
        (["a", ""], ["b", ":4"]),
        (["-d", "b"], ["b", ":4"]),
        (["-o", ""], ["json", "name", "wide", "yaml", ":4"]),
        (["--output=y"], ["yaml", ":4"]),
        (["--unit", ""], ["GiB", "MiB", ":4"]),
        (["--kubeconfig", "/e"], [":0"]),
        (["--kubeconfig=/e"], [":0"]),
        (["-n", "t"], ["team", ":4"]),
        (["--context", ""], ["dev", "live", ":4"]),
        (["--cluster", ""], ["east", ":4"]),
        (["-l", ""], [":4"]),
        (["--watc"], ["--watch\tgo on and show each change", ":4"]),
        ([], ["a", "b", *PLUGIN, ":4"]),
    ],
)
def test_completion_offers_what_can_follow(
    kubectl: FakeKubectl, words: list[str], answer: list[str]
) -> None:
    patience = " --request-timeout=3s"
    nodes = {"items": [node("a"), node("b"), node("cpu-only", total=0)]}
    kubectl.answers("get --raw /api/v1/nodes" + patience, json.dumps(nodes))
    spaces = {"items": [{"metadata": {"name": "team"}}, {"metadata": {"name": "default"}}]}
    kubectl.answers("get --raw /api/v1/namespaces" + patience, json.dumps(spaces))
    for space, names in (("default", ["p1", "p2"]), ("team", ["t1"])):
        pods = {"items": [{"metadata": {"name": name}} for name in names]}
        kubectl.answers(f"get --raw /api/v1/namespaces/{space}/pods" + patience, json.dumps(pods))
    kubectl.answers("config view --minify --output=jsonpath={..namespace}" + patience, "")
    kubectl.answers("config get-contexts -o name" + patience, "dev\nlive\n")
    kubectl.answers("config get-clusters" + patience, "NAME\neast\n")
    assert complete_plugin(words, kubectl.environ).splitlines() == answer


def test_completion_asks_the_cluster_that_was_named(kubectl: FakeKubectl) -> None:
    words = ["--context", "dev", "--as=x", "-n", "y", ""]
    assert complete_plugin(words, kubectl.environ) == ":4\n"
    assert kubectl.log == [
        "KUBECONFIG= get --raw /api/v1/nodes --output= --context=dev --as=x --request-timeout=3s"
    ]


# -- watch ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watches:
    """The pipes of a watched cluster: a line in a pipe is an event."""

    nodes: Path
    pods: Path


@pytest.fixture
def watches(kubectl: FakeKubectl) -> Watches:
    kubectl.cluster([node("a")], [pod("p", "a")])
    holding = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed%2Cspec.nodeName%21%3D"
    return Watches(
        kubectl.pipe("get --raw /api/v1/nodes?resourceVersion=7&watch=1"),
        kubectl.pipe(f"get --raw /api/v1/pods?fieldSelector={holding}&resourceVersion=7&watch=1"),
    )


def event(kind: str, item: Any) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


@pytest.fixture
def view(kubectl: FakeKubectl) -> Iterator[Iterator[Observed]]:
    following = follow(Kubectl(str(kubectl.path)), Scope(), ALIYUN)
    yield following
    following.close()  # type: ignore[attr-defined]  # it is a generator


def test_changes_are_followed_and_an_end_lists_anew(
    watches: Watches,
    view: Iterator[Observed],
    kubectl: FakeKubectl,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpushare.cli.lister.RELIST_PAUSE", 0.01)
    first = next(view)
    assert list(first.pods) == ["uid-p"]
    opened: list[int] = []

    def change() -> None:
        # Opening a pipe waits for the kubectl that reads it.
        opened.extend(os.open(path, os.O_WRONLY) for path in (watches.nodes, watches.pods))
        os.write(opened[0], event("ADDED", node("b")))
        os.write(opened[1], event("MODIFIED", pod("p", "a", 9)) + event("DELETED", pod("x", "a")))

    writer = threading.Thread(target=change)
    writer.start()
    observed = next(view)
    while "b" not in observed.nodes or observed.pods["uid-p"].request.units != 9:
        observed = next(view)
    writer.join()
    os.write(opened[1], event("DELETED", pod("p", "a")))
    assert next(view).pods == {}
    kubectl.cluster([node("c")], [])
    os.write(opened[1], b'{"type":"ERROR","object":{"code":410}}\n')
    assert list(next(view).nodes) == ["c"]
    for pipe in opened:
        os.close(pipe)
