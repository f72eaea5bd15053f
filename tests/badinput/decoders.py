"""Every decoder of bytes from outside, with start documents, and checks of the results.

A decoder returns or raises one of REFUSALS; results keep the promises asserted here. Anything else
is a finding.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpushare.cli import facts
from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import PodClaims, Use
from gpushare.core.claims.pools import gather_pools
from gpushare.core.model import MAX_UNITS, Request
from gpushare.core.selectors import NO_DEMANDS
from gpushare.errors import MessageError, SettingsError, WireError
from gpushare.kube.election import read_lease, seconds_of
from gpushare.kube.responses import LineSplitter, response_error
from gpushare.wire.annotations import ALIYUN, is_uuid, placement
from gpushare.wire.binding import check_bound
from gpushare.wire.budgets import read_budget
from gpushare.wire.codec import Codec
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ClaimDevices,
    ClaimSpec,
    ExactRequest,
    RequestItem,
)
from gpushare.wire.dra.requests import claim_request, class_record, holdings
from gpushare.wire.dra.selectors import Selectors
from gpushare.wire.extender import decode_bind, decode_filter
from gpushare.wire.fields import parse_duration
from gpushare.wire.inventory import decode_inventory, decode_unhealthy, encode_inventory
from gpushare.wire.kueue import (
    ADMISSION_CHECKS,
    READY,
    RESOURCE_FLAVORS,
    WORKLOADS,
    WorkloadPods,
    active_patch,
    admitted_pod,
    read_check,
    read_flavor,
    read_workload,
    release_patch,
    requeue_patch,
    verdict_patch,
    with_flavors,
)
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import BUDGETS, CONFIG_MAPS, NODES, PODS
from gpushare.wire.pods import observe_pod, pod_ref, priority_of, units_of
from gpushare.wire.preempt import decode_preempt
from gpushare.wire.quantity import MAX_VALUE, to_bytes, to_milli, to_units
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.wire.scheduler.entry import our_entry
from tests.badinput import odd
from tests.support.claim_clusters import random_cluster

REFUSALS = (WireError, SettingsError)


@dataclass(frozen=True)
class Decoder:
    """One decoder: a function that runs it, and valid documents."""

    name: str
    run: Callable[[bytes], object]
    seeds: tuple[Any, ...]

    def seed_bytes(self) -> list[bytes]:
        return [
            seed.encode() if isinstance(seed, str) else json.dumps(seed).encode()
            for seed in self.seeds
        ]

    def refuses(self, data: bytes) -> bool:
        """Whether the decoder refused; other errors are raised."""
        try:
            self.run(data)
        except REFUSALS:
            return True
        return False


def _text(data: bytes) -> str:
    """The text as an object of the API server can store it."""
    return data.decode("utf-8", "replace")


def _quantity(data: bytes) -> None:
    text = _text(data)
    values: list[Any] = [text]
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, int | float):
        values.append(parsed)
    for quantity in values:
        for convert, limit in ((to_units, MAX_UNITS), (to_milli, MAX_VALUE), (to_bytes, MAX_VALUE)):
            try:
                result = convert(quantity)
            except WireError:
                continue
            assert type(result) is int
            assert 0 <= result <= limit


def _annotations(data: bytes) -> None:
    text = _text(data)
    request = Request(4, 2, containers=((0, 6), (1, 2)))
    for notes in ({ALIYUN.idx: text}, {ALIYUN.allocation: text}):
        result = placement(notes, request, ALIYUN)
        if result is not None:
            assert sum(units for _, units in result) >= request.total
            assert list(result) == sorted(set(result))


def _inventory(data: bytes) -> None:
    result = decode_inventory(_text(data))
    assert decode_inventory(encode_inventory(result)) == result


def _unhealthy(data: bytes) -> None:
    result = decode_unhealthy({"gpus": _text(data)})
    assert all(is_uuid(item) if isinstance(item, str) else item >= 0 for item in result)


def _filter(data: bytes) -> None:
    args = decode_filter(data)
    assert len(set(args.names)) == len(args.names)
    _pod_of(args.pod)


def _pod_of(pod: Any) -> None:
    """The readings of a decoded pod from any source."""
    priority_of(pod)
    admitted_pod(pod)
    for old_version in (pod_ref, lambda each: units_of(each, ALIYUN)):
        try:
            old_version(pod)
        except WireError:
            continue
    collected = observe_pod(pod, ALIYUN)
    assert collected.request.total == units_of(pod, ALIYUN)
    assert 0 <= collected.request.total <= MAX_UNITS


def _pod(data: bytes) -> None:
    _pod_of(PODS.decode(data))


def _node(data: bytes) -> None:
    spec = node_spec(NODES.decode(data), ALIYUN, "GiB")
    assert len(spec.capacity) == len(spec.healthy) == len(spec.models) == len(spec.uuids) <= 64
    assert all(0 <= units <= MAX_UNITS for units in spec.capacity)


def _budget(data: bytes) -> None:
    budget = BUDGETS.decode(data)
    read_budget("default", budget.spec, budget.status).selects("default", {"a": "b"})


def _workload(data: bytes) -> None:
    record = read_workload(WORKLOADS.decode(data), [ALIYUN])
    if record is None:
        return
    assert all(pods.count > 0 for pods in record.pods)
    names = [str(check.get("name")) for check in record.checks]
    check = record.check(names) or {}
    for patch in (
        verdict_patch(record, names, {"state": READY}, str(check.get("state"))),
        release_patch(record, ""),
        requeue_patch(record),
    ):
        json.loads(patch)


def _admission_check(data: bytes) -> None:
    check = read_check(ADMISSION_CHECKS.decode(data))
    if check is not None:
        active_patch(check, "")


def _flavor(data: bytes) -> None:
    flavor = read_flavor(RESOURCE_FLAVORS.decode(data))
    pods = WorkloadPods("main", odd.MEM, Request(4, 1), NO_DEMANDS, 1, ("a10",))
    assert not with_flavors(pods, {"a10": flavor}).flavors


def _slice(data: bytes) -> None:
    item = read_slice(RESOURCE_SLICES.decode(data))
    node = gather_pools("n0", {}, [item], {(item.driver, item.pool): [item]})
    assert all(capacity.value >= 0 for d in node.devices for capacity in d.capacities.values())
    first_fit(node, _ONE_DEVICE, Use(), lambda _, __: True, Steps(1000))


def _claim(data: bytes) -> None:
    claim = RESOURCE_CLAIMS.decode(data)
    if claim.allocation:
        for holding in holdings(claim.allocation):
            assert all(amount >= 0 for amount in (holding.consumed or {}).values())
    request = claim_request(claim.spec or ClaimSpec())
    node = gather_pools("n0", {}, [_SOME_SLICE], {(_SOME_SLICE.driver, _SOME_SLICE.pool): []})
    first_fit(node, PodClaims((request,)), Use(), lambda _, __: True, Steps(1000))


def _class(data: bytes) -> None:
    class_record(DEVICE_CLASSES.decode(data))


def _taint_rule(data: bytes) -> None:
    read_taint_rule(DEVICE_TAINT_RULES.decode(data))


def _selector(data: bytes) -> None:
    known_names = Selectors(time.thread_time)
    for device in _SOME_SLICE.devices:
        assert known_names.matches((_text(data),), device) in (True, False)


def _codec(kind: Codec[Any]) -> Callable[[bytes], None]:
    """The list, and the event of a watch, of a kind; one odd object hides no other."""

    def run(data: bytes) -> None:
        for part in (kind.decode_list, kind.decode_event):
            try:
                part(data)
            except WireError:
                continue
        wrapped = b'{"kind":"%sList","items":[{},' % kind.kind.encode() + data + b"]}"
        try:
            json.loads(wrapped)
        except (ValueError, RecursionError):
            return
        try:
            page = kind.decode_list(wrapped)
        except MessageError:
            return  # JSON by Python's reading (NaN, lone surrogates) that is none
        assert len(page.items) + len(page.bad) >= 1

    return run


def _document(data: bytes) -> Any:
    try:
        return yaml.load(_text(data), yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingsError("no YAML") from error


def _scheduler(data: bytes) -> None:
    our_entry(decode_scheduler_config(_document(data)), ("127.0.0.1", 32766))


def _duration(data: bytes) -> None:
    parse_duration(_text(data))


def _answer(data: bytes) -> None:
    PODS.decode_answer(data, "default", "odd")


def _lease(data: bytes) -> None:
    lease = read_lease(data)
    seconds_of(lease.renewed)
    assert read_lease(lease.held_by("me", 1e9, 15.0)).holder == "me"


def _lines(data: bytes) -> None:
    splitter, lines = LineSplitter(), list[bytes]()
    for at in range(0, len(data), 7):
        lines += splitter.feed(data[at : at + 7])
    assert lines == [line for line in data.split(b"\n")[:-1] if line.strip()]


def _refusal(data: bytes) -> None:
    assert "\n" not in str(response_error("GET /x", 500, data))


def _facts(data: bytes) -> None:
    """The command line's readings of a node and a pod that its JSON reader accepted."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return
    fields: Mapping[str, Any] = facts.mapping(document)
    for old_version in (facts.read_node, facts.read_pod):
        try:
            old_version(fields, ALIYUN)
        except WireError:
            continue


