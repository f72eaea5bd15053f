"""Which GPU models a pod accepts and a node has, by labels."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.gpu_models import LABELS
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS
from gpushare.wire.pods import request_of

PRODUCT, ACK = LABELS


def models(
    selector: Mapping[str, str] | None = None, terms: Sequence[Sequence[Any]] | None = None
) -> tuple[str, ...]:
    """The models accepted by this node selector and these terms of required affinity."""
    container = {"resources": {"limits": {ALIYUN.resource: "4"}}}
    spec: dict[str, Any] = {"containers": [container], "nodeSelector": selector}
    if terms is not None:
        result = [
            {
                "matchExpressions": [
                    {"key": key, "operator": operator, "values": values}
                    for key, operator, values in term
                ]
            }
            for term in terms
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": result}}
        spec["affinity"] = {"nodeAffinity": required, "podAffinity": {}}
    pod = PODS.decode(json.dumps({"spec": spec}).encode())
    return request_of(pod, ALIYUN).models


def test_a_pod_that_says_nothing_accepts_any_model() -> None:
    assert models() == ()
    assert models({"disk": "ssd"}, [[("zone", "In", ["a"])]]) == ()


@pytest.mark.parametrize("label", LABELS)
def test_a_node_selector_names_one_model(label: str) -> None:
    assert models({label: "T4", "disk": "ssd"}) == ("T4",)


def test_required_affinity_names_several() -> None:
    assert models(terms=[[(PRODUCT, "In", ["V100", "P100"]), ("zone", "In", ["a"])]]) == (
        "P100",
        "V100",
    )


def test_of_several_conditions_all_have_to_hold() -> None:
    assert models({PRODUCT: "T4"}, [[(ACK, "In", ["T4", "P4"])]]) == ("T4",)


@pytest.mark.parametrize(
    "terms",
    [
        [[(PRODUCT, "In", ["T4"])], [("zone", "In", ["a"])]],
        [[(PRODUCT, "NotIn", ["T4"])]],
        [[(PRODUCT, "Exists", None)]],
        [[]],
        [],
    ],
)
def test_what_is_no_plain_list_of_models_counts_as_any(terms: list[Any]) -> None:
    assert models(terms=terms) == ()


def test_a_missing_affinity_may_be_null_at_every_level() -> None:
    empty: list[dict[str, Any]] = [
        {"affinity": None},
        {"affinity": {"nodeAffinity": None}},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}}},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
    ]
    for spec in empty:
        containers = [{"resources": {"limits": {ALIYUN.resource: "4"}}}]
        pod = PODS.decode(json.dumps({"spec": {**spec, "containers": containers}}).encode())
        assert request_of(pod, ALIYUN).models == ()


def test_the_models_a_pod_accepts_are_part_of_its_kind() -> None:
    container = {"resources": {"limits": {ALIYUN.resource: "4"}}}
    kinds = set()
    for selector in (None, {PRODUCT: "T4"}, {PRODUCT: "P4"}):
        spec = {"containers": [container], "nodeSelector": selector}
        pod = PODS.decode(json.dumps({"spec": spec}).encode())
        kinds.add(request_of(pod, ALIYUN).kind)
    assert len(kinds) == 3


def node_models(labels: Mapping[str, str], *inventory: str) -> tuple[str, ...]:
    """The models of a node's devices; without an inventory the node has two devices."""
    devices = [{"mem": 16, "model": model} for model in inventory]
    notes = {ALIYUN.inventory: json.dumps({"v": 1, "unit": "GiB", "devices": devices})}
    amounts = {ALIYUN.resource: "32", ALIYUN.count: "2"}
    document = {
        "metadata": {
            "name": "n",
            "labels": labels,
            "annotations": notes if inventory else {},
        },
        "status": {"capacity": amounts, "allocatable": amounts},
    }
    return node_spec(NODES.decode(json.dumps(document).encode()), ALIYUN, "GiB").models


def test_the_model_of_a_node_is_what_its_labels_say() -> None:
    assert node_models({}) == ("", "")
    assert node_models({ACK: "Tesla-P4"}) == ("Tesla-P4", "Tesla-P4")
    assert node_models({PRODUCT: "Tesla-T4"}, "Tesla T4", "Tesla T4") == ("Tesla-T4", "Tesla-T4")


def test_without_labels_the_inventory_says_it_as_a_label_would() -> None:
    assert node_models({}, "NVIDIA A100-SXM4-80GB", "") == ("NVIDIA-A100-SXM4-80GB", "")
