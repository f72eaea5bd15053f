"""The cards of DRA drivers, with claims and pods."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.fake_kubectl import FakeKubectl, inventory, node, pod
from tests.unit.wire.dra.objects import DRIVER, device, exactly

Inspect = Callable[..., tuple[int, str, str]]
Json = dict[str, Any]


def slice_on(name: str, *devices: Json, whole: bool = True) -> Json:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1 if whole else 2}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": f"{name}-s"}, "spec": spec}


def claim(name: str, gib: int, *shares: tuple[str, str], shared: bool = True, **more: Any) -> Json:
    """A claim; given: pool and device of each device. shared: whether it has parts of them."""
    results = [
        {
            "request": "gpu",
            "driver": DRIVER,
            "pool": pool,
            "device": names,
            **({"consumedCapacity": {"memory": f"{gib}Gi"}, "shareID": name} if shared else {}),
        }
        for pool, names in shares
    ]
    terms = [{"matchFields": [{"key": "metadata.name", "values": [pool]}]} for pool, _ in shares]
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms[:1]}}
    users = [{"resource": "pods", "name": f"uses-{name}", "uid": "u"}]
    asks = {"name": "gpu", "exactly": exactly(f"{gib}Gi") | more}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": [asks]}},
        "status": {"allocation": allocation, "reservedFor": users} if shares else {},
    }


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> FakeKubectl:
    kubectl.cluster(
        [node("a", inventory=inventory(16)), node("n1", 0), node("n2", 0)],
        [pod("web", "a", 4)],
        slices=[
            slice_on("n1", *(device(number) for number in (10, 2))),
            slice_on("n2", device(20, 24), whole=False),
            slice_on("n3", device(30, allowMultipleAllocations=False)),
        ],
        claims=[
            claim("small", 10, ("n1", "gpu-2")),
            claim("both", 20, ("n1", "gpu-2"), ("n1", "gpu-10"), count=2),
            claim("other", 5, ("n1", "gpu-10"), deviceClassName="other"),
            claim("whole", 80, ("n3", "gpu-30"), shared=False, deviceClassName="other"),
            claim("waits", 90),
            claim("picky", 9, selectors=[{"cel": {"expression": "true"}}]),
            claim("nic", 0, deviceClassName="nic", capacity=None),
            claim("has-nic", 0, ("net", "nic-0"), shared=False, deviceClassName="nic"),
        ],
    )
    return kubectl


def test_the_tables_have_cards_and_claims_below(cluster: FakeKubectl, inspect: Inspect) -> None:
    code, text, notes = inspect("-o", "wide")
    assert (code, notes) == (0, "")
    assert text.endswith("""
CARDS OF CLAIMS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
n1               25/80                  30/80                  55/160
n3               80/80                                         80/80

