"""The commands predict claims on a real kube-scheduler.

As many pods are bound as `whatif` counts; a pending pod is bound after the end of the claims that
`explain` names; `inspect` shows the memory that claims hold.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.apiserver.client import Json
from tests.e2e.binaries import needed
from tests.e2e.claims import CLAIMS, CLASS, HAS_CLAIMS, WITH_US, ClaimWorld, memory_request
from tests.e2e.extender import GPUSHARE
from tests.e2e.plane import ADMIN
from tests.e2e.processes import until

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="shared capacity is on from 1.36 on")


@pytest.fixture
def world(claim_world: ClaimWorld) -> Iterator[ClaimWorld]:
    claim_world.schedule(WITH_US)
    with claim_world.emptied():
        yield claim_world
    claim_world.healthy()


def told(world: ClaimWorld, command: str, *words: str) -> Json:
    """The document that a command prints."""
    finished = subprocess.run(
        [*GPUSHARE, command, *words, "-o", "json"]
        + ["--kubeconfig", str(world.plane.kubeconfig(ADMIN))],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"KUBECTL": str(needed("kubectl"))},
    )
    assert finished.stdout, finished.stderr
    result: Json = json.loads(finished.stdout)
    return result


def manifest(folder: Path, *requests: Json) -> str:
    """A file with a Deployment of 50 pods, each with a claim of these requests."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t"},
        "spec": {"spec": {"devices": {"requests": [*requests]}}},
    }
    claims = [{"name": "c", "resourceClaimTemplateName": "t"}]
    pod = {"spec": {"resourceClaims": claims, "containers": [{"name": "main"}]}}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 50, "template": pod},
    }
    file = folder / "pods.yaml"
    file.write_text(yaml.safe_dump_all([template, deployment]))
    return str(file)


@pytest.mark.parametrize(
    "requests",
    [
        [memory_request(10)],
        [memory_request(7, count=2)],
        [memory_request(30), memory_request(5, name="more")],
        [
            {
                "name": "gpu",
                "firstAvailable": [
                    {
                        "name": "large",
                        "deviceClassName": CLASS,
                        "capacity": {"requests": {"memory": "50Gi"}},
                    },
                    {
                        "name": "small",
                        "deviceClassName": CLASS,
                        "capacity": {"requests": {"memory": "9Gi"}},
                    },
                ],
            }
        ],
    ],
    ids=["one", "two devices", "two requests", "a choice"],
)
def test_as_many_pods_are_bound_as_whatif_counts(
    world: ClaimWorld, tmp_path: Path, requests: list[Json]
) -> None:
    for sizes in ((80,), (24, 40), (24,)):
        world.node(*sizes)
    words = ("--pods", manifest(tmp_path, *requests), "--claims", "gpu.nvidia.com")
    (count,) = told(world, "whatif", *words)["pods"]
    assert 0 < count["fit"] < 50
    world.bound_in_turn(*(world.claim(*requests) for _ in range(count["fit"])))
    last = world.pod(world.claim(*requests))
    assert not world.settled(last)
    world.sound()
    (none,) = told(world, "whatif", *words)["pods"]
    assert none["fit"] == 0


def test_the_claims_that_explain_names_are_those_that_have_to_end(world: ClaimWorld) -> None:
    world.node(40)
    claims = {gib: world.claim(memory_request(gib)) for gib in (6, 10, 20)}
    pods = dict(zip(claims, world.bound_in_turn(*claims.values()), strict=True))
    waits = world.pod(world.claim(memory_request(22)))
    assert not world.settled(waits)
    name = waits["metadata"]["name"]
    result = told(world, "explain", name)
    remedy = result["claimDevices"]["remedy"]
    assert [item["name"] for item in remedy["ends"]] == [claims[20]]
    assert remedy["ends"][0]["pods"] == [pods[20]["metadata"]["name"]]
    assert "cannot allocate all claims" in result["scheduler"]["message"]
    listing = told(world, "inspect")["claims"]
    assert {item["name"]: item["units"] for item in listing["claims"] if item["pods"]} == {
        claim: gib for gib, claim in claims.items()
    }
    assert (listing["total"], listing["allocated"]) == (40, 36)

    world.objects.delete(pods[20])
    until(lambda: not world.results(claims[20]), "the claim keeps its device", 90)
    world.api.delete(f"{CLAIMS}/{claims[20]}")
    world.bound(waits, seconds=90)
    assert told(world, "explain", name)["state"] == "bound"
