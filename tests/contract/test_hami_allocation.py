"""A pod is let onto the same nodes as by HAMi, with the same amounts on cards.

The cases are HAMi's own (tests/data/hami_allocation.yaml says which). The policy that chooses among
the nodes and cards is not compared.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpushare.core.amounts import charged_units, compute
from gpushare.core.decide import filter_nodes, place
from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Request
from gpushare.errors import WireError
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import MAX_SHARERS, Inventory, InventoryDevice, encode_inventory
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import Node
from gpushare.wire.pods import observe_pod
from tests.unit.extender.kit import RANKINGS, read_pod

TABLES: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    Path("tests/data/hami_allocation.yaml").read_text()
)
CASES = [pytest.param(case, id=case["name"]) for cases in TABLES.values() for case in cases]


def node_of(name: str, case: dict[str, Any]) -> NodeSpec:
    sick = case.get("sick", ())
    devices = tuple(
        InventoryDevice(mem, f"GPU-{name}{at}", "A100", healthy=at not in sick)
        for at, (mem, *_) in enumerate(case["nodes"][name])
    )
    metadata = {
        "name": name,
        "annotations": {ALIYUN.inventory: encode_inventory(Inventory("MiB", devices))},
        "labels": {MAX_SHARERS: str(case.get("most", 10_000))},
    }
    return node_spec(msgspec.convert({"metadata": metadata}, Node), ALIYUN, "MiB")


def books_of(case: dict[str, Any]) -> Ledger:
    """The nodes with their pods: the first pod of a card has what the others leave."""
    ledger = Ledger()
    for name, cards in case["nodes"].items():
        ledger.node_changed(node_of(name, case))
        for card, (_, pods, used, percent) in enumerate(cards):
            for number in range(pods):
                units = 1 if number else used - pods + 1
                request = Request(units, 1, percents=compute(0 if number else percent))
                ref = PodRef("ns", "p", f"{name}-{card}-{number}")
                ledger.pod_changed(ObservedPod(ref, request, name, ((card, units),)))
    return ledger


def container(request: Sequence[Any]) -> dict[str, Any]:
    if not request:
        return {"resources": {}}
    cards, memory, percent = request
    amounts = {ALIYUN.cores: str(cards * percent)} if percent else {}
    if isinstance(memory, str):
        amounts |= {ALIYUN.resource: str(cards), ALIYUN.share: str(cards * int(memory.split()[0]))}
    else:
        amounts[ALIYUN.resource] = str(cards * memory)
    return {"resources": {"limits": amounts}}


def request_of(case: dict[str, Any]) -> Request:
    containers, inits = case["containers"], case.get("inits", [])
    count = max(request[0] for request in (*containers, *inits) if request)
    count_annotation = {ALIYUN.count: str(count)} if count > 1 else {}
    body = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "annotations": case.get("annotations", {}) | count_annotation,
        },
        "spec": {
            "containers": [container(request) for request in containers],
            "initContainers": [container(request) for request in inits],
        },
    }
    return observe_pod(read_pod(body), ALIYUN).request


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_that_of_hami(case: dict[str, Any]) -> None:
    if "differs" in case:
        with pytest.raises(WireError, match=case["differs"]):
            request_of(case)
        return
    request, snapshot = request_of(case), books_of(case).snapshot()
    assert list(filter_nodes(snapshot, list(case["nodes"]), request).fit) == case["fits"]
    for name in case["fits"]:
        shares = place(snapshot, name, request, RANKINGS["binpack"]).shares
        capacity = node_of(name, case).capacity
        on_cards = [
            [charged_units(units, percents, capacity[card]), percents[0]]
            for (card, units), percents in zip(shares, request.percents_on(shares), strict=True)
        ]
        assert sorted(on_cards) == sorted(case["gives"])


def test_all_cases_are_there() -> None:
    assert [len(cases) for cases in TABLES.values()] == [20, 14, 5]
    assert sum("differs" in case for cases in TABLES.values() for case in cases) == 1
