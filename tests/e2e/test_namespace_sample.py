"""The sample policy for the pods of a namespace, on a real API server: pods are tried (dryRun)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.apiserver.client import Json
from tests.e2e.claims import HAS_CLAIMS, ClaimWorld
from tests.e2e.objects import fresh
from tests.e2e.processes import until

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="these policies are on from 1.36 on")

_SAMPLE = Path(__file__).parents[2] / "docs/samples/neighbours-of-a-namespace.yaml"
_POLICIES = "/apis/admissionregistration.k8s.io/v1"
_COLLECTIONS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}
_NAMESPACES = "/api/v1/namespaces"
_WISH = "gpushare.io/neighbours"


@pytest.fixture
def world(claim_world: ClaimWorld) -> Iterator[ClaimWorld]:
    paths = []
    for body in yaml.safe_load_all(_SAMPLE.read_text()):
        path = f"{_POLICIES}/{_COLLECTIONS[body['kind']]}"
        claim_world.api.create(path, body)
        paths.append(f"{path}/{body['metadata']['name']}")
    yield claim_world
    for path in paths:
        claim_world.api.delete(path)


def wish_in(world: ClaimWorld, labels: Json, annotations: Json | None = None) -> str | None:
    """Return the wish of a pod that is tried in a new namespace with these labels."""
    name = fresh("team")
    world.api.create(_NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    body = {
        "metadata": {"name": fresh("pod"), "annotations": annotations or {}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    reply = world.api.call("POST", f"{_NAMESPACES}/{name}/pods", body, dryRun="All")
    assert reply.status == 201, reply.body
    wish = (reply.body["metadata"].get("annotations") or {}).get(_WISH)
    return None if wish is None else str(wish)


def test_pods_of_a_labelled_namespace_want_few_neighbours(world: ClaimWorld) -> None:
    # The API server goes by a new policy a moment after it is there.
    until(lambda: wish_in(world, {_WISH: "few"}) == "few", "the policy is not in force")
    assert wish_in(world, {_WISH: "few"}, {"other": "annotation"}) == "few"
    assert wish_in(world, {_WISH: "few"}, {_WISH: "any"}) == "any"
    assert wish_in(world, {}) is None
