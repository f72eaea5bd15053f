"""Checks that run with the third amount of `tests.support.third_amount`; see
test_third_amount.py.
"""

import json

import numpy as np
import pytest

from gpushare.core.amounts import PERCENT_AMOUNTS, by_name, percents_of
from gpushare.core.decide import filter_nodes, place
from gpushare.core.explain import explain
from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Reason, Request
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.core.trial import AUTO
from gpushare.errors import InsufficientMemory, MessageError
from gpushare.explain.document import document
from gpushare.explain.pod import PodExplanation
from gpushare.explain.text import lines
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.tell.page.document import node_document
from gpushare.extender.tell.written_metrics import DeviceMetrics
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.conditions import SchedulerView
from gpushare.wire.inspect import encode_inspect
from gpushare.wire.objects import PODS, Pod
from gpushare.wire.pods import observe_pod, request_of

_ENCODER = "aliyun.com/gpu-encoder.percentage"
_CORES = "aliyun.com/gpu-core.percentage"
_LACKS_ENCODER = Reason("Insufficient GPU Encoder in one device")
NODE = NodeSpec("n", (16, 16), (True, True), ("A", "A"), ("GPU-a", "GPU-b"))


def encoder(percent: int, units: int = 4, cores: int = 0) -> Request:
    return Request(units, 1, percents=percents_of((cores, 0, percent)))


def pod(limits: dict[str, int], node: str = "", **annotations: str) -> Pod:
    amounts = {name: str(amount) for name, amount in limits.items()}
    body = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p", "annotations": annotations},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"limits": amounts}}],
        },
    }
    return PODS.decode(json.dumps(body).encode())


def ledger_with(*held: tuple[int, Request]) -> Ledger:
    """Return a ledger of NODE with a bound pod for each (device, request)."""
    ledger = Ledger(Pairing.OFF)
    ledger.node_changed(NODE)
    for number, (device, request) in enumerate(held):
        ref = PodRef("ns", f"held-{number}", f"uid-{number}")
        ledger.pod_changed(ObservedPod(ref, request, "n", ((device, request.units),)))
    return ledger


def test_the_row_is_there() -> None:
    assert [amount.name for amount in PERCENT_AMOUNTS] == ["cores", "share", "encoder"]
    assert ALIYUN.percents[2].resource == _ENCODER


def test_a_pod_asks_for_it_and_the_binding_says_where_it_is() -> None:
    request = request_of(pod({ALIYUN.resource: 4, _ENCODER: 60}), ALIYUN)
    assert by_name(request.percents) == {"encoder": 60}
    written = encode(Allocation("n", ((1, 4),)), request, 16, "0", ALIYUN)
    assert written["gpushare.io/encoder-percentage"] == '{"0":{"1":60}}'
    assert ALIYUN.core_allocation not in written
    with pytest.raises(MessageError, match="120 are asked of one device, which has 100"):
        request_of(pod({ALIYUN.resource: 4, _ENCODER: 120}), ALIYUN)


def test_the_ledger_charges_and_frees_it() -> None:
    ledger = ledger_with((0, encoder(60)))
    (books,) = ledger.dump("n")
    assert books.percents_used == ((0, 0), (0, 0), (60, 0))
    late = PodRef("ns", "late", "uid-late")
    with pytest.raises(InsufficientMemory, match="4 units and 50 % of its encoder"):
        ledger.assume(late, encoder(50), Allocation("n", ((0, 4),)), 0.0)
    ledger.check()
    ledger.pod_gone("uid-0")
    assert not ledger.snapshot().percents_used[2].any()


def test_a_pod_that_cannot_be_read_any_more_has_it_where_its_memory_is() -> None:
    limits = {ALIYUN.resource: 8, _ENCODER: 80, _CORES: 40}
    notes = {ALIYUN.count: "x", ALIYUN.idx: "0,1"}
    ledger = ledger_with()
    ledger.pod_changed(observe_pod(pod(limits, "n", **notes), ALIYUN))
    (books,) = ledger.dump("n")
    assert books.percents_used == ((20, 20), (0, 0), (40, 40))


def test_filter_refuses_by_it_and_says_so() -> None:
    snapshot = ledger_with((0, encoder(60)), (1, encoder(70))).snapshot()
    assert filter_nodes(snapshot, ["n"], encoder(30)).fit == ("n",)
    assert filter_nodes(snapshot, ["n"], encoder(50)).failed == {"n": _LACKS_ENCODER}
    # The encoder is not exclusive: all of it leaves the device to pods that need none.
    full = ledger_with((0, encoder(100)), (1, encoder(100))).snapshot()
    assert filter_nodes(full, ["n"], Request(4, 1)).fit == ("n",)


@pytest.mark.parametrize("name", [name for name in policy_names() if name != AUTO])
def test_every_policy_takes_a_device_with_enough_of_it(name: str) -> None:
    snapshot = ledger_with((0, encoder(60, units=12)), (1, encoder(10, units=4))).snapshot()
    chosen = place(snapshot, "n", encoder(50), Ranking(load_policy(name)))
    assert chosen.devices == (1,)


def test_explain_says_what_is_missing() -> None:
    ledger = ledger_with((0, encoder(60)), (1, encoder(70)))
    found = explain(ledger.snapshot(), ["n"], encoder(50), lambda node: ledger.dump(node)[0])
    assert found.reasons == {_LACKS_ENCODER: 1}
    assert found.most_percents == (100, 100, 40)
    assert [entry.ref.name for entry in found.remedies[0].ends] == ["held-0"]
    ref = PodRef("ns", "late", "uid-late")
    late = PodExplanation(
        ref=ref,
        resource=ALIYUN.resource,
        unit="GiB",
        state="pending",
        scheduler=SchedulerView("default-scheduler"),
        request=encoder(50),
        explanation=found,
    )
    (line,) = [line for line in lines(late) if "at most 40 %" in line]
    assert line.startswith("Encoder")
    assert "none of them also 50 % of its encoder (at most 40 %)" in line
    shown = document(late)
    assert shown["request"]["encoder"] == 50
    assert shown["explanation"]["mostEncoder"] == 40


def test_inspect_shows_it() -> None:
    (node,) = json.loads(encode_inspect(ledger_with((1, encoder(60))).dump()))["nodes"]
    assert [device["usedEncoder"] for device in node["devs"]] == [0, 60]
    assert node["devs"][1]["pods"][0]["usedEncoder"] == 60
    assert "usedCores" not in node["devs"][1]


def test_the_page_shows_it() -> None:
    ledger = ledger_with((1, encoder(60)))
    snapshot, entries = ledger.snapshot(), tuple(ledger.view().entries.values())
    percents = ((PERCENT_AMOUNTS[2], tuple(snapshot.percents_used[2][0].tolist())),)
    shown = node_document(NODE, entries, (0, 4), 4, percents)
    assert [device["encoder"] for device in shown["devices"]] == [0, 60]
    assert shown["pods"][0]["encoder"] == 60


def test_metrics_show_it() -> None:
    managed = ManagedResource(ALIYUN, ledger_with((1, encoder(60))), {}, "")
    text = DeviceMetrics(2**30).text([managed]).decode()
    labels = f'device="1",node="n",resource="{ALIYUN.resource}"'
    assert f"gpushare_device_encoder_allocated_percent{{{labels}}} 60.0" in text
    assert "compute" not in text


def test_room_is_counted_by_it() -> None:
    snapshot = ledger_with((0, encoder(60))).snapshot()
    assert np.array_equal(snapshot.percents_free[2], [[40, 100]])
