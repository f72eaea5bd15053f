"""`--extender`: the holds of filter, from a real health listener."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpushare.cli.running_extender import read_held
from gpushare.cli.whatif import main as whatif
from gpushare.core.model import PodRef, Request
from gpushare.daemon.health import HealthServer
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.explainer import Explainer
from gpushare.extender.tell.metrics import Metrics
from gpushare.wire.held import HeldPlace, encode_held
from gpushare.wire.pods import Claimant
from tests.support.scripted_api import ScriptedApi
from tests.unit.cli.fake_kubectl import FakeKubectl, node, pending, pod
from tests.unit.extender.kit import managed_resource

Inspect = Callable[..., tuple[int, str, str]]


@pytest.fixture
def resource() -> ManagedResource:
    resource_books = managed_resource()
    for name, space, node_name, devices in (
        ("slow", "team", "a", 1),
        ("train", "other", "a", 2),
        ("far", "team", "b", 1),
    ):
        asks = Claimant(PodRef(space, name, f"uid-{name}"), Request(6, devices))
        resource_books.holds.shown(asks, node_name, 0.0)
    return resource_books


@pytest.fixture
def explainer(resource: ManagedResource) -> Explainer:
    return Explainer(
        ScriptedApi(), ManagedResources((resource,)), "GiB", not_ready=str, called=lambda _: False
    )


@pytest.fixture
def extender(resource: ManagedResource, explainer: Explainer) -> Iterator[str]:
    """Its URL."""
    resources = ManagedResources((resource,))
    server = HealthServer(
        "127.0.0.1",
        0,
        dict,
        dict,
        lambda: Metrics(resources, 2**30, dict).text(),
        held=lambda: explainer.held(),  # noqa: PLW0108 -- a test puts another one there
    )
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(autouse=True)
def _cluster(kubectl: FakeKubectl) -> None:
    kubectl.cluster([node("a"), node("b")], [pod("p", "a")])


def test_the_wide_form_has_a_table_and_the_default_form_has_none(
    inspect: Inspect, extender: str
) -> None:
    code, out, err = inspect("-o", "wide", "--extender", extender)
    assert (code, err) == (0, "")
    table = [line.split(maxsplit=4) for line in out.splitlines()[-5:-1]]
    end = "kube-scheduler binds it or gives it up"
    assert table[1:] == [
        ["slow", "team", "6", "a", end],
        ["train", "other", "6", "x", f"2            a     {end}"],
        ["far", "team", "6", "b", end],
    ]
    assert "HELD FOR  NAMESPACE  GPU Memory(GiB)  NODE  UNTIL\n" in out
    assert "HELD" not in inspect("--extender", extender)[1]
    assert "HELD" not in inspect("-o", "wide")[1]


def test_whatif_places_waiting_pods_where_they_are_held(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], extender: str
) -> None:
    pods = [pod("p", "a"), pending("late", 16), pending("far", 6, namespace="team")]
    kubectl.cluster([node("a"), node("b")], pods, page=500)
    shown: dict[tuple[str, ...], dict[str, object]] = {}
    all_flags: list[tuple[str, ...]] = [(), ("--extender", extender)]
    for flags in all_flags:
        assert whatif(["--pods", "16GiB", *flags, "-o", "json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        shown[flags] = {item["name"]: item["on"] for item in answer["waiting"]}
    without, with_holds = shown.values()
    assert without["team/far"] == [{"node": "a", "pods": 1}]
    assert with_holds["team/far"] == [{"node": "b", "pods": 1}]
    assert whatif(["--pods", "1GiB", "--extender", "http://127.0.0.1:1"]) == 0
    assert "what is held is not known: http://127.0.0.1:1" in capsys.readouterr().out
    for wrong in (["x"], [extender, "--nodes", "n.csv"]):
        assert whatif(["--pods", "1GiB", "--extender", *wrong]) == 2


def test_whatif_says_that_reserved_places_count_as_free(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], explainer: Explainer, extender: str
) -> None:
    kubectl.cluster([node("a")], [], page=500)
    place = HeldPlace(PodRef("team", "x", "u"), "a", 6, 1, 9.0, reserved_since=1.0)
    body = encode_held("GiB", {"aliyun.com/gpu-mem": [place]})
    explainer.held = lambda: (200, body)  # type: ignore[method-assign]
    assert whatif(["--pods", "1GiB", "--extender", extender]) == 0
    assert "free parts of reserved places count as free: a" in capsys.readouterr().out


def names(holds: list[dict[str, Any]]) -> list[str]:
    return [hold["pod"]["name"] for hold in holds]


def test_the_documents_have_it_and_leave_out_what_is_not_asked_for(
    inspect: Inspect, extender: str
) -> None:
    document = json.loads(inspect("-o", "json", "--extender", extender)[1])
    assert names(document["held"]) == ["slow", "train", "far"]
    assert yaml.safe_load(inspect("-o", "yaml", "--extender", extender)[1]) == document
    team = json.loads(inspect("-o", "json", "-n", "team", "--extender", extender)[1])
    assert names(team["held"]) == ["slow", "far"]
    only = json.loads(inspect("b", "-o", "json", "--extender", extender)[1])
    assert names(only["held"]) == ["far"]
    assert json.loads(inspect("-o", "json")[1])["held"] is None


def test_an_extender_that_does_not_say_is_a_warning(
    inspect: Inspect, extender: str, explainer: Explainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = b'{"error": "gpushare is not ready: another process leads"}'
    for answer, text in (
        ((503, refusal), "does not answer: gpushare is not ready: another process leads"),
        ((404, b"there are others"), "does not answer: HTTP Error 404"),
        ((200, b"{}"), "has an answer that is no list of places"),
    ):
        monkeypatch.setattr(explainer, "held", lambda answer=answer: answer)
        code, out, err = inspect("-o", "json", "--extender", extender)
        assert code == 0
        assert err.startswith(f"Warning: what is held is not known: {extender} {text}")
        assert json.loads(out)["held"] is None


def test_of_another_resource_it_is_not_known_and_another_unit_is_converted(extender: str) -> None:
    holds, wrong = read_held(extender, "aliyun.com/gpu-mem", "MiB")
    assert ([place.units for place in holds or ()], wrong) == ([6144] * 3, "")
    holds, wrong = read_held(extender, "example.com/npu-mem", "GiB")
    assert holds is None
    assert wrong.endswith("tells nothing of example.com/npu-mem")


def test_the_wide_form_says_which_nodes_autoscalers_leave_alone(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    kept_nodes = node("b")
    kept_nodes["metadata"]["annotations"] = {
        "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
        "gpushare.io/scale-down-guard": json.dumps(
            {
                "why": "team/web would have no device on another node",
                "wrote": ["cluster-autoscaler.kubernetes.io/scale-down-disabled"],
            }
        ),
    }
    kubectl.cluster([node("a"), kept_nodes], [])
    reason = "team/web would have no device on another node"
    out = inspect("-o", "wide")[1]
    assert f"KEPT FROM SCALE-DOWN  REASON\nb                     {reason}\n" in out
    assert "KEPT" not in inspect()[1]
    assert "KEPT" not in inspect("-o", "wide", "a")[1]
    nodes = json.loads(inspect("-o", "json")[1])["nodes"]
    assert [item["keptFromScaleDown"] for item in nodes] == [None, reason]