_CLUSTER = random_cluster(11)
_SLICES = [item for item in _CLUSTER["slices"] if item["spec"].get("devices")]
_SOME_SLICE = read_slice(RESOURCE_SLICES.decode(json.dumps(_SLICES[0]).encode()))
_SELECTORS = tuple(
    selector["cel"]["expression"]
    for item in _CLUSTER["classes"]
    for selector in item["spec"]["selectors"]
)
_ONE_DEVICE = PodClaims(
    (claim_request(ClaimSpec(ClaimDevices([RequestItem("r", ExactRequest())]))),)
)
_META = {"resourceVersion": "7", "continue": "x"}
_CLOSED = {"data": {"gpus": "0"}}
_BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n"}
_VICTIMS = {"gpu": {"Pods": [{"UID": "u"}, None], "NumPDBViolations": 1}, "b": None}


def _listed(kind: str, body: Any) -> tuple[Any, ...]:
    page = {"kind": f"{kind}List", "metadata": _META, "items": [body]}
    return (page, {"type": "ADDED", "object": body}, body)


DECODERS = (
    Decoder("quantity", _quantity, ("16", "1.5Gi", "100m", "1e3", "-0.5k", "12345678901234567890")),
    Decoder("annotations", _annotations, ("0,1", '{"0":{"0":4,"1":2},"1":{"1":2}}')),
    Decoder("inventory", _inventory, (odd.INVENTORY,)),
    Decoder("unhealthy list", _unhealthy, ("0, 2", "")),
    Decoder(
        "filter, prioritize",
        _filter,
        (
            {"Pod": odd.POD, "NodeNames": ["a", "b"]},
            {"Pod": odd.POD, "Nodes": {"items": [odd.NODE]}},
        ),
    ),
    Decoder("bind", decode_bind, (_BIND,)),
    Decoder(
        "preempt",
        decode_preempt,
        (
            {"Pod": odd.POD, "NodeNameToMetaVictims": _VICTIMS},
            {"Pod": odd.POD, "NodeNameToVictims": {"a": {"Pods": [odd.POD]}}},
        ),
    ),
    Decoder("pod", _pod, (odd.POD,)),
    Decoder("node", _node, (odd.NODE,)),
    Decoder("disruption budget", _budget, (odd.BUDGET,)),
    Decoder("pods listed, watched", _codec(PODS), _listed("Pod", odd.POD)),
    Decoder("nodes listed, watched", _codec(NODES), _listed("Node", odd.NODE)),
    Decoder(
        "config maps listed, watched",
        _codec(CONFIG_MAPS),
        _listed("ConfigMap", _CLOSED),
    ),
    Decoder("workload of Kueue", _workload, (odd.WORKLOAD,)),
    Decoder("workloads listed, watched", _codec(WORKLOADS), _listed("Workload", odd.WORKLOAD)),
    Decoder("admission check", _admission_check, (odd.ADMISSION_CHECK,)),
    Decoder("resource flavor", _flavor, (odd.FLAVOR,)),
    Decoder("slices of devices", _slice, tuple(_SLICES)),
    Decoder("claims", _claim, (*_CLUSTER["claims"], *_CLUSTER["allocated"][:2])),
    Decoder("device classes", _class, tuple(_CLUSTER["classes"])),
    Decoder("taint rules", _taint_rule, tuple(_CLUSTER["rules"])),
    Decoder("selectors of devices", _selector, _SELECTORS),
    Decoder("watch errors", _codec(PODS), ({"type": "ERROR", "object": {"code": 410}},)),
    Decoder("scheduler files", _scheduler, (odd.SCHEDULER, odd.POLICY)),
    Decoder("durations", _duration, ("5s", "1m30.5s", "-0")),
    Decoder("answer to a Binding", check_bound, ({"kind": "Status", "status": "Success"},)),
    Decoder("answer by name", _answer, (odd.POD | {"kind": "Pod"},)),
    Decoder("lease", _lease, (odd.LEASE,)),
    Decoder("lines of a watch", _lines, ('{"a":1}\n\n{"b":2}\n{"c"',)),
    Decoder("refusals", _refusal, ({"kind": "Status", "message": "no\nway", "reason": "x"},)),
    Decoder("command line", _facts, (odd.POD, odd.NODE)),
)
