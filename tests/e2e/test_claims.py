"""Whatever kube-scheduler alone binds of claims is bound with our choice of the node.

On a real control plane of 1.36 or later. kube-scheduler allocates in both cases; slices are written
by the test. The specs are in `claim_specs.py`.
"""

from collections.abc import Iterator

import pytest

from gpushare.wire.quantity import to_bytes
from tests.contract.apiserver.client import Json
from tests.e2e.claim_specs import SPECS, Spec, nvidia_nodes, request
from tests.e2e.claims import (
    ALONE,
    CLASS,
    CLASSES,
    DRIVER,
    HAS_CLAIMS,
    TAINT_RULES,
    WITH_US,
    ClaimWorld,
    memory_request,
)
from tests.e2e.objects import fresh
from tests.e2e.processes import until

pytestmark = pytest.mark.skipif(not HAS_CLAIMS, reason="shared capacity is on from 1.36 on")


@pytest.fixture(scope="module", params=[ALONE, WITH_US])
def shared(claim_world: ClaimWorld, request: pytest.FixtureRequest) -> ClaimWorld:
    claim_world.schedule(request.param)
    return claim_world


@pytest.fixture
def world(shared: ClaimWorld) -> Iterator[ClaimWorld]:
    with shared.emptied():
        yield shared
    shared.healthy()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.__name__)
def test_the_pods_of_a_spec_are_bound(world: ClaimWorld, spec: Spec) -> None:
    pods = spec(world)
    world.bound(*pods.bound)
    for pod in pods.waiting:
        assert not world.settled(pod)
    world.sound()


def taint(effect: str, **selector: str) -> Json:
    """A rule that taints devices of DRIVER."""
    spec = {
        "deviceSelector": {"driver": DRIVER, **selector},
        "taint": {"key": "test/sick", "value": "yes", "effect": effect},
    }
    return {"metadata": {"name": fresh("rule")}, "spec": spec}


def test_a_rule_keeps_new_claims_off_a_device_unless_they_tolerate_it(world: ClaimWorld) -> None:
    node = world.node(80, 24)
    assert world.api.call("POST", TAINT_RULES, taint("NoSchedule", device="gpu-0")).status == 201
    tolerates = [{"key": "test/sick", "operator": "Exists"}]
    small = world.claim(memory_request(10))
    world.bound(world.pod(small))
    assert [item["device"] for item in world.results(small)] == ["gpu-1"]
    large = world.pod(world.claim(memory_request(60)))
    assert not world.settled(large)
    tolerant = world.claim(memory_request(70, tolerations=tolerates))
    world.bound(world.pod(tolerant))
    assert [(item["pool"], item["device"]) for item in world.results(tolerant)] == [(node, "gpu-0")]


def test_pods_of_a_device_that_a_rule_evicts_from_go_to_healthy_ones(world: ClaimWorld) -> None:
    sick, well = world.node(80), world.node(80)
    template = world.template(memory_request(30))
    pod = world.pod(templates=[template], nodeSelector={"kubernetes.io/hostname": sick})
    world.bound(pod)
    assert world.api.call("POST", TAINT_RULES, taint("NoExecute", pool=sick)).status == 201
    until(lambda: world.api.get(world.objects.path(pod)).status == 404, world.told)
    # A recreated pod must get the healthy device at the first try.
    again = [world.pod(templates=[template]) for _ in range(2)]
    world.bound(*again)
    assert {world.placed.node[item["metadata"]["uid"]] for item in again} == {well}


@pytest.mark.parametrize("by_name", [True, False], ids=["nvidia.com-gpu", "implicit-name"])
def test_an_extended_resource_of_a_class_is_a_claim(world: ClaimWorld, by_name: bool) -> None:
    of = nvidia_nodes(world, gpus=2, nodes=2)
    resource = f"deviceclass.resource.kubernetes.io/{of}"
    if by_name:
        resource = "nvidia.com/gpu"
        world.objects.patch(f"{CLASSES}/{of}", {"spec": {"extendedResourceName": resource}})
    container = {"name": "main", "image": "x", "resources": {"limits": {resource: "1"}}}
    pods = [world.pod(containers=[container]) for _ in range(4)]
    world.bound(*pods)
    late = world.pod(containers=[container])
    assert not world.settled(late)
    nodes = sorted(world.placed.node[pod["metadata"]["uid"]] for pod in pods)
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    world.sound()
    world.objects.patch(f"{CLASSES}/{of}", {"spec": {"extendedResourceName": None}})


def test_an_extended_resource_and_a_claim_of_one_pod_are_on_one_node(world: ClaimWorld) -> None:
    of = nvidia_nodes(world, gpus=1, nodes=2)
    resource = f"deviceclass.resource.kubernetes.io/{of}"
    container = {"name": "main", "image": "x", "resources": {"limits": {resource: "1"}}}
    node = world.node()
    world.slice(node, DRIVER, devices=[])
    pods = [world.pod(containers=[container])]
    world.bound(*pods)
    both = world.pod(world.claim(request(of)), containers=[container])
    # Each node has one GPU: the claim and the extended resource together want two.
    assert not world.settled(both)


def test_the_class_that_we_ship_selects_the_devices_of_the_driver(world: ClaimWorld) -> None:
    node = world.node(80)
    claim = world.claim(memory_request(10, CLASS))
    world.bound(world.pod(claim))
    (result,) = world.results(claim)
    assert (result["driver"], result["pool"]) == (DRIVER, node)
    assert to_bytes(result["consumedCapacity"]["memory"]) == 10 << 30
