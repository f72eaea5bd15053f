"""Claims in the local cluster: permitted writes, the controller of claims, and first fit."""

from collections.abc import Iterator

import pytest

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.controllers.manager import ControllerManager
from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler
from tests.contract.apiserver.client import MERGE, Api, ApiReply, Json
from tests.e2e.processes import until

API = "/apis/resource.k8s.io/v1"
CLAIMS, TEMPLATES = (
    f"{API}/namespaces/default/{kind}" for kind in ("resourceclaims", "resourceclaimtemplates")
)
PODS = "/api/v1/namespaces/default/pods"
DRIVER, PLAIN, NONE = "gpu.example.com", "gpu", "none"
FINALIZER = "resource.kubernetes.io/delete-protection"
UUID = "0d7a6f2e-9e0b-4d53-9a52-3f6f1c9d7a10"


@pytest.fixture
def api() -> Iterator[Api]:
    """The API server alone."""
    server = ApiServer(Store(), bookmark_every=0.2)
    server.start()
    yield Api(server.url)
    server.stop()


@pytest.fixture
def cluster(api: Api) -> Iterator[Api]:
    """With controllers and the scheduler, and both classes."""
    controllers = ControllerManager(ApiClient(api.url, user_agent="controllers"))
    scheduler = Scheduler(api.url, SchedulerOptions(seed=1, initial_backoff=0.05))
    controllers.start()
    scheduler.start()
    for name, expression in ((PLAIN, f"device.driver == '{DRIVER}'"), (NONE, "false")):
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        api.create(f"{API}/deviceclasses", {"metadata": {"name": name}, "spec": spec})
    yield api
    scheduler.stop()
    controllers.stop()


def node(api: Api, name: str, *gibs: int) -> None:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts}
    api.create("/api/v1/nodes", {"metadata": {"name": name}, "status": status})
    devices = [
        {
            "name": f"gpu-{at}",
            "attributes": {"uuid": {"string": f"GPU-{name}-{at}"}},
            "capacity": {"memory": {"value": f"{gib}Gi"}},
            "allowMultipleAllocations": True,
        }
        for at, gib in enumerate(gibs)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    api.create(f"{API}/resourceslices", {"metadata": {"name": f"{name}-cards"}, "spec": spec})


def claim_spec(gib: int, name: str = PLAIN, count: int = 1) -> Json:
    amount = {"requests": {"memory": f"{gib}Gi"}}
    exactly = {"deviceClassName": name, "capacity": amount, "count": count}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def claim(api: Api, name: str, gib: int, class_name: str = PLAIN, count: int = 1) -> ApiReply:
    spec = claim_spec(gib, class_name, count)
    return api.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})


def pod(api: Api, name: str, cpu: str = "100m", **claims: str) -> None:
    """A pod with one claim: `named` so, or from this `template`."""
    key = "resourceClaimName" if "named" in claims else "resourceClaimTemplateName"
    (value,) = claims.values()
    resources = {"claims": [{"name": "gpu"}], "requests": {"cpu": cpu}}
    container = {"name": "c", "image": "x", "resources": resources}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", key: value}]}
    api.create(PODS, {"metadata": {"name": name}, "spec": spec})


def on(api: Api, name: str) -> str:
    return str(api.get(f"{PODS}/{name}").body["spec"].get("nodeName") or "")


def bound(api: Api, name: str, to: str = "") -> None:
    until(lambda: on(api, name) in ((to,) if to else ("n", "m")), f"{name} is bound {to}")


def waits(api: Api, name: str, reason: str) -> None:
    def told() -> bool:
        conditions = api.get(f"{PODS}/{name}").body["status"].get("conditions") or ()
        return any(reason in str(item.get("message")) for item in conditions)

    until(told, f"{name} waits: {reason}")
    assert not on(api, name)


def devices(api: Api, name: str) -> list[str]:
    status = api.get(f"{CLAIMS}/{name}").body.get("status") or {}
    results = (status.get("allocation") or {}).get("devices", {}).get("results") or ()
    return [result["device"] for result in results]


def reserved(api: Api, name: str) -> list[str]:
    status = api.get(f"{CLAIMS}/{name}").body.get("status") or {}
    return [item["name"] for item in status.get("reservedFor") or ()]


def given(request: str = "gpu", **more: object) -> Json:
    result = {"request": request, "driver": DRIVER, "pool": "n", "device": "gpu-0", **more}
    return {"devices": {"results": [result]}}


