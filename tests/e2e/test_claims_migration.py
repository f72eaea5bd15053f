"""The commands of docs/claims.md that lead from the earlier way, on a real control plane.

Before them the extender allocated claims: the class selected no device, and a policy refused every
allocation by others.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.apiserver.client import MERGE, Json
from tests.e2e.binaries import needed
from tests.e2e.claims import ALONE, CLAIMS, DRIVER, HAS_CLAIMS, ClaimWorld, memory_request
from tests.e2e.extender import doctor_findings
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import until

ROOT = Path(__file__).parents[2]
BEFORE = ROOT / "tests" / "data" / "claims-before.yaml"
FINALIZER = "resource.kubernetes.io/delete-protection"

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="no device is shared there")


def commands() -> list[str]:
    """The commands of the page, in order."""
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    section = page.partition("## From the old way\n")[2]
    return [line for line in section.split("```")[1].splitlines() if line]


class MigrationKubectl:
    """Runs commands of a page as the administrator, in a clone."""

    def __init__(self, plane: Plane) -> None:
        self._file = plane.kubeconfig(ADMIN)
        self._home = plane.folder

    def run(self, command: str) -> None:
        program, *words = command.split()
        assert program == "kubectl"
        finished = subprocess.run(
            [needed("kubectl"), "--kubeconfig", self._file, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={"HOME": str(self._home), "PATH": "/usr/bin:/bin"},
        )
        assert finished.returncode == 0, (command, finished.stderr)

    def findings(self) -> dict[str, Json]:
        """The findings of `gpushare doctor`, by check."""
        return doctor_findings(self._file)


@pytest.fixture
def world(make_plane: Callable[..., Plane], tmp_path: Path) -> ClaimWorld:
    return ClaimWorld(make_plane(), tmp_path / "world")


def test_the_commands_of_the_page_lead_to_kube_scheduler(world: ClaimWorld) -> None:
    try:
        _test(world)
    finally:
        world.stop()


def _test(world: ClaimWorld) -> None:
    kubectl, api = MigrationKubectl(world.plane), world.api
    node = world.node(80)
    has, waits = world.claim(memory_request(10)), world.claim(memory_request(20))
    runs = world.pod(has, nodeName=node)
    _allocate(world, has, node, runs)
    values = world.results(has)
    kubectl.run(f"kubectl apply -f {BEFORE}")
    pending = world.pod(waits)
    world.schedule(ALONE)
    assert not world.settled(pending)
    allocation = _allocation(node, 20, [])

    def is_refused() -> bool:
        path = f"{CLAIMS}/{waits}/status"
        answer = api.call("PATCH", path, allocation, content_type=MERGE, dryRun="All")
        return "given out by gpushare alone" in answer.body.get("message", "")

    until(is_refused, "the policy refuses others' allocations")
    before = kubectl.findings()
    assert before["claims-left-over"]["level"] == "fail"
    assert before["claims-class"]["level"] == "fail"

    for command in commands():
        kubectl.run(command)

    after = kubectl.findings()
    assert "claims-left-over" not in after
    assert after["claims-class"]["level"] == "ok", after
    world.bound(pending)
    assert [item["device"] for item in world.results(waits)] == ["gpu-0"]
    assert world.results(has) == values
    world.sound()
    # The finalizer that came with the claim is taken away once no pod uses the claim.
    assert api.get(f"{CLAIMS}/{has}").body["metadata"]["finalizers"] == [FINALIZER]
    world.objects.delete(runs)
    api.delete(f"{CLAIMS}/{has}")
    until(lambda: api.get(f"{CLAIMS}/{has}").status == 404, "the claim stays", 90)


def _allocate(world: ClaimWorld, claim: str, node: str, pod: Json) -> None:
    """Give a claim a part of a device, as the extender did."""
    meta = {"metadata": {"finalizers": [FINALIZER]}}
    assert world.api.patch(f"{CLAIMS}/{claim}", meta).status == 200
    user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    reply = world.api.patch(f"{CLAIMS}/{claim}/status", _allocation(node, 10, [user]))
    assert reply.status == 200, reply.body


def _allocation(node: str, gib: int, users: list[Json]) -> Json:
    result = {
        "request": "gpu",
        "driver": DRIVER,
        "pool": node,
        "device": "gpu-0",
        "shareID": "8f7e5f3c-7ad1-4f0e-8d5e-0d6d7b0a3c11",
        "consumedCapacity": {"memory": f"{gib}Gi"},
    }
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    allocation = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }
    return {"status": {"allocation": allocation, "reservedFor": users}}
