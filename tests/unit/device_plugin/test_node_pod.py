"""The devices of each container by the annotations of the Binding; edits change nothing."""

from typing import Any

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_request import LIMITS_LABEL, MEMORY_LIMIT
from gpushare.wire.whole_card import WHOLE_CARD
from tests.unit.device_plugin.pods import pod_json, read

Json = dict[str, Any]


def given(body: Json) -> dict[str, dict[int, int]]:
    pod = read(body)
    assert pod.problem == ""
    return {part.name: dict(part.shares) for part in pod.gpu_containers}


def test_each_container_has_its_own_share() -> None:
    assert given(pod_json(3, 1, devices=[2])) == {"c0": {2: 3}, "c1": {2: 1}}


def test_containers_fill_several_devices_one_after_the_other() -> None:
    body = pod_json(3, 5, devices=[1, 3])
    assert given(body) == {"c0": {1: 3}, "c1": {1: 1, 3: 4}}


def test_the_map_of_the_binding_counts_where_it_says_otherwise() -> None:
    body = pod_json(4, 4, devices=[0, 1])
    body["metadata"]["annotations"][ALIYUN.allocation] = '{"0":{"1":4},"1":{"0":4}}'
    assert given(body) == {"c0": {1: 4}, "c1": {0: 4}}


def test_sidecars_have_what_the_map_leaves() -> None:
    assert given(pod_json(4, devices=[0, 1], sidecars=[4])) == {"s0": {1: 4}, "c0": {0: 4}}


def test_init_containers_have_units_that_others_use_again() -> None:
    assert given(pod_json(2, devices=[3], inits=[4, 1])) == {
        "i0": {3: 4},
        "i1": {3: 1},
        "c0": {3: 2},
    }


def test_init_containers_alone_have_a_device() -> None:
    assert given(pod_json(0, devices=[1], inits=[2])) == {"i0": {1: 2}}


def test_containers_that_ask_for_nothing_are_not_served() -> None:
    assert given(pod_json(0, 2, devices=[1])) == {"c1": {1: 2}}
    assert given(pod_json(0)) == {}


@pytest.mark.parametrize(("cores", "percent"), [("30", 30), ("5Gi", 0), (None, 0)])
def test_compute_is_the_containers_own_and_nonsense_costs_no_device(
    cores: str | None, percent: int
) -> None:
    body = pod_json(4, devices=[1])
    if cores is not None:
        body["spec"]["containers"][0]["resources"]["limits"][ALIYUN.cores] = cores
    (container,) = read(body).gpu_containers
    assert (container.units, container.cores) == (4, percent)


@pytest.mark.parametrize(
    ("cores", "text", "whole"),
    [
        ((200,), "true", True),
        ((200,), "false", False),
        ((200,), "True", False),
        ((190,), "true", False),
        ((), "true", False),
        ((100, 100), "true", True),
    ],
)
def test_all_memory_of_its_cards_is_for_a_pod_that_has_them_alone(
    cores: tuple[int, ...], text: str, whole: bool
) -> None:
    units = (2,) * max(1, len(cores))
    body = pod_json(*units, devices=[0, 1], cores=cores, annotations={WHOLE_CARD: text})
    pod = read(body)
    assert (pod.problem, pod.whole_cards) == ("", whole)


def test_the_percentage_of_memory_is_read_from_the_spec() -> None:
    body = pod_json(1, devices=[0])
    body["spec"]["containers"][0]["resources"]["limits"][ALIYUN.share] = "25"
    pod = read(body)
    (container,) = pod.gpu_containers
    assert (pod.problem, container.units, container.share) == ("", 1, 25)


def test_the_limit_is_the_one_that_was_seen_first() -> None:
    body = pod_json(4, annotations={MEMORY_LIMIT: "8"})
    assert LIMITS_LABEL in read(body).problem
    body["spec"]["nodeSelector"] = {LIMITS_LABEL: "true"}
    first = read(body)
    assert (first.problem, first.memory_limit) == ("", 8)
    body["metadata"]["annotations"][MEMORY_LIMIT] = "12"
    assert read(body).as_first_seen(first).memory_limit == 8


def test_who_takes_the_whole_card_later_does_not_get_it() -> None:
    body = pod_json(2, cores=(100,))
    first = read(body)
    body["metadata"]["annotations"][WHOLE_CARD] = "true"
    assert read(body).whole_cards
    assert not read(body).as_first_seen(first).whole_cards


def test_who_was_bound_by_an_extender_that_counts_no_compute_shares_its_card() -> None:
    body = pod_json(2, cores=(100,), annotations={WHOLE_CARD: "true"})
    assert read(body).whole_cards
    del body["metadata"]["annotations"][ALIYUN.core_allocation]
    assert not read(body).whole_cards


def test_a_pod_without_a_device_has_no_whole_card() -> None:
    notes = {WHOLE_CARD: "true", ALIYUN.idx: "x", ALIYUN.allocation: "{}"}
    pod = read(pod_json(2, cores=(100,), annotations=notes))
    assert (bool(pod.problem), pod.whole_cards) == (True, False)


def test_the_names_of_the_cards_stand_beside() -> None:
    pod = read(pod_json(4, devices=[1, 3], uuids=["GPU-b", "GPU-d"]))
    assert pod.uuids == {1: "GPU-b", 3: "GPU-d"}


@pytest.mark.parametrize(
    ("notes", "problem"),
    [
        ({ALIYUN.idx: "", ALIYUN.allocation: ""}, "name no device that can be used"),
        ({ALIYUN.idx: "x", ALIYUN.allocation: "{}"}, "name no device that can be used"),
        ({ALIYUN.idx: "0", ALIYUN.allocation: '{"0":{"1":4}}'}, "contradict each other"),
        ({ALIYUN.uuids: "GPU-a,GPU-b"}, "does not match"),
        ({ALIYUN.uuids: "GPU a"}, "does not match"),
        ({ALIYUN.count: "3"}, "cannot be split evenly"),
        ({ALIYUN.count: "many"}, "is not a number of devices"),
    ],
)
def test_annotations_that_make_no_sense_are_a_problem_that_is_named(
    notes: dict[str, str], problem: str
) -> None:
    pod = read(pod_json(4, annotations=notes))
    assert problem in pod.problem
    assert [part.units for part in pod.gpu_containers] == [4]


def test_annotations_that_are_edited_later_change_no_device() -> None:
    body = pod_json(4, devices=[1])
    first = read(body)
    notes = body["metadata"]["annotations"]
    for edited in ({ALIYUN.idx: "0", ALIYUN.allocation: ""}, {ALIYUN.idx: "x"}):
        later = {**body, "metadata": {**body["metadata"], "annotations": {**notes, **edited}}}
        retained = read(later).as_first_seen(first)
        assert (retained.gpu_containers, retained.problem) == (first.gpu_containers, "")


def test_the_state_of_the_pod_is_read() -> None:
    body = pod_json(1, annotations={ALIYUN.assigned: "true"})
    assert read(body).assigned
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body["status"] = {"phase": "Failed", "startTime": "2026-01-01T00:00:00Z"}
    pod = read(body)
    assert (pod.ended, pod.terminating, pod.started) == (True, True, True)
