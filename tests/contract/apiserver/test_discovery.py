"""Discovery: the first requests of a kube-scheduler and of kubectl."""

import pytest

from tests.contract.apiserver.client import Api
from tests.contract.apiserver.conftest import SERVER, newest
from tests.e2e.binaries import NEWEST, RELEASE

SCHEDULER_READS = [
    "/api/v1/pods",
    "/api/v1/nodes",
    "/api/v1/namespaces",
    "/api/v1/services",
    "/api/v1/replicationcontrollers",
    "/api/v1/persistentvolumes",
    "/api/v1/persistentvolumeclaims",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/csidrivers",
    "/apis/storage.k8s.io/v1/csistoragecapacities",
    "/apis/storage.k8s.io/v1/volumeattachments",
]
SINCE_LATELY = [
    "/apis/resource.k8s.io/v1/resourceclaims",
    "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/resource.k8s.io/v1/deviceclasses",
]


@pytest.mark.parametrize(
    "path", [*SCHEDULER_READS, *(pytest.param(path, marks=newest) for path in SINCE_LATELY)]
)
def test_whatever_a_kube_scheduler_caches_can_be_listed_and_watched(api: Api, path: str) -> None:
    listing = api.get(path)
    assert listing.status == 200
    assert isinstance(listing.body["items"], list)
    with api.watch(path, resourceVersion=listing.version, timeoutSeconds=5):
        pass


def test_every_group_that_is_named_has_a_page(api: Api) -> None:
    """Kubectl repeats the request for a group with a missing page."""
    for group in api.get("/apis").body["groups"]:
        for version in group["versions"]:
            page = api.get(f"/apis/{version['groupVersion']}")
            assert (page.status, page.body["kind"]) == (200, "APIResourceList")
        assert api.get(f"/apis/{group['name']}").body["preferredVersion"]


def test_short_names_and_verbs_are_told(api: Api) -> None:
    page = api.get("/api/v1").body
    pods = next(item for item in page["resources"] if item["name"] == "pods")
    assert (pods["kind"], pods["namespaced"], pods["shortNames"]) == ("Pod", True, ["po"])
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(pods["verbs"])
    assert "pods/binding" in {item["name"] for item in page["resources"]}


def test_an_unserved_group_is_not_found(api: Api) -> None:
    assert api.get("/apis/none.example.com/v1").status == 404
    assert api.get("/apis/none.example.com").status == 404
    assert api.get("/api/v1/nothings").status == 404


def test_the_server_says_that_it_is_ready_and_who_it_is(api: Api) -> None:
    assert api.get("/readyz").status == 200
    text = api.get("/version").body
    release = NEWEST if SERVER == "localcluster" else RELEASE
    assert [text["major"], text["minor"]] == release.split(".")[:2]
    assert text["gitVersion"].startswith(f"v{release}")


def test_everybody_may_do_everything(api: Api) -> None:
    reply = api.create(
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}},
    )
    assert reply.body["status"]["allowed"] is True


def test_a_table_is_answered_to_those_who_ask(api: Api, node_name: str) -> None:
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    table = api.call("GET", f"/api/v1/nodes/{node_name}", accept=accept).body
    assert table["kind"] == "Table"
    titles = [column["name"] for column in table["columnDefinitions"]]
    assert titles[:2] == ["Name", "Status"]
    assert table["rows"][0]["object"]["metadata"]["name"] == node_name


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/vnd.kubernetes.protobuf, */*", 200),
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("", 200),
        ("application/vnd.kubernetes.protobuf", 406),
    ],
)
def test_json_is_answered_to_those_who_take_it(api: Api, accept: str, status: int) -> None:
    if "protobuf" in accept and api.tls:
        pytest.skip("a real server writes protobuf")
    assert api.call("GET", "/api/v1/nodes", accept=accept).status == status
