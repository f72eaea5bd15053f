"""Nodes look alive: Leases are renewed, and conditions have times."""

from collections.abc import Iterator

import pytest

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.controllers.manager import ControllerManager
from gpushare_localcluster.kubelet import Heartbeat
from tests.contract.apiserver.client import Api
from tests.e2e.processes import until

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n"


@pytest.fixture
def api() -> Iterator[Api]:
    server = ApiServer(Store())
    server.start()
    parts: list[Heartbeat | ControllerManager] = [
        Heartbeat(ApiClient(server.url, user_agent="heartbeat"), interval=0.05),
        ControllerManager(ApiClient(server.url, user_agent="controllers")),
    ]
    for part in parts:
        part.start()
    yield Api(server.url)
    for part in parts:
        part.stop()
    server.stop()


def add_node(api: Api) -> str:
    status = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
    created = api.create("/api/v1/nodes", {"metadata": {"name": "n"}, "status": status})
    return str(created.meta["uid"])


def test_a_node_has_a_lease_that_is_renewed(api: Api) -> None:
    uid = add_node(api)
    until(lambda: api.get(LEASE).status == 200, "there is a Lease")
    first = api.get(LEASE).body
    assert first["spec"]["holderIdentity"] == "n"
    assert first["metadata"]["ownerReferences"][0]["uid"] == uid
    until(lambda: _renewed(api) > first["spec"]["renewTime"], "it is renewed")


def _renewed(api: Api) -> str:
    return str(api.get(LEASE).body["spec"]["renewTime"])


def test_conditions_have_times_and_keep_what_they_say(api: Api) -> None:
    add_node(api)

    def ready() -> Json:
        (result,) = api.get("/api/v1/nodes/n").body["status"]["conditions"]
        return dict(result)

    until(lambda: "lastHeartbeatTime" in ready(), "it has beaten")
    text = ready()
    assert (text["type"], text["status"], text["reason"]) == ("Ready", "True", "KubeletReady")
    assert text["lastTransitionTime"] == text["lastHeartbeatTime"]


def test_the_lease_goes_with_its_node_and_comes_with_the_next(api: Api) -> None:
    first = add_node(api)
    until(lambda: api.get(LEASE).status == 200, "there is a Lease")
    assert api.delete("/api/v1/nodes/n").status == 200
    until(lambda: api.get(LEASE).status == 404, "it is gone")
    second = add_node(api)
    assert second != first
    until(lambda: api.get(LEASE).status == 200, "there is another")
    assert api.get(LEASE).meta["ownerReferences"][0]["uid"] == second
