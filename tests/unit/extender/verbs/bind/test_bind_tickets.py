"""A bind needs filter's word, or the pod's own: whoever calls binds nothing that is not ours."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.extender.managed_resources import ExtenderScope, ManagedResources
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.pods import observe_pod
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import FREE, ScriptedExtender

COUNT_ONLY = pod_json("web", limits={ALIYUN.count: 0})
OURS = ExtenderScope(
    frozenset({ALIYUN.resource, ALIYUN.count}), frozenset({"default-scheduler", "gpu"})
)


def extender_of(served: ExtenderScope = OURS) -> ScriptedExtender:
    return ScriptedExtender(served=served)


def of_scheduler(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return {**pod, "spec": {**pod["spec"], "schedulerName": name}}


def bind_read(extender: ScriptedExtender, pod: dict[str, Any], node: str) -> str:
    """The answer to a bind that has the pod read."""
    extender.api.calls.clear()
    extender.api.answers = [json.dumps(pod).encode()]
    error = extender.bind(pod, node)
    assert extender.api.calls[0].method == "GET"
    return error


def posted(extender: ScriptedExtender) -> bool:
    return any(call.method == "POST" for call in extender.api.calls)


def test_what_filter_has_not_approved_is_read_and_judged_anew() -> None:
    extender, pod = extender_of(), pod_json("web", 4)
    assert extender.filter(pod)["NodeNames"] == ["big", "small"]
    assert "larger than any healthy device" in bind_read(extender, pod, "tiny")
    assert "is not known" in bind_read(extender, pod, "nowhere")
    assert not posted(extender)
    assert extender.ledger.counts()["assumed"] == 0
    assert bind_read(extender_of(), pod, "big") == ""


@pytest.mark.parametrize("filtered", [True, False])
def test_a_pod_that_names_none_of_our_resources_is_not_bound(filtered: bool) -> None:
    extender, plain = extender_of(), pod_json("web")
    if filtered:
        assert extender.filter(plain)["NodeNames"] == [*FREE]
    error = bind_read(extender, plain, "big")
    assert "names none of the managedResources (aliyun.com/gpu-count, aliyun.com/gpu-mem)" in error
    assert not posted(extender)
    assert extender.heard.events == []  # and a stranger causes no events about the pod


@pytest.mark.parametrize("container", ["containers", "initContainers"])
@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_one_that_names_a_managed_resource_comes_whatever_its_quantity(
    container: str, kind: str
) -> None:
    """As in kube-scheduler, which checks only the keys of requests and limits."""
    resources = {"resources": {kind: {ALIYUN.resource: "0"}}}
    pod = pod_json("web")
    pod["spec"] = {"containers": [{}], container: [resources]}
    extender = extender_of()
    assert extender.filter(pod)["NodeNames"] == [*FREE]
    assert extender.bind(pod, "big") == ""
    assert [call.method for call in extender.api.calls] == ["POST"]
    assert bind_read(extender_of(), COUNT_ONLY, "small") == ""


@pytest.mark.parametrize("filtered", [True, False])
def test_a_pod_of_another_scheduler_is_not_bound(filtered: bool) -> None:
    extender, pod = extender_of(), of_scheduler(pod_json("web", 4), "another")
    if filtered:
        extender.filter(pod)
    error = bind_read(extender, pod, "big")
    assert "its schedulerName is 'another'" in error
    assert "default-scheduler, gpu" in error
    assert not posted(extender)
    assert extender.ledger.counts()["assumed"] == 0


@pytest.mark.parametrize("name", ["default-scheduler", "gpu"])
def test_pods_of_every_profile_are_bound(name: str) -> None:
    assert bind_read(extender_of(), of_scheduler(pod_json("web", 4), name), "big") == ""


def test_where_a_file_says_that_all_pods_come_all_do() -> None:
    extender = extender_of(ExtenderScope())
    assert bind_read(extender, of_scheduler(pod_json("web", 4), "any"), "big") == ""
    assert bind_read(extender, pod_json("plain"), "big") == ""
    assert "node 'nowhere' is not known" in bind_read(extender, pod_json("other"), "nowhere")


def test_where_an_entry_of_its_own_binds_every_pod_those_of_no_resource_are_bound_too() -> None:
    extender = extender_of(replace(OURS, binds_every_pod=True))
    assert bind_read(extender, pod_json("plain"), "big") == ""
    stranger = of_scheduler(pod_json("other"), "another")
    assert "its schedulerName is 'another'" in bind_read(extender, stranger, "big")


def test_a_plain_pod_is_approved_for_nodes_that_are_there_alone() -> None:
    """The API server binds to any name."""
    extender, plain = extender_of(ExtenderScope()), pod_json("web")
    assert extender.filter(plain, ["big", "nowhere"])["NodeNames"] == ["big", "nowhere"]
    assert "node 'nowhere' is not known" in bind_read(extender, plain, "nowhere")
    assert not posted(extender)


def test_a_pod_that_the_watch_shows_with_another_request_is_read() -> None:
    """A caller of filter may send any request for a pod, a smaller one too."""
    for filtered, true in ((4, 8), (0, 8), (4, 0)):
        extender = extender_of(ExtenderScope())
        watched = Request(true, 1, containers=((0, true),)) if true else Request()
        extender.ledger.pod_changed(ObservedPod(PodRef("team", "web", "uid-web"), watched))
        extender.filter(pod_json("web", filtered))
        assert bind_read(extender, pod_json("web", true), "big") == ""
        entry = extender.ledger.entry("uid-web")
        assert (entry.request.total if entry else 0) == true


def test_a_pod_that_the_watch_shows_as_filter_was_told_is_not_read() -> None:
    extender, pod = extender_of(), pod_json("web", 4)
    watched = Request(4, 1, containers=((0, 4),))
    extender.ledger.pod_changed(ObservedPod(PodRef("team", "web", "uid-web"), watched))
    extender.filter(pod)
    assert extender.bind(pod, "big") == ""
    assert [call.method for call in extender.api.calls] == ["POST"]


def test_a_pod_whose_annotations_have_grown_since_filter_is_read_and_refused() -> None:
    """The API server checks the size at each update, but not at a Binding."""
    extender, pod = extender_of(), pod_json("web", 4)
    extender.filter(pod)
    pod["metadata"]["annotations"]["notes"] = "x" * (256 * 1024 - len("notes"))
    extender.ledger.pod_changed(observe_pod(POD_CODEC.decode(json.dumps(pod).encode()), ALIYUN))
    error = bind_read(extender, pod, "big")
    assert "its annotations have 262144 bytes" in error
    assert not posted(extender)
    assert extender.ledger.counts()["assumed"] == 0


def test_a_library_that_is_told_nothing_serves_all() -> None:
    assert ManagedResources(()).scope == ExtenderScope()
