"""No node ever gets more of a resource than it has, in any order of events."""

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.wire.scheduler.profiles import Profile
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.cycle import FitError, SchedulingCycle
from gpushare_localcluster.scheduler.extender import Candidate
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.profiles import build_frameworks

GPU = "example.com/gpu"
AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["0", "100m", "1", "2500m"]),
        "memory": st.sampled_from(["0", "64Mi", "1Gi", "3Gi"]),
        "ephemeral-storage": st.sampled_from(["1Gi", "5Gi"]),
        GPU: st.sampled_from(["1", "2", "4"]),
    },
)
NODE = st.fixed_dictionaries(
    {"pods": st.sampled_from(["0", "1", "4"])},
    optional={
        "cpu": st.sampled_from(["1", "4"]),
        "memory": st.sampled_from(["1Gi", "4Gi"]),
        "ephemeral-storage": st.just("6Gi"),
        GPU: st.sampled_from(["1", "4"]),
    },
)
POD = st.fixed_dictionaries(
    {
        "containers": st.lists(AMOUNTS, min_size=1, max_size=2),
        "init": st.lists(st.tuples(AMOUNTS, st.booleans()), max_size=2),
        "priority": st.integers(0, 2),
    }
)


def made_pod(name: str, result: dict[str, object]) -> PodView:
    def container(amounts: object) -> dict[str, object]:
        return {"image": "app", "resources": {"requests": amounts}}

    init = [
        container(amounts) | ({"restartPolicy": "Always"} if stays else {})
        for amounts, stays in result["init"]  # type: ignore[attr-defined]  # drawn above
    ]
    containers = [container(amounts) for amounts in result["containers"]]  # type: ignore[attr-defined]
    spec = {"containers": containers, "initContainers": init, "priority": result["priority"]}
    return read_pod({"metadata": {"name": name, "uid": name}, "spec": spec})


class Cluster:
    """Nodes; pods are put where the scheduler says, and victims go."""

    def __init__(self, nodes: list[dict[str, str]], strategy: str) -> None:
        self.nodes = {
            f"n{i}": NodeInfo(
                read_node({"metadata": {"name": f"n{i}"}, "status": {"allocatable": amounts}})
            )
            for i, amounts in enumerate(nodes)
        }
        handle = Handle(evict=self._evict, empty_candidates=False)
        args = {"NodeResourcesFit": {"scoringStrategy": {"type": strategy}}}
        build_frameworks((Profile(args=args),), handle)
        self._cycle = SchedulingCycle(handle, Random(1))

    def place(self, pod: PodView) -> None:
        try:
            decision = self._cycle.decide(pod, Snapshot(tuple(self.nodes.values())))
        except FitError:
            return
        home = self.nodes[decision.node]
        self.nodes[decision.node] = home.with_pod(replace(pod, node_name=decision.node))

    def _evict(self, pod: PodView, candidate: Candidate) -> None:
        for victim in candidate.pods:
            assert victim.priority < pod.priority
            self.nodes[candidate.node] = self.nodes[candidate.node].without_pod(victim.uid)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(NODE, min_size=1, max_size=4),
    st.lists(POD, max_size=12),
    st.sampled_from(["LeastAllocated", "MostAllocated"]),
)
def test_no_node_holds_more_than_it_has(
    nodes: list[dict[str, str]], pods: list[dict[str, object]], strategy: str
) -> None:
    cluster = Cluster(nodes, strategy)
    for number, result in enumerate(pods * 2):
        cluster.place(made_pod(f"p{number}", result))
    for node in cluster.nodes.values():
        values = Counter[str]()
        for pod in node.pods.values():
            values.update(pod.requests)
        for name, amount in values.items():
            assert amount <= node.node.allocatable.get(name, 0)
        assert len(node.pods) <= node.node.allocatable["pods"]
