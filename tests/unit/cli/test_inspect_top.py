"""`--top` shows the use of GPUs by container, and a warning for each node without an answer."""

import json
from collections.abc import Callable

import pytest

from gpushare.cli.top import UseLine, uses_in
from gpushare.core.model import PodRef
from gpushare.device_plugin.memory import ComputeUse, ContainerUse, UsageFigures
from gpushare.device_plugin.metrics import PluginMetrics
from gpushare.device_plugin.node_pod import NodePod
from tests.unit.cli.fake_kubectl import FakeKubectl, node, pod
from tests.unit.device_plugin.pods import cards

Inspect = Callable[..., tuple[int, str, str]]

GIB = 2**30
PLUGINS = "get --raw /api/v1/pods?labelSelector=app%3Dgpushare-device-plugin"
PROXY = "get --raw /api/v1/namespaces/gpushare/pods/"


def plugin(name: str, on: str, port: int | None = None) -> dict[str, object]:
    ports = [] if port is None else [{"name": "health", "containerPort": port}]
    return {
        "metadata": {"name": name, "namespace": "gpushare"},
        "spec": {"nodeName": on, "containers": [{"ports": ports}]},
    }


def metrics(*uses: tuple[str, str, str, int | None, int]) -> str:
    """The real plug-in's metrics: (namespace, pod, card, percent of SMs, GiB of 8 GiB)."""
    pods = {name: NodePod(PodRef(namespace, name, name)) for namespace, name, *_ in uses}
    figures = UsageFigures(
        uses=tuple(
            ContainerUse(pods[name], "main", uuid, 8 * GIB, gib * GIB, 8 * GIB, "none")
            for _, name, uuid, _, gib in uses
        ),
        compute_uses=tuple(
            ComputeUse(pods[name], "main", uuid, percent)
            for _, name, uuid, percent, _ in uses
            if percent is not None
        ),
    )
    return PluginMetrics(lambda: cards(16, 16), int, int, lambda: figures).text().decode()


@pytest.fixture(autouse=True)
def _cluster(kubectl: FakeKubectl) -> None:
    kubectl.cluster([node("a"), node("b"), node("c")], [pod("web", "a")])
    plugins = [plugin("plugin-a", "a"), plugin("plugin-b", "b", 999), plugin("other", "elsewhere")]
    kubectl.answers(PLUGINS, json.dumps({"items": plugins}))
    used = metrics(("team", "web", "GPU-0", 10, 3), ("default", "train", "GPU-1", None, 7))
    kubectl.answers(f"{PROXY}plugin-a:32765/proxy/metrics", used)
    kubectl.answers(f"{PROXY}plugin-b:999/proxy/metrics", metrics(("team", "x", "GPU-0", 95, 1)))


def test_the_largest_use_comes_first_and_a_node_without_a_plug_in_is_a_warning(
    inspect: Inspect,
) -> None:
    code, out, err = inspect("--top")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["NODE", "NAMESPACE", "POD", "CONTAINER", "GPU", "SM", "MEMORY(MiB)", "GRANTED(MiB)"],
        ["b", "team", "x", "main", "GPU-0", "95%", "1024", "8192"],
        ["a", "team", "web", "main", "GPU-0", "10%", "3072", "8192"],
        ["a", "default", "train", "main", "GPU-1", "-", "7168", "8192"],
    ]
    assert err == "Warning: node c has no device plug-in\n"


def test_nodes_and_namespaces_select(inspect: Inspect, kubectl: FakeKubectl) -> None:
    kubectl.answers("get --raw /api/v1/nodes/a", json.dumps(node("a")))
    out = inspect("--top", "-n", "team", "--no-headers")[1]
    assert [line.split()[2] for line in out.splitlines()] == ["x", "web"]


def test_a_plug_in_that_cannot_be_asked_leaves_the_others(
    inspect: Inspect, kubectl: FakeKubectl
) -> None:
    refusal = 'echo "Error from server (Forbidden): pods/proxy" >&2; exit 1'
    kubectl.does(f"{PROXY}plugin-b:999/proxy/metrics", refusal)
    code, out, err = inspect("--top", "--no-headers")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()] == ["web", "train"]
    assert "Warning: node b: the device plug-in's metrics are not known: Error from" in err


@pytest.mark.parametrize("words", [("-o", "json"), ("-w",)])
def test_other_forms_are_refused(inspect: Inspect, words: tuple[str, ...]) -> None:
    code, out, err = inspect("--top", *words)
    assert (code, out) == (2, "")
    assert "--top is one table" in err


def test_a_figure_that_is_missing_is_unknown_and_other_metrics_are_left_out() -> None:
    text = metrics(("team", "web", "GPU-0", 10, 3)).replace("container_memory_used", "other")
    expected = UseLine("a", "team", "web", "main", "GPU-0", sm_percent=10, granted_bytes=8 * GIB)
    assert list(uses_in(text, "a")) == [expected]
    assert list(uses_in("<html>\n}{ 1\n", "a")) == []
