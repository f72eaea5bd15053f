"""The work of the small scheduler around its decisions, on the local API server."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, CycleState, NodeNames, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.plugins.registry import IN_TREE
from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler

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
        scheduler = Scheduler(self.server.url, options)
        scheduler.start()
        try:
            yield scheduler
        finally:
            scheduler.stop()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    server = ApiServer(Store())
    with ExitStack() as ends:
        server.start()
        ends.callback(server.stop)
        cluster = Cluster(server)
        ends.callback(cluster.api.close)
        yield cluster


class Friends:
    """Lets the pod `late` in when `first` is bound. Registers no event that would wake `late`."""

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


_WITHOUT_SPREAD = {"multiPoint": PluginSet(disabled=("PodTopologySpread",))}


@pytest.mark.parametrize(
    ("profiles", "watched"),
    [
        ((Profile(),), True),
        ((Profile(plugins=_WITHOUT_SPREAD),), False),
        ((Profile(args={"PodTopologySpread": {"defaultingType": "List"}}),), False),
        ((Profile(plugins=_WITHOUT_SPREAD), Profile(scheduler_name="other")), True),
    ],
)
def test_services_are_watched_only_where_a_profile_spreads_by_default(
    cluster: Cluster, profiles: tuple[Profile, ...], watched: bool
) -> None:
    before = set(threading.enumerate())
    with cluster.scheduler(SchedulerOptions(profiles=profiles)) as scheduler:
        assert scheduler.wait_synced(_LONG)
        names = {thread.name for thread in threading.enumerate() if thread not in before}
        assert ("informer /api/v1/services" in names) == watched
        assert "informer /api/v1/nodes" in names
