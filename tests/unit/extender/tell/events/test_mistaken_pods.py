"""Pods that wait by a mistake of their authors: one event for each says the correction."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.managed_resources import ExtenderScope
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.objects import PODS
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import NPU, managed_resources, pod_json
from tests.unit.extender.scripted_extender import Heard

USUAL = ExtenderScope(frozenset([ALIYUN.resource]), frozenset(["gpu"]))
NAMESPACE = "or in a namespace where such pods get one"


class Watch:
    """The handler of pods, its result, and a clock to turn."""

    def __init__(self, scope: ExtenderScope = USUAL, names: Sequence[Names] = (ALIYUN,)) -> None:
        self.resources = replace(managed_resources(*names), scope=scope)
        self.resources.resources[0].ledger.node_changed(make_node("a", 16, 16))
        self.heard = Heard()
        self.now = 0.0
        self.messages = EventMessages(self.heard, self.resources, "GiB", lambda: self.now)
        mistaken = self.messages.mistaken_pods
        self.handler = PodEventHandler(self.resources, mistaken_pods=mistaken)

    def show(self, pod: dict[str, Any], kind: str = "MODIFIED", scheduler: str = "gpu") -> None:
        pod["spec"]["schedulerName"] = scheduler
        text = json.dumps({"type": kind, "object": pod})
        self.handler.apply(PODS.decode_event(text.encode()))

    def relist(self, *pods: dict[str, Any]) -> None:
        head = {"kind": "PodList", "metadata": {"resourceVersion": "7"}}
        self.handler.replace([PODS.decode_list(json.dumps(head | {"items": pods}).encode())], 0.0)

    def told(self, seconds: float = 0.0, ready: bool = True) -> list[tuple[str, str]]:
        """The pods that events name after so many seconds, with the last words of each."""
        for _ in range(5):
            self.messages.tick(ready)
        self.now += seconds
        for _ in range(5):
            self.messages.tick(ready)
        result = [(about, note) for about, reason, note in self.heard.events]
        assert {reason for _, reason, _ in self.heard.events} <= {"GPUShareMistake"}
        self.heard.events.clear()
        return result


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_a_pod_that_kube_scheduler_refuses_by_itself_is_told_what_to_write(watch: Watch) -> None:
    watch.show(pod_json("gi", "5Gi"))
    watch.show(pod_json("mib", "8192"))
    watch.show(pod_json("split", "10", annotations={ALIYUN.count: "3"}))
    watch.show(pod_json("sound", "17"))
    (gi, mib, split) = watch.told()
    assert gi[0] == "Pod gi"
    assert gi[1].endswith("write 5")
    assert mib[0] == "Pod mib"
    assert mib[1].endswith("the largest has 16; the unit is GiB already: if MiB are meant, write 8")
    assert split[0] == "Pod split"
    assert split[1].endswith("write 9 or 12, or another count")


def test_a_pod_that_asks_for_the_count_alone_is_told_what_it_gets(watch: Watch) -> None:
    pod = pod_json("count", "0")
    pod["spec"]["containers"][0]["resources"]["limits"] = {ALIYUN.count: "1"}
    watch.show(pod)
    ((_, told_result),) = watch.told()
    assert "so it gets no device" in told_result


def test_cores_without_memory_and_names_of_others_are_told(watch: Watch) -> None:
    watch.show(pod_json("bare", limits={ALIYUN.cores: "30"}))
    watch.show(pod_json("hami", 4, limits={"nvidia.com/gpumem": "4096"}))
    (_, bare), (_, hami) = watch.told()
    assert bare.startswith(f"{ALIYUN.cores}: cores are asked for without {ALIYUN.resource}")
    assert hami.startswith("nvidia.com/gpumem is HAMi's")


def test_a_percentage_of_memory_alone_is_told_what_to_write_beside(watch: Watch) -> None:
    watch.show(pod_json("bare", limits={ALIYUN.share: "25"}))
    ((_, text),) = watch.told()
    assert text.endswith(f"write {ALIYUN.resource}: 1 beside it")


def test_a_pod_with_a_misspelt_resource_is_told_the_name(watch: Watch) -> None:
    """kube-scheduler calls no extender for it. Whole cards and other resources are no mistake."""
    watch.show(pod_json("web", limits={"aliyun.com/gpu-memory": 4}))
    watch.show(pod_json("whole", limits={"nvidia.com/gpu": 1, "example.com/nic": 1}))
    assert watch.told() == [
        (
            "Pod web",
            "aliyun.com/gpu-memory is none of gpushare's resources: aliyun.com/gpu-mem is probably"
            " meant",
        )
    ]


def test_the_names_of_each_managed_resource_are_compared() -> None:
    watch = Watch(names=(ALIYUN, NPU))
    watch.show(pod_json("npu", limits={"example.com/npumem": 4}))
    ((_, text),) = watch.told()
    assert text.endswith("example.com/npu-mem is probably meant")


def test_it_is_told_once_and_again_where_it_is_another_mistake(watch: Watch) -> None:
    watch.show(pod_json("web", "8192"))
    assert len(watch.told()) == 1
    watch.show(pod_json("web", "8192"))
    assert watch.told(3600.0) == []
    watch.show(pod_json("web", "4096"))
    assert len(watch.told()) == 1


def test_a_pod_that_is_gone_or_bound_is_not_told(watch: Watch) -> None:
    for name in ("gone", "bound", "left"):
        watch.show(pod_json(name, "8192"))
    watch.show(pod_json("gone", "8192"), kind="DELETED")
    watch.show(pod_json("bound", "8192", node="a"))
    watch.relist(pod_json("listed", "8192"))
    assert [about for about, _ in watch.told()] == ["Pod listed"]


def test_who_does_not_lead_tells_nothing_and_who_comes_to_lead_tells_all(watch: Watch) -> None:
    watch.show(pod_json("web", "8192"))
    assert watch.told(ready=False) == []
    assert len(watch.told(ready=True)) == 1


def test_many_mistakes_do_not_hold_up_other_events(watch: Watch) -> None:
    for number in range(20):
        watch.show(pod_json(f"web-{number}", "8192"))
    watch.messages.tick(is_ready=True)
    assert len(watch.heard.events) == 1


def test_a_scheduler_name_that_nobody_goes_by_is_told_when_nobody_has_looked(watch: Watch) -> None:
    watch.show(pod_json("web", "4"), scheduler="gpu-scheduler")
    assert watch.told(29.0) == []
    # Whatever happens to the pod meanwhile, it has waited since it was first seen.
    watch.show(pod_json("web", "4"), scheduler="gpu-scheduler")
    ((about, note),) = watch.told(2.0)
    assert about == "Pod web"
    assert note.startswith("its schedulerName is 'gpu-scheduler', and no scheduler of that name")
    assert note.endswith("here goes by gpu: create the pod again with that schedulerName")


def test_a_pod_that_another_scheduler_has_looked_at_is_that_ones(watch: Watch) -> None:
    watch.show(pod_json("web", "4"), scheduler="other")
    looked = pod_json("web", "4")
    looked["status"]["conditions"] = [{"type": "PodScheduled", "status": "False"}]
    watch.show(looked, scheduler="other")
    watch.show(pod_json("cpu-only"), scheduler="other")
    assert watch.told(60.0) == []


def test_a_pod_whose_mistake_changes_all_the_time_takes_nobody_elses_turn(watch: Watch) -> None:
    for number in range(10):
        watch.show(pod_json("noisy", f"{number}.5"))
        quiet = pod_json(f"quiet-{number}", "5Gi")
        quiet["metadata"]["namespace"] = "elsewhere"
        watch.show(quiet)
        watch.messages.tick(True)
        watch.messages.tick(True)
    names = [about for about, _, _ in watch.heard.events]
    assert names.count("Pod noisy") == 10
    assert {f"Pod quiet-{number}" for number in range(10)} <= set(names)


def test_many_mistakes_of_one_namespace_hold_up_none_of_another(watch: Watch) -> None:
    for number in range(50):
        watch.show(pod_json(f"noisy-{number}", "1.5"))
    quiet = pod_json("quiet", "5Gi")
    quiet["metadata"]["namespace"] = "elsewhere"
    watch.show(quiet)
    for _ in range(2):
        watch.messages.tick(True)
    assert "Pod quiet" in {about for about, _, _ in watch.heard.events}


def test_a_namespace_of_many_mistakes_makes_room_for_anothers(watch: Watch) -> None:
    quiet = pod_json("quiet", "5Gi")
    quiet["metadata"]["namespace"] = "elsewhere"
    watch.show(quiet)
    for number in range(4200):
        watch.show(pod_json(f"noisy-{number}", "5Gi"))
    assert {about for about, _ in watch.told()} >= {"Pod quiet"}


def _blinded(name: str, **more: Any) -> dict[str, Any]:
    pod = pod_json(name, 5, **more)
    pod["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return pod


def test_a_pod_that_runs_and_says_itself_which_cards_it_sees_is_told_once(watch: Watch) -> None:
    watch.relist(_blinded("runs", node="a", phase="Running"))
    ((about, told_result),) = watch.told()
    assert about == "Pod runs"
    assert "sets NVIDIA_VISIBLE_DEVICES itself" in told_result
    watch.relist(_blinded("runs", node="a", phase="Running"))
    assert watch.told() == []
    # The pod asks for no device: its variables are no business of ours.
    watch.show(_blinded("free", node="a") | {"spec": {"nodeName": "a", "containers": []}})
    assert watch.told() == []


def test_a_pod_that_is_bound_meanwhile_is_told_once_and_no_longer_waits(watch: Watch) -> None:
    watch.show(_blinded("waits"))
    assert [item.ref.name for item in watch.messages.mistaken_pods.standing(ALIYUN.resource)]
    version = watch.messages.mistaken_pods.version
    watch.show(_blinded("waits", node="a"))
    assert watch.messages.mistaken_pods.standing(ALIYUN.resource) == []
    assert watch.messages.mistaken_pods.version > version
    assert [about for about, _ in watch.told()] == ["Pod waits"]
    watch.show(_blinded("waits", node="a", phase="Running"))
    assert watch.told() == []


def test_another_mistake_of_a_pod_that_runs_is_none(watch: Watch) -> None:
    watch.show(pod_json("uneven", "10", node="a", annotations={ALIYUN.count: "3"}))
    assert watch.told() == []


def test_pods_of_one_namespace_that_run_hold_up_no_mistake_of_another(watch: Watch) -> None:
    for number in range(20):
        watch.show(_blinded(f"runs{number}", node="a"))
    pod_json_result = pod_json("gi", "5Gi")
    pod_json_result["metadata"]["namespace"] = "quiet"
    watch.show(pod_json_result)
    watch.messages.tick(True)
    watch.messages.tick(True)
    assert "Pod gi" in [about for about, _, _ in watch.heard.events]