def test_of_a_claim_s_status_only_what_a_real_server_checks_is_checked(api: Api) -> None:
    created = claim(api, "c", 10).body
    assert created["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] == "ExactCount"
    status = f"{CLAIMS}/c/status"

    def patch(change: Json, at: str = status) -> ApiReply:
        return api.patch(at, change, MERGE)

    pods = [{"resource": "pods", "name": "p", "uid": "u"}]
    reply = patch({"status": {"reservedFor": pods}})
    assert reply.status == 422
    assert "may not be specified when `allocated` is not set" in reply.body["message"]
    whole = {"status": {"allocation": given(shareID=UUID), "reservedFor": pods}}
    answer = patch({"metadata": {"finalizers": [FINALIZER]}, **whole})
    assert answer.status == 200
    assert "finalizers" not in answer.meta
    second = patch({"status": {"allocation": given(device="gpu-1")}})
    assert (second.status, "cannot be modified once set" in second.body["message"]) == (422, True)
    assert patch({"status": {"allocation": None}}).status == 422
    assert patch({"status": {"allocation": None, "reservedFor": None}}).status == 200
    assert patch({"status": {"allocation": given()}}, f"{CLAIMS}/c").body["status"] == {}
    assert patch({"spec": claim_spec(20)}, f"{CLAIMS}/c").status == 422
    stale = {"metadata": {"resourceVersion": created["metadata"]["resourceVersion"]}}
    assert patch({**stale, "status": {"allocation": given()}}).status == 409


def test_nobody_brings_an_allocation_into_the_world(api: Api) -> None:
    body = {"metadata": {"name": "c"}, "spec": claim_spec(10), "status": {"allocation": given()}}
    assert api.create(CLAIMS, body).body["status"] == {}


def test_first_fit_leaves_the_large_claim_waiting_until_the_card_is_free(cluster: Api) -> None:
    node(cluster, "n", 80, 24)
    for name, gib in (("a", 10), ("b", 10), ("large", 80)):
        claim(cluster, name, gib)
        pod(cluster, name, named=name)
        if gib < 80:
            bound(cluster, name)
    assert devices(cluster, "a") == devices(cluster, "b") == ["gpu-0"]
    assert cluster.get(f"{CLAIMS}/a").meta["finalizers"] == [FINALIZER]
    waits(cluster, "large", "0/1 nodes are available: 1 cannot allocate all claims.")
    for name in ("a", "b"):
        cluster.delete(f"{PODS}/{name}?gracePeriodSeconds=0")
        until(lambda name=name: not devices(cluster, name), f"{name} is free")  # type: ignore[misc]
        until(
            lambda name=name: "finalizers" not in cluster.get(f"{CLAIMS}/{name}").meta,  # type: ignore[misc]
            "what protects it is gone",
        )
    bound(cluster, "large")


def test_two_devices_of_a_claim_are_two_cards_and_of_one_node(cluster: Api) -> None:
    node(cluster, "n", 80, 24)
    claim(cluster, "pair", 20, count=2)
    claim(cluster, "more", 5, count=2)
    claim(cluster, "many", 1, count=3)
    pod(cluster, "pair", named="pair")
    bound(cluster, "pair")
    for name in ("more", "many"):
        pod(cluster, name, named=name)
    assert devices(cluster, "pair") == ["gpu-0", "gpu-1"]
    waits(cluster, "more", "cannot allocate all claims")
    waits(cluster, "many", "cannot allocate all claims")


def test_each_request_of_a_claim_has_a_device_of_its_own(cluster: Api) -> None:
    node(cluster, "n", 24, 80, 16)
    small, large = (claim_spec(gib)["devices"]["requests"][0] for gib in (10, 60))
    requests = [{**small, "name": "small"}, {**large, "name": "large"}]
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}}
    assert cluster.create(CLAIMS, body).status == 201
    pod(cluster, "p", named="c")
    bound(cluster, "p")
    results = cluster.get(f"{CLAIMS}/c").body["status"]["allocation"]["devices"]["results"]
    assert [(item["request"], item["device"]) for item in results] == [
        ("small", "gpu-0"),
        ("large", "gpu-1"),
    ]


def test_a_class_that_is_not_there_is_told_and_waited_for(cluster: Api) -> None:
    node(cluster, "n", 80)
    claim(cluster, "c", 10, "later")
    pod(cluster, "p", named="c")
    waits(cluster, "p", "device class later does not exist")
    body: Json = {"metadata": {"name": "later"}, "spec": {"selectors": []}}
    cluster.create(f"{API}/deviceclasses", body)
    bound(cluster, "p")


