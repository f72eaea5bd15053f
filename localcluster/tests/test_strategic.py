"""Strategic merge patch: keyed lists, order, and the directives that kubectl and client-go send."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.patch import strategic_merge
from gpushare_localcluster.api.status import StatusError

Items = list[dict[str, object]]


def containers(*names: str) -> Items:
    return [{"name": name, "image": f"{name}:1"} for name in names]


def names(body: dict[str, object], field: str = "containers") -> list[object]:
    result = body[field]
    assert isinstance(result, list)
    return [item["name"] for item in result]


def test_a_condition_is_merged_by_type_and_the_others_stay() -> None:
    old = {"conditions": [{"type": "Ready", "status": "True"}, {"type": "X", "status": "True"}]}
    patch = {"conditions": [{"type": "Ready", "status": "False", "reason": "R"}]}
    assert strategic_merge(old, patch)["conditions"] == [
        {"type": "Ready", "status": "False", "reason": "R"},
        {"type": "X", "status": "True"},
    ]


def test_null_removes_a_field() -> None:
    assert strategic_merge({"nominatedNodeName": "n", "a": 1}, {"nominatedNodeName": None}) == {
        "a": 1
    }


def test_ports_of_a_container_and_of_a_service_have_different_keys() -> None:
    pod = {"containers": [{"name": "c", "ports": [{"containerPort": 1}, {"containerPort": 2}]}]}
    patch = {"containers": [{"name": "c", "ports": [{"containerPort": 2, "name": "b"}]}]}
    assert strategic_merge(pod, patch)["containers"][0]["ports"] == [
        {"containerPort": 1},
        {"containerPort": 2, "name": "b"},
    ]
    service = {"spec": {"ports": [{"port": 1}, {"port": 2}]}}
    patched = strategic_merge(service, {"spec": {"ports": [{"port": 2, "name": "b"}]}})
    assert patched["spec"]["ports"] == [{"port": 1}, {"port": 2, "name": "b"}]


@pytest.mark.parametrize("field", ["tolerations", "taints", "command", "args"])
def test_lists_without_a_merge_key_are_replaced_whole(field: str) -> None:
    assert strategic_merge({field: [1, 2]}, {field: [3]}) == {field: [3]}


def test_an_item_is_deleted_by_directive() -> None:
    patched = strategic_merge(
        {"containers": containers("a", "b")}, {"containers": [{"$patch": "delete", "name": "a"}]}
    )
    assert names(patched) == ["b"]


def test_a_list_is_replaced_by_directive() -> None:
    patch = {"containers": [{"$patch": "replace"}, *containers("c")]}
    assert names(strategic_merge({"containers": containers("a", "b")}, patch)) == ["c"]


def test_an_object_is_replaced_or_emptied_by_directive() -> None:
    old = {"a": {"b": 1, "c": 2}}
    assert strategic_merge(old, {"a": {"$patch": "replace", "d": 3}}) == {"a": {"d": 3}}
    assert strategic_merge(old, {"a": {"$patch": "delete"}}) == {"a": {}}


def test_retain_keys_drops_what_it_does_not_name() -> None:
    old = {"volumes": [{"name": "v", "emptyDir": {}}]}
    volume = {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}
    assert strategic_merge(old, {"volumes": [volume]})["volumes"] == [
        {"name": "v", "hostPath": {"path": "/x"}}
    ]


def test_set_element_order_orders_new_and_old_items() -> None:
    patch: dict[str, object] = {
        "$setElementOrder/containers": [{"name": "new"}, {"name": "b"}, {"name": "a"}],
        "containers": containers("new"),
    }
    assert names(strategic_merge({"containers": containers("a", "b")}, patch)) == ["new", "b", "a"]


def test_items_the_order_does_not_name_keep_their_place() -> None:
    patch = {"$setElementOrder/containers": [{"name": "a"}, {"name": "c"}]}
    assert names(strategic_merge({"containers": containers("a", "x", "c")}, patch)) == [
        "a",
        "x",
        "c",
    ]


def test_finalizers_are_a_set() -> None:
    old = {"finalizers": ["a", "b"]}
    assert strategic_merge(old, {"finalizers": ["b", "c"]}) == {"finalizers": ["a", "b", "c"]}
    removed = strategic_merge(old, {"$deleteFromPrimitiveList/finalizers": ["a"]})
    assert removed == {"finalizers": ["b"]}


@pytest.mark.parametrize(
    "patch",
    [
        [],
        {"containers": [{"image": "x"}]},
        {"containers": ["x"]},
        {"a": {"$patch": "explode"}},
        {"$retainKeys": "a"},
        {"$deleteFromPrimitiveList/finalizers": "a"},
    ],
)
def test_a_patch_of_the_wrong_shape_is_refused(patch: object) -> None:
    with pytest.raises(StatusError) as error:
        strategic_merge({"containers": containers("a"), "a": {}, "finalizers": []}, patch)
    assert error.value.code == 400


KEYED = st.lists(st.sampled_from("abcdef"), unique=True).map(
    lambda found: [{"name": name, "image": f"{name}:1"} for name in found]
)


@given(KEYED, KEYED)
def test_merging_keyed_lists_twice_changes_nothing_more(old: Items, new: Items) -> None:
    once = strategic_merge({"containers": old}, {"containers": new})
    assert strategic_merge(once, {"containers": new}) == once


@given(KEYED, KEYED)
def test_merged_lists_hold_both_and_each_key_once(old: Items, new: Items) -> None:
    merged = names(strategic_merge({"containers": old}, {"containers": new}))
    assert len(merged) == len(set(map(str, merged)))
    assert set(map(str, merged)) == {str(item["name"]) for item in old + new}


@given(KEYED, KEYED, st.randoms(use_true_random=False))
def test_the_order_asked_for_is_the_order_given(old: Items, new: Items, random: Random) -> None:
    everyone = list(dict.fromkeys(str(item["name"]) for item in old + new))
    random.shuffle(everyone)
    order = [{"name": name} for name in everyone]
    patch = {"containers": new, "$setElementOrder/containers": order}
    assert names(strategic_merge({"containers": old}, patch)) == everyone