CLAIM  NAMESPACE  GPU Memory(GiB)  NODE  DEVICES               PODS
both   team       40               n1    gpu-2(20),gpu-10(20)  uses-both
other  team       5                n1    gpu-10(5)             uses-other
picky  team       9                -     waiting               -
small  team       10               n1    gpu-2(10)             uses-small
waits  team       90               -     waiting               -
whole  team       80               n3    gpu-30                uses-whole
""")
    assert text.startswith("NAME  IPADDRESS  GPU0(Allocated/Total)")


def test_a_claim_of_several_requests_is_listed_with_their_sum(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    both = claim("both", 20)
    requests = both["spec"]["devices"]["requests"]
    requests.append({"name": "more", "exactly": exactly("5Gi")})
    kubectl.cluster([node("n1", 0)], [], slices=[slice_on("n1", device(1))], claims=[both])
    line = inspect("-o", "wide")[1].splitlines()[-1]
    assert line.split() == ["both", "team", "25", "-", "waiting", "-"]


def test_the_form_of_the_original_says_nothing_of_claims_and_asks_nothing(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    assert "CLAIM" not in inspect()[1]
    assert not any("resource.k8s.io" in line for line in cluster.log)


def test_the_document_has_all_of_them(cluster: FakeKubectl, inspect: Inspect) -> None:
    answer = json.loads(inspect("-o", "json")[1])
    assert (answer["total"], answer["allocated"]) == (16, 4)
    claims = answer["claims"]
    assert {key: claims[key] for key in ("class", "total", "allocated", "free")} == {
        "class": "gpushare.io",
        "total": 240,
        "allocated": 135,
        "free": 105,
    }
    assert claims["nodes"][0]["devices"][1] == {
        "driver": DRIVER,
        "pool": "n1",
        "device": "gpu-2",
        "uuid": "GPU-102",
        "model": "NVIDIA A100",
        "shared": True,
        "open": True,
        "total": 80,
        "allocated": 30,
        "free": 50,
    }
    by_name = {claim["name"]: claim for claim in claims["claims"]}
    assert by_name["small"] == {
        "namespace": "team",
        "name": "small",
        "uid": "uid-small",
        "state": "allocated",
        "requests": [],
        "units": 10,
        "node": "n1",
        "devices": [
            {"driver": DRIVER, "pool": "n1", "device": "gpu-2", "uuid": "GPU-102", "allocated": 10}
        ],
        "pods": ["uses-small"],
    }
    asks = "1 x gpushare.io with memory 9Gi, by CEL selectors"
    assert (by_name["picky"]["requests"], by_name["picky"]["units"]) == ([asks], 9)
    assert list(by_name) == ["both", "other", "picky", "small", "waits", "whole"]


def test_a_namespace_leaves_the_claims_of_others_out(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    answer = json.loads(inspect("-o", "json", "-n", "nobody")[1])["claims"]
    assert (answer["claims"], answer["allocated"]) == ([], 135)


def test_without_the_class_no_key_is_there_and_lists_are_not_asked_for(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    kubectl.cluster([node("a")], [])
    assert "claims" not in json.loads(inspect("-o", "json")[1])
    assert not any("resourceclaims" in line for line in kubectl.log)


def test_lists_that_may_not_be_read_are_a_warning(cluster: FakeKubectl, inspect: Inspect) -> None:
    cluster.before(
        'case "$3" in *resourceclaims*)'
        " echo 'Error from server (Forbidden): no right' >&2; exit 1 ;; esac"
    )
    answer = json.loads(inspect("-o", "json")[1])
    assert "claims" not in answer
    assert answer["warnings"] == ["claims are not known: Error from server (Forbidden): no right"]


def test_an_api_server_that_has_no_claims_is_asked_for_none(
    cluster: FakeKubectl, inspect: Inspect
) -> None:
    cluster.before(
        'case "$3" in *deviceclasses*)'
        " echo 'Error from server (NotFound): no such resource' >&2; exit 1 ;; esac"
    )
    answer = json.loads(inspect("-o", "json")[1])
    assert "claims" not in answer
    assert answer["warnings"] == []
    assert not any("resourceclaims" in line for line in cluster.log)


def test_a_cluster_of_claims_alone_is_no_cluster_without_nodes(
    kubectl: FakeKubectl, inspect: Inspect
) -> None:
    kubectl.cluster([node("n1", 0)], [], slices=[slice_on("n1", device(0))], claims=[])
    code, text, notes = inspect("-o", "wide")
    assert (code, notes) == (0, "")
    assert text.splitlines()[0].startswith("CARDS OF CLAIMS")


def test_what_cannot_be_read_is_left_out_and_told(kubectl: FakeKubectl, inspect: Inspect) -> None:
    broken = slice_on("n2", device(3))
    del broken["spec"]["driver"]
    odd = claim("odd", 9)
    odd["metadata"]["uid"] = ""
    kubectl.cluster([node("n1", 0)], [], slices=[slice_on("n1", device(1)), broken], claims=[odd])
    answer = json.loads(inspect("-o", "json")[1])
    assert answer["claims"]["total"] == 80
    assert answer["warnings"] == [
        "ResourceSlice is left out: ResourceSlice: its name, driver or pool is missing",
        "ResourceClaim is left out: ResourceClaim.metadata: namespace, name or uid is missing",
    ]


def test_a_tainted_device_is_closed(kubectl: FakeKubectl, inspect: Inspect) -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    slices = [slice_on("n1", device(1, taints=[taint]))]
    kubectl.cluster([node("n1", 0)], [], slices=slices, claims=[])
    answer = json.loads(inspect("-o", "json")[1])["claims"]
    assert (answer["total"], answer["free"], answer["nodes"][0]["devices"][0]["open"]) == (
        80,
        0,
        False,
    )
