"""Pods with claims of labelled namespaces go to our scheduler, on a real API server.

The policy is that of config/extender/claims. Nothing is scheduled here: pods are tried (dryRun).
"""

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.claims import HAS_CLAIMS, ClaimWorld
from tests.e2e.objects import fresh
from tests.e2e.processes import until

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="shared capacity is on from 1.36 on")

NAMESPACES = "/api/v1/namespaces"
DEFAULT, OURS = "default-scheduler", "gpushare-scheduler"


@pytest.fixture(scope="module")
def world(claim_world: ClaimWorld) -> ClaimWorld:
    # The API server goes by a new policy a moment after it is there.
    team = namespace(claim_world, "true")
    until(lambda: scheduler_of(claim_world, team) == OURS, "the policy is not in force")
    return claim_world


def namespace(world: ClaimWorld, label: str) -> str:
    name = fresh("team")
    labels = {"gpushare.io/dra": label} if label else {}
    world.api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    return name


def scheduler_of(world: ClaimWorld, path: str, *, claims: bool = True, **spec: object) -> str:
    """The scheduler that a pod would have."""
    has: Json = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]}
    containers = [{"name": "main", "image": "x"}]
    body = {
        "metadata": {"name": fresh("pod")},
        "spec": {"containers": containers, **(has if claims else {}), **spec},
    }
    reply = world.api.call("POST", f"{NAMESPACES}/{path}/pods", body, dryRun="All")
    assert reply.status == 201, reply.body
    return str(reply.body["spec"]["schedulerName"])


def test_pods_with_claims_go_to_our_scheduler_in_labelled_namespaces(world: ClaimWorld) -> None:
    team = namespace(world, "true")
    assert scheduler_of(world, team) == OURS
    assert scheduler_of(world, team, schedulerName=DEFAULT) == OURS
    by_name = [{"name": "gpu", "resourceClaimName": "c"}]
    assert scheduler_of(world, team, resourceClaims=by_name) == OURS


@pytest.mark.parametrize("label", ["", "false"])
def test_pods_of_other_namespaces_stay(world: ClaimWorld, label: str) -> None:
    assert scheduler_of(world, namespace(world, label)) == DEFAULT


def test_pods_without_claims_and_of_other_schedulers_and_of_a_node_stay(world: ClaimWorld) -> None:
    team = namespace(world, "true")
    assert scheduler_of(world, team, claims=False) == DEFAULT
    assert scheduler_of(world, team, claims=False, resourceClaims=[]) == DEFAULT
    assert scheduler_of(world, team, schedulerName="another") == "another"
    assert scheduler_of(world, team, nodeName="node") == DEFAULT
