"""What the small scheduler does around its decisions, on the local API server."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from gpushare.localcluster.api.apiserver import ApiServer
from gpushare.localcluster.api.store import Store
from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.scheduler.cache import NodeInfo
from gpushare.localcluster.scheduler.config import SchedulerOptions
from gpushare.localcluster.scheduler.cycle_state import CycleState
from gpushare.localcluster.scheduler.framework import SUCCESS, Code, NodeNames, Status
from gpushare.localcluster.scheduler.handle import Handle
from gpushare.localcluster.scheduler.objects import PodView
from gpushare.localcluster.scheduler.plugins.registry import IN_TREE
from gpushare.localcluster.scheduler.scheduler import Scheduler
from gpushare.wire.scheduler.profiles import PluginSet, Profile

Json = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
_LONG = 60.0


def eventually(holds: Callable[[], object]) -> None:
    end = time.monotonic() + _LONG
    while not holds():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


class Cluster:
    """An API server with one node, and the few calls that tests make."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.api = ApiClient(server.url, user_agent="test")
        amounts = {"cpu": "8", "memory": "16Gi", "pods": "10"}
        head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        self.api.create("/api/v1/nodes", head | {"status": {"allocatable": amounts}})

    def pod(self, name: str, **spec: Any) -> None:
        whole = {"containers": [{"name": "main", "image": "pause"}], **spec}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}
        self.api.create(PODS, body)

    def node_of(self, name: str) -> str:
        return str(self.api.get(f"{PODS}/{name}")["spec"].get("nodeName", ""))

    def waits(self, name: str) -> bool:
        return bool(self.api.get(f"{PODS}/{name}")["status"].get("conditions"))

    @contextmanager
    def scheduler(self, options: SchedulerOptions) -> Iterator[Scheduler]:
        made = Scheduler(self.server.url, options)
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    server = ApiServer(Store())
    with ExitStack() as ends:
        server.start()
        ends.callback(server.stop)
        made = Cluster(server)
        ends.callback(made.api.close)
        yield made


class Friends:
    """Lets the pod `late` in when `first` is bound. It registers no event that would wake it."""

    name = "Friends"

    def __init__(self, args: Json, handle: Handle) -> None:
        self._late: dict[str, PodView] = {}
        self._open = False

    def events_to_register(self) -> tuple[()]:
        return ()

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, Status]:
        if pod.name == "first" or self._open:
            return None, SUCCESS
        self._late[pod.uid] = pod
        return None, Status(Code.UNSCHEDULABLE, ("first comes first",))

    def post_bind(self, state: CycleState, pod: PodView, node_name: str) -> None:
        self._open = True
        state.pods_to_activate.update(self._late)


def test_a_plug_in_has_other_pods_tried_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IN_TREE, "Friends", Friends)
    on = {"multiPoint": PluginSet(enabled=(("Friends", 0),))}
    with cluster.scheduler(SchedulerOptions(profiles=(Profile(plugins=on),))):
        cluster.pod("late")
        eventually(lambda: cluster.waits("late"))
        cluster.pod("first")
        eventually(lambda: cluster.node_of("late"))
