"""Pods with claims as batches: the needs of each pod, and pods that are placed as one."""

import json
from typing import Any

import pytest

from gpushare.core.claims.model import (
    THOUSANDTHS,
    ClaimRequest,
    DeviceRequest,
    NamedRequest,
    PodClaims,
)
from gpushare.core.model import MAX_UNITS
from gpushare.core.model import Request as PodRequest
from gpushare.core.selectors import Demands, NodeSelectorTerm, Requirement
from gpushare.errors import MessageError
from gpushare.explain.claim_pods import ClaimsUser, OpenClaim, memory_parts, user_of, wanted_of
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.objects import RESOURCE_CLAIMS, ResourceClaim
from gpushare.wire.objects import PODS, Pod

GIB = 1 << 30


def asks(gib: int, count: int | None = 1, name: str = "memory") -> ClaimRequest:
    one = DeviceRequest(
        name="g", device_class="gpu", count=count, amounts=((name, gib * GIB * THOUSANDTHS),)
    )
    return ClaimRequest((NamedRequest("g", (one,)),))


def user(name: str, *claims: OpenClaim, **more: Any) -> ClaimsUser:
    return ClaimsUser(name=name, request=PodRequest(cpu=500), claims=claims, **more)


class ClaimSource:
    """Claims by name, each asking for 8 GiB; those in `nodes` are allocated there."""

    def __init__(self, *names: str, **nodes: tuple[str, ...]) -> None:
        self._names = names
        self._nodes = nodes

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        if namespace != "team" or name not in (*self._names, *self._nodes):
            return None
        allocation = {"allocation": {"devices": {"results": list[str]()}}}
        status = allocation if name in self._nodes else {}
        body = {"metadata": {"name": name, "namespace": "team"}, "spec": {}, "status": status}
        return RESOURCE_CLAIMS.decode(json.dumps(body).encode())

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        return self.named(namespace, name)

    def request(self, _claim: ResourceClaim) -> ClaimRequest:
        return asks(8)

    def nodes_of(self, claim: ResourceClaim) -> frozenset[str] | None:
        nodes = self._nodes[(claim.metadata and claim.metadata.name) or ""]
        return frozenset(nodes) if nodes else None


def pod(*claims: dict[str, str], changes: dict[str, str | None] | None = None) -> Pod:
    statuses = [
        {"name": name, "resourceClaimName": claim} for name, claim in (changes or {}).items()
    ]
    body = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u"},
        "spec": {
            "resourceClaims": [{"name": f"c{at}", **claim} for at, claim in enumerate(claims)],
            "containers": [{"resources": {"requests": {"cpu": "2"}}}],
        },
        "status": {"resourceClaimStatuses": statuses},
    }
    return PODS.decode(json.dumps(body).encode())


def read(pod: Pod, source: ClaimSource, *, anew: bool = False) -> ClaimsUser | None:
    return user_of(pod, ALIYUN, source, name="p", namespace="team", anew=anew)


def test_a_pod_asks_by_each_of_its_claims_once() -> None:
    names = {"resourceClaimName": "shared"}
    answer = read(pod(names, names, {"resourceClaimTemplateName": "t"}), ClaimSource("shared", "t"))
    assert answer is not None
    assert answer.request.cpu == 2000
    assert [claim.key for claim in answer.claims] == ["team/shared", ""]


def test_of_a_template_the_claim_that_was_made_counts() -> None:
    of_template = {"resourceClaimTemplateName": "t"}
    answer = read(pod(of_template, changes={"c0": "made"}), ClaimSource("made"))
    assert answer is not None
    assert [claim.key for claim in answer.claims] == [""]
    assert read(pod(of_template, changes={"c0": None}), ClaimSource()) is None
    assert read(pod(), ClaimSource()) is None


def test_a_claim_with_devices_keeps_the_pod_on_its_nodes_until_its_node_goes() -> None:
    both = pod({"resourceClaimName": "has"}, {"resourceClaimName": "needs"})
    source = ClaimSource("needs", has=("b", "a"))
    answer = read(both, source)
    assert answer is not None
    assert len(answer.claims) == 1
    field = Requirement("metadata.name", "In", ("a", "b"))
    assert answer.demands.terms == (NodeSelectorTerm(fields=(field,)),)
    answer = read(both, source, anew=True)
    assert answer is not None
    assert (len(answer.claims), answer.demands) == (2, Demands())
    answer = read(both, ClaimSource("needs", has=()))
    assert answer is not None
    assert answer.demands == Demands()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        ({"resourceClaimName": "x"}, "there is no claim team/x"),
        ({"resourceClaimTemplateName": "x"}, "there is no ResourceClaimTemplate team/x"),
    ],
)
def test_what_is_not_there_is_said(claim: dict[str, str], text: str) -> None:
    with pytest.raises(MessageError, match=text):
        read(pod(claim), ClaimSource())


def test_equal_pods_are_placed_one_by_one_with_their_claims() -> None:
    (batch,) = wanted_of([user("d", OpenClaim(asks(8)), OpenClaim(asks(4, 2)), count=3)], GIB)
    assert (batch.name, batch.count) == ("d", 3)
    assert batch.request.parts == (8, 4, 4)
    assert batch.claims == PodClaims((asks(8), asks(4, 2)))
    assert wanted_of([user("has-all")], GIB) == []


def test_pods_that_share_a_claim_are_placed_as_one() -> None:
    shared, second = OpenClaim(asks(8), "n/shared"), OpenClaim(asks(4), "n/other")
    users = [
        user("a", shared, priority=1),
        user("b", OpenClaim(asks(1))),
        user("c", second, OpenClaim(asks(2)), count=2),
        user("d", shared, second, priority=5),
    ]
    one, alone = wanted_of(users, GIB)
    assert (one.name, one.count, one.priority) == ("a (4 pods that share a claim)", 1, 5)
    assert (one.request.cpu, one.request.resources) == (4 * 500, (("pods", 4),))
    assert one.claims == PodClaims((asks(8), asks(4), asks(2), asks(2)))
    assert (alone.name, alone.request.parts) == ("b", (1,))


def test_one_pod_with_a_named_claim_keeps_its_name() -> None:
    (one,) = wanted_of([user("a", OpenClaim(asks(8), "n/c"))], GIB)
    assert (one.name, one.request.resources) == ("a", ())


def test_claims_without_memory_have_no_parts() -> None:
    (one,) = wanted_of([user("nic", OpenClaim(asks(1, name="bandwidth")))], GIB)
    assert one.request == PodRequest(cpu=500)


def test_memory_is_rounded_up_to_units_whatever_the_driver_calls_it() -> None:
    small = DeviceRequest(name="g", amounts=(("gpu.example.com/memory", GIB * THOUSANDTHS + 1),))
    assert memory_parts([ClaimRequest((NamedRequest("g", (small,)),)), asks(3, None)], GIB) == [
        2,
        3,
    ]
    assert memory_parts([asks(1 << 40)], 1) == [MAX_UNITS]