def test_a_pod_waits_outside_until_its_claim_is_there(cluster: Api) -> None:
    node(cluster, "n", 80)
    pod(cluster, "p", named="c")
    pod(cluster, "q", named="d")
    claim(cluster, "d", 10)
    bound(cluster, "q")
    assert not on(cluster, "p")
    claim(cluster, "c", 10)
    bound(cluster, "p")


def test_a_claim_from_a_template_goes_with_its_pod(cluster: Api) -> None:
    node(cluster, "n", 80)
    spec = {"metadata": {"labels": {"of": "t"}}, "spec": claim_spec(60)}
    pod(cluster, "first", template="t")
    waits_for_template(cluster)
    cluster.create(TEMPLATES, {"metadata": {"name": "t"}, "spec": spec})
    bound(cluster, "first")
    (created,) = cluster.get(CLAIMS).body["items"]
    meta = created["metadata"]
    assert meta["name"].startswith("first-gpu-")
    assert meta["labels"] == {"of": "t"}
    assert meta["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert [owner["kind"] for owner in meta["ownerReferences"]] == ["Pod"]
    assert reserved(cluster, meta["name"]) == ["first"]
    cluster.delete(f"{PODS}/first?gracePeriodSeconds=0")
    until(lambda: cluster.get(CLAIMS).body["items"] == [], "the claim is gone")
    pod(cluster, "second", template="t")
    bound(cluster, "second")


def waits_for_template(api: Api) -> None:
    def told() -> bool:
        events = api.get("/api/v1/namespaces/default/events").body["items"]
        return any(event["reason"] == "FailedResourceClaimCreation" for event in events)

    until(told, "the missing template is told")


def test_a_claim_under_deletion_waits_for_its_pod(cluster: Api) -> None:
    node(cluster, "n", 80)
    claim(cluster, "c", 60)
    pod(cluster, "p", named="c")
    bound(cluster, "p")
    cluster.delete(f"{CLAIMS}/c")
    assert devices(cluster, "c") == ["gpu-0"]
    cluster.delete(f"{PODS}/p?gracePeriodSeconds=0")
    until(lambda: cluster.get(f"{CLAIMS}/c").status == 404, "the claim is gone")


def allocate(api: Api, name: str, node_name: str, device: int, pod_name: str) -> None:
    """Write an allocation, as another scheduler does."""
    (request,) = api.get(f"{CLAIMS}/{name}").body["spec"]["devices"]["requests"]
    results = given(
        request["name"],
        pool=node_name,
        device=f"gpu-{device}",
        shareID=UUID,
        consumedCapacity=request["exactly"]["capacity"]["requests"],
    )
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    consumer = {
        "resource": "pods",
        "name": pod_name,
        "uid": api.get(f"{PODS}/{pod_name}").meta["uid"],
    }
    status = {
        "allocation": {**results, "nodeSelector": {"nodeSelectorTerms": [term]}},
        "reservedFor": [consumer],
    }
    finalizer = {"metadata": {"finalizers": [FINALIZER]}}
    assert api.patch(f"{CLAIMS}/{name}", finalizer, MERGE).status == 200
    assert api.patch(f"{CLAIMS}/{name}/status", {"status": status}, MERGE).status == 200


def test_an_allocation_of_another_scheduler_is_bound_and_counts(cluster: Api) -> None:
    node(cluster, "n", 80)
    node(cluster, "m", 80)
    claim(cluster, "other", 60, NONE)
    pod(cluster, "p", named="other")
    waits(cluster, "p", "0/2 nodes are available: 2 cannot allocate all claims.")
    allocate(cluster, "other", "m", 0, "p")
    bound(cluster, "p", "m")
    pod(cluster, "q", named="other")
    bound(cluster, "q", "m")
    assert reserved(cluster, "other") == ["p", "q"]
    for name in ("x", "y"):
        claim(cluster, name, 60)
        pod(cluster, name, named=name)
    bound_once = [name for name in ("x", "y") if until_told(cluster, name)]
    assert len(bound_once) == 1
    assert on(cluster, bound_once[0]) == "n"


def test_an_allocation_that_its_pod_cannot_use_is_taken_back(cluster: Api) -> None:
    """The CPU of the node is used up, so the pod cannot use the devices there."""
    node(cluster, "n", 80)
    claim(cluster, "first", 20)
    pod(cluster, "first", "6", named="first")
    bound(cluster, "first", "n")
    node(cluster, "m", 80)
    claim(cluster, "other", 20, NONE)
    pod(cluster, "p", "6", named="other")
    waits(cluster, "p", "1 Insufficient cpu, 1 cannot allocate all claims.")
    allocate(cluster, "other", "n", 0, "p")
    until(lambda: not devices(cluster, "other"), "the devices are taken back")
    assert reserved(cluster, "other") == []
    waits(cluster, "p", "1 cannot allocate all claims.")
    allocate(cluster, "other", "m", 0, "p")
    bound(cluster, "p", "m")


def test_the_allocation_of_another_pod_is_not_taken_back(cluster: Api) -> None:
    node(cluster, "n", 80)
    claim(cluster, "shared", 20)
    pod(cluster, "first", "6", named="shared")
    bound(cluster, "first", "n")
    node(cluster, "m", 80)
    pod(cluster, "second", "6", named="shared")
    waits(cluster, "second", "1 resourceclaim not available on the node")
    assert reserved(cluster, "shared") == ["first"]
    cluster.delete(f"{PODS}/first?gracePeriodSeconds=0")
    bound(cluster, "second")


def test_selectors_alternatives_and_taint_rules_count(cluster: Api) -> None:
    node(cluster, "n", 24, 80)
    uuid = f"device.attributes['{DRIVER}'].uuid == 'GPU-n-%d'"
    exactly = claim_spec(10)["devices"]["requests"][0]["exactly"]
    second = {**exactly, "selectors": [{"cel": {"expression": uuid % 1}}]}
    none = {**exactly, "name": "none", "selectors": [{"cel": {"expression": uuid % 7}}]}
    choice = {"name": "gpu", "firstAvailable": [none, {**exactly, "name": "any"}]}
    for name, request in (
        ("selected", {"name": "gpu", "exactly": second}),
        ("alternative", choice),
    ):
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        assert cluster.create(CLAIMS, body).status == 201
        pod(cluster, name, named=name)
        bound(cluster, name)
    assert devices(cluster, "selected") == ["gpu-1"]
    results = cluster.get(f"{CLAIMS}/alternative").body["status"]["allocation"]["devices"][
        "results"
    ]
    assert [(item["request"], item["device"]) for item in results] == [("gpu/any", "gpu-0")]
    taint = {"key": "sick", "effect": "NoSchedule"}
    spec = {"deviceSelector": {"driver": DRIVER, "device": "gpu-0"}, "taint": taint}
    cluster.create(f"{API}/devicetaintrules", {"metadata": {"name": "r"}, "spec": spec})
    for number in range(10):  # until the scheduler has seen the rule
        claim(cluster, f"healthy-{number}", 1)
        pod(cluster, f"healthy-{number}", named=f"healthy-{number}")
        bound(cluster, f"healthy-{number}")
        if devices(cluster, f"healthy-{number}") == ["gpu-1"]:
            return
    pytest.fail("the rule keeps no claim from the device")


def test_config_of_class_and_claim_is_in_the_allocation(cluster: Api) -> None:
    node(cluster, "n", 80)
    of_class, of_claim = (
        {"opaque": {"driver": DRIVER, "parameters": {"kind": kind}}} for kind in ("Class", "Claim")
    )
    spec = {"selectors": [], "config": [of_class]}
    cluster.create(f"{API}/deviceclasses", {"metadata": {"name": "set"}, "spec": spec})
    devices = claim_spec(10, "set")["devices"] | {"config": [of_claim]}
    cluster.create(CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": devices}})
    pod(cluster, "p", named="c")
    bound(cluster, "p")
    allocation = cluster.get(f"{CLAIMS}/c").body["status"]["allocation"]
    assert allocation["devices"]["config"] == [
        {"source": "FromClass", "requests": ["gpu"], **of_class},
        {"source": "FromClaim", **of_claim},
    ]


def test_a_claim_of_two_pods_is_allocated_once(cluster: Api) -> None:
    node(cluster, "n", 80)
    node(cluster, "m", 80)
    claim(cluster, "c", 20)
    for name in ("p", "q"):
        pod(cluster, name, named="c")
    for name in ("p", "q"):
        bound(cluster, name)
    assert on(cluster, "p") == on(cluster, "q")
    assert sorted(reserved(cluster, "c")) == ["p", "q"]


def until_told(api: Api, name: str) -> bool:
    """Wait until a pod is bound or rejected; return whether it is bound."""

    def settled() -> bool:
        status = api.get(f"{PODS}/{name}").body["status"]
        return bool(on(api, name) or status.get("conditions"))

    until(settled, f"{name} is settled")
    return bool(on(api, name))
