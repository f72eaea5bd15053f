"""A node that is not ready is tainted, as by the node lifecycle controller."""

from collections.abc import Iterator

import pytest

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.controllers.manager import ControllerManager
from tests.contract.apiserver.client import MERGE, Api
from tests.e2e.processes import until

OWN = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
NODE = "/api/v1/nodes/n"


@pytest.fixture
def api() -> Iterator[Api]:
    server = ApiServer(Store(), bookmark_every=0.2)
    server.start()
    controllers = ControllerManager(ApiClient(server.url, user_agent="controllers"))
    controllers.start()
    yield Api(server.url)
    controllers.stop()
    server.stop()


def keys(api: Api) -> list[str]:
    return [taint["key"] for taint in api.get(NODE).body["spec"].get("taints") or ()]


def test_the_taint_follows_the_condition(api: Api) -> None:
    api.create("/api/v1/nodes", {"metadata": {"name": "n"}, "spec": {"taints": [OWN]}})
    for status, key in (("False", "not-ready"), ("Unknown", "unreachable"), ("True", "")):
        condition = {"type": "Ready", "status": status}
        api.patch(f"{NODE}/status", {"status": {"conditions": [condition]}}, MERGE)
        target = ["dedicated", *([f"node.kubernetes.io/{key}"] if key else [])]

        def told(expected: list[str] = target) -> bool:
            return keys(api) == expected

        until(told, f"the taints of a node that says {status}")
