"""The framework: the plug-ins of each extension point, and the result of each run."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.profiles import PluginSet, Profile
from gpushare_localcluster.scheduler.cache import Cache, NodeInfo, Snapshot
from gpushare_localcluster.scheduler.cycle import FitError, SchedulingCycle
from gpushare_localcluster.scheduler.framework import (
    SKIP,
    SUCCESS,
    Code,
    CycleState,
    NodeNames,
    Status,
)
from gpushare_localcluster.scheduler.handle import Handle, WaitingPod
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.profiles import build_framework, registry
from gpushare_localcluster.scheduler.queue import SchedulingQueue
from gpushare_localcluster.scheduler.runtime import Framework
from gpushare_localcluster.scheduler.scheduler import Feed


def pod(name: str = "p", **spec: Any) -> PodView:
    return read_pod({"metadata": {"name": name, "uid": name}, "spec": spec})


def snapshot(*names: str) -> Snapshot:
    return Snapshot(tuple(NodeInfo(read_node({"metadata": {"name": name}})) for name in names))


class Favourite:
    """Scores one node 5 and the others 1, of 5."""

    def __init__(self, name: str, node: str = "") -> None:
        self.name = name
        self._node = node

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        return 5 if node.name == self._node else 1

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        return {name: score * 20 for name, score in scores.items()}


class Narrow:
    """Names some nodes only, or objects; and rejects every node in its filter."""

    def __init__(self, name: str, names: Sequence[str] | None, status: Status = SUCCESS) -> None:
        self.name = name
        self._answer = (None if names is None else frozenset(names), status)

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, Status]:
        return self._answer

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        return Status(Code.UNSCHEDULABLE, (f"seen by {self.name}",))


class Gate:
    """Permits, denies or delays by an argument; records the order of reserve calls."""

    def __init__(self, name: str, answer: tuple[Status, float], calls: list[str]) -> None:
        self.name = name
        self._answer = answer
        self._told = calls

    def permit(self, state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]:
        return self._answer

    def reserve(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        self._told.append(f"reserve {self.name}")
        return self._answer[0]

    def unreserve(self, state: CycleState, pod: PodView, node_name: str) -> None:
        self._told.append(f"unreserve {self.name}")


def decide(framework: Framework, *names: str, seed: int = 1) -> str:
    handle = Handle(profiles={"default-scheduler": framework})
    return SchedulingCycle(handle, Random(seed)).decide(pod(), snapshot(*names)).node


def refusal(framework: Framework, *names: str) -> str:
    with pytest.raises(FitError) as raised:
        decide(framework, *names)
    return str(raised.value)


def test_scores_are_normalized_and_weighted() -> None:
    plugins = (Favourite("light", "n1"), Favourite("heavy", "n2"))
    framework = Framework(plugins, weights={"heavy": 2})
    scores = framework.run_scores(CycleState(), pod(), snapshot("n1", "n2").nodes)
    assert scores == {"light": {"n1": 100, "n2": 20}, "heavy": {"n1": 40, "n2": 200}}
    assert decide(framework, "n1", "n2") == "n2"


def test_equal_nodes_are_drawn_evenly_and_the_seed_repeats_the_draw() -> None:
    framework = Framework((Favourite("none"),))
    drawn = Counter(decide(framework, "n1", "n2", "n3", "n4", seed=seed) for seed in range(400))
    assert set(drawn) == {"n1", "n2", "n3", "n4"}
    assert min(drawn.values()) > 60
    assert decide(framework, "n1", "n2", seed=5) == decide(framework, "n1", "n2", seed=5)


def test_a_skipped_plug_in_does_not_filter() -> None:
    assert decide(Framework((Narrow("a", None, SKIP),)), "n1") == "n1"
    text = refusal(Framework((Narrow("a", None),)), "n1")
    assert text == "0/1 nodes are available: 1 seen by a."


def test_what_pre_filter_narrows_and_refuses_is_said_as_kube_scheduler_says_it() -> None:
    one = refusal(Framework((Narrow("a", ["n1"]),)), "n1", "n2")
    assert one == ("0/2 nodes are available: 1 node(s) didn't satisfy plugin(s) [a], 1 seen by a.")
    both = refusal(Framework((Narrow("b", ["n1"]), Narrow("a", ["n2"]))), "n1", "n2")
    assert both == "0/2 nodes are available: node(s) didn't satisfy plugin(s) [a b] simultaneously."
    alone = refusal(Framework((Narrow("a", []),)), "n1")
    assert alone == "0/1 nodes are available: node(s) didn't satisfy plugin a."
    never = Narrow("a", None, Status(Code.UNRESOLVABLE, ("never",)))
    assert refusal(Framework((never,)), "n1") == "0/1 nodes are available: never."


def test_reserved_in_order_and_given_back_in_reverse() -> None:
    calls: list[str] = []
    no = Status(Code.UNSCHEDULABLE, ("full",))
    plugins = [Gate("a", (SUCCESS, 0), calls), Gate("b", (no, 0), calls), Gate("c", (no, 0), calls)]
    framework = Framework(plugins)
    status = framework.run_reserve(CycleState(), pod(), "n1")
    assert (status.plugin, status.message) == ("b", "full")
    framework.run_unreserve(CycleState(), pod(), "n1")
    assert calls == ["reserve a", "reserve b", "unreserve c", "unreserve b", "unreserve a"]


def test_one_denial_outweighs_any_wait() -> None:
    wait, no = Status(Code.WAIT), Status(Code.UNSCHEDULABLE, ("no",))
    patient = Gate("patient", (wait, 3.0), [])
    status, waits = Framework((patient,)).run_permit(CycleState(), pod(), "n1")
    assert (status.code, waits) == (Code.WAIT, {"patient": 3.0})
    framework = Framework((patient, Gate("strict", (no, 0), [])))
    assert framework.run_permit(CycleState(), pod(), "n1") == (
        Status(Code.UNSCHEDULABLE, ("no",), "strict"),
        {},
    )


def test_a_waiting_pod_is_let_go_when_all_have_allowed_it() -> None:
    pending = WaitingPod(pod(), "n1", {"a": 60.0, "b": 60.0})
    answers: list[Status] = []
    thread = threading.Thread(target=lambda: answers.append(pending.wait()))
    thread.start()
    pending.allow("a")
    assert not answers
    pending.allow("b")
    thread.join(10)
    assert answers == [SUCCESS]


def test_a_wait_ends_by_the_first_rejection_or_by_time() -> None:
    item = WaitingPod(pod(), "n1", {"a": 60.0})
    item.reject("other", "not today")
    item.allow("a")
    assert item.wait() == Status(Code.UNSCHEDULABLE, ("not today",), "other")
    late = WaitingPod(pod(), "n1", {"a": 60.0, "b": 0.01}).wait()
    assert late.message == "rejected due to timeout after waiting 0.01s at plugin b"


def test_a_pod_that_is_deleted_waits_no_more() -> None:
    queue, cache = SchedulingQueue(lambda *_: True), Cache()
    pods = WaitingPod(pod(), "n1", {"a": 60.0})
    Feed(queue, cache, {pod().uid: pods}, frozenset()).pod(pod().raw, None, 1.0)
    assert pods.wait().message == "removed"


class Counted:
    """A value that is copied with the state of a cycle."""

    def __init__(self, count: int) -> None:
        self.count = count

    def clone(self) -> "Counted":
        return Counted(self.count)


def test_a_cloned_state_can_be_changed_without_changing_the_first() -> None:
    state = CycleState()
    state.write("counted", Counted(1))
    state.write("plain", "text")
    copy = state.clone()
    copy.read("counted", Counted).count = 2
    copy.write("plain", "other")
    assert (state.read("counted", Counted).count, state.read("plain", str)) == (1, "text")
    with pytest.raises(KeyError, match="plain: no int in the cycle's state"):
        state.read("plain", int)


def names(framework: Framework, point: str) -> list[str]:
    return [plugin.name for plugin in getattr(framework, point)]


def built(**plugins: PluginSet) -> Framework:
    factories = registry() | {"Mine": lambda args, handle: Favourite("Mine")}
    return build_framework(Profile(plugins=plugins), Handle(), factories, frozenset())


def test_the_default_profile_has_kube_schedulers_order_and_weights() -> None:
    framework = built()
    assert names(framework, "filters") == [
        "NodeName",
        "NodeUnschedulable",
        "TaintToleration",
        "NodeAffinity",
        "NodePorts",
        "NodeResourcesFit",
        "PodTopologySpread",
        "InterPodAffinity",
        "DynamicResources",
    ]
    assert names(framework, "scorers") == [
        "TaintToleration",
        "NodeAffinity",
        "NodeResourcesFit",
        "PodTopologySpread",
        "InterPodAffinity",
        "NodeResourcesBalancedAllocation",
        "ImageLocality",
    ]
    assert names(framework, "pre_enqueues") == ["SchedulingGates", "DynamicResources"]
    assert names(framework, "binders") == ["DefaultBinder"]
    assert [framework.weight(name) for name in names(framework, "scorers")] == [3, 2, 1, 2, 2, 1, 1]


def test_plug_ins_are_disabled_enabled_and_ordered_as_in_kube_scheduler() -> None:
    off = built(score=PluginSet(disabled=("*",), enabled=(("Mine", 7),)))
    assert names(off, "scorers") == ["Mine"]
    assert off.weight("Mine") == 7
    some = built(filter=PluginSet(disabled=("NodePorts", "InterPodAffinity")))
    assert "NodePorts" not in names(some, "filters")
    assert "NodePorts" in names(some, "pre_filters")
    added = built(multiPoint=PluginSet(enabled=(("Mine", 2), ("ImageLocality", 9))))
    assert names(added, "scorers")[-2:] == ["ImageLocality", "Mine"]
    assert added.weight("ImageLocality") == 9
    first = built(score=PluginSet(enabled=(("Mine", 1), ("ImageLocality", 4))))
    assert names(first, "scorers")[0] == "ImageLocality"
    assert names(first, "scorers")[-1] == "Mine"


@pytest.mark.parametrize(
    ("point", "plugins", "sentence"),
    [
        ("score", PluginSet(enabled=(("Nobody", 1),)), 'plugin "Nobody" does not exist'),
        ("filter", PluginSet(enabled=(("Mine", 1),)), '"Mine" does not extend filter plugin'),
        ("bind", PluginSet(disabled=("*",)), "at least one bind plugin is needed"),
        ("queueSort", PluginSet(disabled=("*",)), "one queue sort plugin is needed"),
    ],
)
def test_a_profile_that_cannot_work_is_refused(
    point: str, plugins: PluginSet, sentence: str
) -> None:
    with pytest.raises(SettingsError, match=f'profile "default-scheduler": .*{sentence}'):
        built(**{point: plugins})


def test_plug_ins_of_kube_scheduler_that_are_not_built_cost_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    framework = built(
        multiPoint=PluginSet(enabled=(("VolumeBinding", 0), ("GangScheduling", 2))),
        filter=PluginSet(enabled=(("VolumeZone", 0),)),
    )
    assert "VolumeZone" not in names(framework, "filters")
    (record,) = caplog.records
    assert record.getMessage().endswith("GangScheduling, VolumeBinding, VolumeZone")


def test_wrong_arguments_name_the_plug_in() -> None:
    args = {"NodeResourcesFit": {"scoringStrategy": {"type": "Random"}}}
    with pytest.raises(SettingsError, match="'Random' is no strategy") as raised:
        build_framework(Profile(args=args), Handle(), registry(), frozenset())
    assert 'plugin "NodeResourcesFit"' in str(raised.value)
