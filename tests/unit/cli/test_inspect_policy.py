"""`--extender`: the policy that ranks pods, from a real health listener with real metrics."""

import json
import socket
from collections.abc import Callable, Iterator

import pytest
import yaml

from gpushare.core.model import Request
from gpushare.core.trial import Choice
from gpushare.daemon.health import HealthServer
from gpushare.doctor.checks.extender import check_extender
from gpushare.doctor.collect import read_extender
from gpushare.doctor.facts import ExtenderAnswers
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.metrics import Metrics
from gpushare.wire.held import encode_held
from tests.unit.cli.fake_kubectl import MEM, FakeKubectl, node, pod
from tests.unit.core.clusters import node as make_node
from tests.unit.doctor.facts import healthy
from tests.unit.extender.kit import managed_resource
from tests.unit.extender.shadow.traffic import Traffic

Inspect = Callable[..., tuple[int, str, str]]

CHOICE = Choice(
    policy="device-bestfit",
    since=1_800_000_000.0,
    second="binpack",
    lead=1.25,
    error=0.5,
    allocated={"device-bestfit": 81.25, "binpack": 80.0},
    refused_percent={"device-bestfit": 9.0, "binpack": 10.5},
)
SAID = (
    "device-bestfit, chosen by auto, since 2027-01-15T08:00:00Z;"
    " in the last trial it allocated 1.2 points (error 0.5) more than binpack"
)


@pytest.fixture
def resource() -> ManagedResource:
    return managed_resource()


@pytest.fixture
def extender(resource: ManagedResource) -> Iterator[str]:
    """Its URL."""
    resources = ManagedResources((resource,))
    # Each test reads once, so the cache of the page is never stale.
    server = HealthServer(
        "127.0.0.1",
        0,
        dict,
        dict,
        lambda: Metrics(resources, 2**30, dict).text(),
        held=lambda: (200, encode_held("GiB", {MEM: ()})),
    )
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(autouse=True)
def _cluster(kubectl: FakeKubectl) -> None:
    kubectl.cluster([node("a")], [pod("p", "a")])


def test_the_choice_of_auto_is_one_more_line(
    inspect: Inspect, extender: str, resource: ManagedResource
) -> None:
    resource.choice = CHOICE
    for words in ((), ("-d",), ("-o", "wide")):
        code, out, err = inspect(*words, "--extender", extender)
        assert (code, err) == (0, "")
        plain = inspect(*words)[1]
        assert out == f"{plain}Policy: {SAID}\n"
    for words in (("--no-headers",), ("-o", "name")):
        assert inspect(*words, "--extender", extender) == inspect(*words)


def test_a_shadow_policy_has_a_line_of_its_own(inspect: Inspect) -> None:
    traffic = Traffic([make_node("a", 8, 8), make_node("b", 8, 8)], "binpack", "spread")
    for uid in ("one", "two", "three"):
        traffic.come(uid, Request(2, 1))
    traffic.come("whole", Request(8, 1), ["b"])
    metrics = Metrics(traffic.resources, 2**30, dict, shadow=traffic.shadow)
    server = HealthServer("127.0.0.1", 0, dict, dict, metrics.text)
    server.start()
    try:
        _, out, _ = inspect("--extender", f"http://127.0.0.1:{server.port}")
    finally:
        server.stop()
    text = (
        "Shadow: spread, another choice for 2 of 4 requests; of the pods that run it refused 0,"
        " of those refused it had room for 0\n"
    )
    assert out.endswith(f"\nPolicy: binpack\n{text}")


def test_a_document_has_the_figures(
    inspect: Inspect, extender: str, resource: ManagedResource
) -> None:
    resource.choice = CHOICE
    _, out, _ = inspect("-o", "json", "--extender", extender)
    document = json.loads(out)
    assert yaml.safe_load(inspect("-o", "yaml", "--extender", f"{extender}/")[1]) == document
    assert document["policy"] == {
        "name": "device-bestfit",
        "since": "2027-01-15T08:00:00Z",
        "lead": 1.25,
        "error": 0.5,
        "second": "binpack",
        "candidates": [
            {"name": "device-bestfit", "allocated": 81.25, "refused": 9.0},
            {"name": "binpack", "allocated": 80.0, "refused": 10.5},
        ],
    }
    assert document["held"] == []
    assert {**document, "policy": None, "held": None} == json.loads(inspect("-o", "json")[1])


def test_a_policy_that_no_trial_chose_is_told_by_its_name(inspect: Inspect, extender: str) -> None:
    assert inspect("--extender", extender)[1].endswith("\nPolicy: device-bestfit\n")
    policy = json.loads(inspect("-o", "json", "--extender", extender)[1])["policy"]
    assert policy["name"] == "device-bestfit"
    assert policy["candidates"] == []
    assert {policy[key] for key in ("since", "lead", "error", "second")} == {None}


def test_a_second_whose_lead_may_be_chance_is_told(
    inspect: Inspect, extender: str, resource: ManagedResource
) -> None:
    resource.choice = Choice("device-bestfit", 1.8e9, "fgd", -0.3, 0.4, {}, {})
    assert "0.3 points (error 0.4) less than fgd\n" in inspect("--extender", extender)[1]
    resource.choice = Choice("device-bestfit", 1.8e9, "", 0.0, 0.0, {}, {})
    assert inspect("--extender", extender)[1].endswith("since 2027-01-15T08:00:00Z\n")


def test_a_lead_that_reads_as_none_is_told_as_no_difference(
    inspect: Inspect, extender: str, resource: ManagedResource
) -> None:
    resource.choice = Choice("device-bestfit", 1.8e9, "binpack", 0.0, 0.0, {}, {})
    text = "; in the last trial there was no difference from binpack\n"
    assert inspect("--extender", extender)[1].endswith(text)


def test_without_an_answer_the_rest_is_shown_with_a_warning(
    inspect: Inspect, extender: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    cases = [
        ((f"http://127.0.0.1:{port}",), "does not answer"),
        ((f"{extender}/nowhere",), "does not answer: HTTP Error 404"),
        ((extender, "--resource", "example.com/npu-mem"), "tells nothing of example.com/npu-mem"),
    ]
    for words, text in cases:
        code, out, err = inspect("-o", "json", "--extender", *words)
        assert code == 0
        assert err.startswith("Warning: the policy is not known: ")
        assert text in err
        assert json.loads(out)["policy"] is None
        assert text in json.loads(out)["warnings"][-1]


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9", "ftp://a:1", "http://", "http://a:0", "http://[", "x"]
)
def test_what_is_no_url_is_an_error(url: str, inspect: Inspect, kubectl: FakeKubectl) -> None:
    code, out, err = inspect("--extender", url)
    assert (code, out) == (2, "")
    assert err == f"error: --extender: {url!r} is not http://HOST:PORT\n"
    assert not (kubectl.folder / "log").exists()


def test_the_doctor_says_the_same(extender: str, resource: ManagedResource) -> None:
    resource.choice = CHOICE
    facts = read_extender(extender)
    assert isinstance(facts, ExtenderAnswers)
    (finding,) = [
        item for item in check_extender(healthy(extender=facts)) if item.check == "policy"
    ]
    assert finding.message.startswith(f"pods of {MEM} are ranked by {SAID}; % of the memory")
    assert finding.message.endswith("device-bestfit 81.2, binpack 80.0")
