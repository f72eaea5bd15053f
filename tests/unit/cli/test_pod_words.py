"""The pods that the words of `gpushare explain` name."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.cli.kubectl import Kubectl
from gpushare.cli.pod_words import pod_named
from tests.unit.cli.fake_kubectl import FakeKubectl, inventory, node, pending, pod

Inspect = Callable[..., tuple[int, str, str]]

APPS = "get --raw /apis/apps/v1/namespaces/default"
PODS = "get --raw /api/v1/namespaces/default/pods?labelSelector="


def ended(name: str) -> dict[str, Any]:
    return {**pod(name, "a"), "status": {"phase": "Succeeded"}}


@pytest.fixture
def web(kubectl: FakeKubectl) -> FakeKubectl:
    """Deployment web of three pods: one runs, one has ended, one is pending."""
    runs = pod("web-1", "a", 10)
    kubectl.cluster([node("a", inventory=inventory(16))], [runs], page=500)
    no_pods = json.dumps({"kind": "PodList", "items": []})
    kubectl.before(f"case \"$3\" in /api/v1/pods\\?labelSelector*) echo '{no_pods}'; exit ;; esac")
    expressions = [
        {"key": "tier", "operator": "In", "values": ["x", "y"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": expressions}
    kubectl.answers(f"{APPS}/deployments/web", json.dumps({"spec": {"selector": selector}}))
    kubectl.answers("config view --minify --output=jsonpath={..namespace}", "default")
    lists(kubectl, "app%3Dweb%2Ctier%20in%20%28x%2Cy%29%2C%21old", runs, ended("web-2"), late())
    return kubectl


def late() -> dict[str, Any]:
    return pending("web-3", 8)


def lists(kubectl: FakeKubectl, labels: str, *pods: dict[str, Any]) -> None:
    """Answer for the pods with these labels."""
    text = json.dumps({"kind": "PodList", "items": pods})
    kubectl.answers(f"{PODS}{labels}", text)


@pytest.mark.parametrize(
    ("word", "namespace", "expected"),
    [
        ("web-0", "team", ("team", "web-0")),
        ("pod/web-0", "team", ("team", "web-0")),
        ("other/web-0", "team", ("other", "web-0")),
        ("web-0", "", ("default", "web-0")),
    ],
)
def test_a_pod_may_be_named_in_three_ways(
    web: FakeKubectl, word: str, namespace: str, expected: tuple[str, str]
) -> None:
    assert pod_named(word, namespace, Kubectl(str(web.path), environ=web.environ)) == expected


@pytest.mark.parametrize("word", ["deploy/web", "deployment/web", "Deployments.apps/web"])
def test_the_pods_of_a_workload_are_explained_and_pending_ones_first(
    web: FakeKubectl, inspect: Inspect, word: str
) -> None:
    code, out, err = inspect("explain", word)
    assert (code, err) == (0, "")
    first, second = out.split("\n\n")
    assert first.startswith("Pod:        default/web-3 is pending")
    assert second.startswith("Pod:        default/web-1 is bound to a")
    # The cluster is listed once.
    assert sum("/api/v1/nodes" in line for line in web.log) == 1


def test_the_document_has_all_pods(web: FakeKubectl, inspect: Inspect) -> None:
    lists(web, "app%3Dx", *(pending(f"p{number}", 8 + number) for number in range(7)))
    document = json.loads(inspect("explain", "-l", "app=x", "-o", "json")[1])
    names = [part["pod"]["name"] for part in (document, *document["others"])]
    assert names == [f"p{number}" for number in range(7)]
    out = inspect("explain", "-l", "app=x")[1]
    assert out.count("Pod:") == 5
    assert out.endswith("\n\nand 2 more pods: -o json has all, or name one\n")


def test_a_pod_with_equal_facts_is_named_below_the_first(
    web: FakeKubectl, inspect: Inspect
) -> None:
    lists(web, "app%3Dx", *(pending(name, 8) for name in ("p1", "p2", "p3")), pending("p4", 7))
    first, second = inspect("explain", "-l", "app=x")[1].split("\n\n")
    assert first.startswith("Pod:        default/p1 is pending")
    assert first.splitlines()[-1] == "Alike:      default/p2, default/p3"
    assert second.startswith("Pod:        default/p4 is pending")


def test_a_pod_without_gpu_memory_among_others_is_a_warning(
    web: FakeKubectl, inspect: Inspect
) -> None:
    lists(web, "app%3Dx", pending("none", 0), pending("some", 8))
    code, out, err = inspect("explain", "-l", "app=x")
    assert code == 0
    assert out.startswith("Pod:        default/some")
    assert err == (
        "Warning: pod default/none asks for no aliyun.com/gpu-mem: gpushare has no say in it\n"
    )


def test_labels_without_a_pod_are_an_error(web: FakeKubectl, inspect: Inspect) -> None:
    lists(web, "app%3Dx", ended("gone"))
    text = "error: no pod of app=x runs or waits in namespace default\n"
    assert inspect("explain", "-l", "app=x") == (1, "", text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "which pod? Name one, or a workload as deploy/web, or labels by -l"),
        (("web-1", "-l", "app=x"), "name cannot be provided when a selector is specified"),
        (("deploy/..",), "'..' is no name of a deploy"),
    ],
)
def test_words_that_name_no_pod_are_wrong_usage(
    web: FakeKubectl, inspect: Inspect, words: tuple[str, ...], text: str
) -> None:
    assert inspect("explain", *words) == (2, "", f"error: {text}\n")
