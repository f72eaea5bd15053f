"""Claims and slices in the forms of dra-example-driver and NVIDIA's driver, by kind of spec.

Each spec makes nodes with slices, then claims and pods, and names the pods that kube-scheduler
binds. Specs are data for `test_claims.py`: nothing here judges.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.contract.apiserver.client import Json
from tests.e2e.claims import DRIVER, ClaimWorld, memory_request, shared_gpu

EXAMPLE, NET = "gpu.example.com", "net.example.com"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


class Pods(NamedTuple):
    """The pods of a spec."""

    bound: Sequence[Json]
    """kube-scheduler binds these."""
    waiting: Sequence[Json] = ()
    """No node has the devices for these."""


Spec = Callable[[ClaimWorld], Pods]
SPECS: list[Spec] = []


def spec(make: Spec) -> Spec:
    """Register a spec."""
    SPECS.append(make)
    return make


# -- slices and classes ----------------------------------------------------------


def example_gpu(number: int, node: str, **changes: object) -> Json:
    """Return a GPU as dra-example-driver offers it: whole, with attributes."""
    attributes = {
        "index": {"int": number},
        "uuid": {"string": f"gpu-{node}-{number}"},
        "model": {"string": "LATEST-GPU-MODEL"},
        "driverVersion": {"version": "1.0.0"},
        PCIE_ROOT: {"string": f"pci0000:0{number // 2}"},
    }
    capacity = {"memory": {"value": "80Gi"}}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": capacity, **changes}


def example_nodes(world: ClaimWorld, gpus: int = 4, nodes: int = 2) -> str:
    """Make nodes with dra-example-driver's GPUs; return the class that selects the driver."""
    for _ in range(nodes):
        node = world.node()
        world.slice(node, EXAMPLE, devices=[example_gpu(number, node) for number in range(gpus)])
    return world.device_class(f"device.driver == '{EXAMPLE}'")


def nvidia_gpu(number: int, node: str, product: str = "NVIDIA H100 80GB HBM3") -> Json:
    """Return a GPU as NVIDIA's driver offers it: whole."""
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-{node}-{number}"},
        "productName": {"string": product},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.65.6"},
        "cudaDriverVersion": {"version": "13.0.0"},
        PCIE_ROOT: {"string": f"pci0000:{number // 2}0"},
    }
    capacity = {"memory": {"value": "81559Mi"}}
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": capacity}


def nvidia_nodes(world: ClaimWorld, gpus: int = 4, nodes: int = 2) -> str:
    """Make nodes with NVIDIA's whole GPUs; return a class like the driver's."""
    for _ in range(nodes):
        node = world.node()
        world.slice(node, DRIVER, devices=[nvidia_gpu(number, node) for number in range(gpus)])
    return world.device_class(
        f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    )


_MIG = {"1g.10gb": (1, 7), "2g.20gb": (2, 3), "3g.40gb": (4, 2), "7g.80gb": (8, 1)}
"""Memory slices of a profile, and how many places it has on a GPU."""


def mig_slices(world: ClaimWorld, node: str, gpus: int = 1) -> None:
    """Write partitionable GPUs: each MIG device consumes the memory slices of its GPU."""
    counters, devices = [], []
    for gpu in range(gpus):
        counts = f"gpu-{gpu}-counters"
        all_items = {f"memory-slice-{number}": {"value": "1"} for number in range(8)}
        counters.append({"name": counts, "counters": all_items})
        for profile, (width, places) in _MIG.items():
            for place in range(places):
                taken_value = range(place * width, place * width + width)
                used = {f"memory-slice-{number}": {"value": "1"} for number in taken_value}
                called = f"gpu-{gpu}-mig-{profile.replace('.', '-')}-{place}"
                attributes = {
                    "type": {"string": "mig"},
                    "profile": {"string": profile},
                    "uuid": {"string": f"MIG-{node}-{called}"},
                    "parentUUID": {"string": f"GPU-{node}-{gpu}"},
                }
                device: Json = {"name": called, "attributes": attributes}
                device["capacity"] = {"memory": {"value": f"{10 * width}Gi"}}
                device["consumesCounters"] = [{"counterSet": counts, "counters": used}]
                devices.append(device)
    world.slice(node, DRIVER, of=2, sharedCounters=counters)
    world.slice(node, DRIVER, of=2, devices=devices)


def request(of: str, name: str = "gpu", **exactly: object) -> Json:
    """Return a request for devices of a class."""
    return {"name": name, "exactly": {"deviceClassName": of, **exactly}}


def cel(expression: str) -> Json:
    """Return a selector."""
    return {"cel": {"expression": expression}}


# -- in dra-example-driver's forms ----------------------------------------------------------


@spec
def a_gpu_for_each_pod_by_a_template(world: ClaimWorld) -> Pods:
    template = world.template(request(example_nodes(world, gpus=2, nodes=1)))
    bound_count = [world.pod(templates=[template]) for _ in range(2)]
    world.bound(*bound_count)
    return Pods(bound_count, [world.pod(templates=[template])])


@spec
def one_claim_of_two_containers(world: ClaimWorld) -> Pods:
    return Pods([world.pod(world.claim(request(example_nodes(world))), container_count=2)])


@spec
def one_claim_of_two_pods(world: ClaimWorld) -> Pods:
    claim = world.claim(request(example_nodes(world)))
    return Pods([world.pod(claim) for _ in range(2)])


@spec
def several_requests_in_a_claim(world: ClaimWorld) -> Pods:
    of = example_nodes(world, gpus=4, nodes=1)
    claim = world.claim(request(of, "first"), request(of, "second", count=2))
    first = world.pod(claim)
    world.bound(first)
    two = world.claim(request(of, count=2))
    return Pods([first], [world.pod(two)])


@spec
def several_claims_of_a_pod(world: ClaimWorld) -> Pods:
    of = example_nodes(world, gpus=2)
    return Pods([world.pod(*(world.claim(request(of)) for _ in range(2)))])


@spec
def cel_selectors_by_attribute_version_and_capacity(world: ClaimWorld) -> Pods:
    of = example_nodes(world, nodes=1)
    domain = f"device.attributes['{EXAMPLE}']"
    memory = f"device.capacity['{EXAMPLE}'].memory"
    fits = (
        f"{domain}.model == 'LATEST-GPU-MODEL' && {domain}.index >= 2",
        f"{domain}.driverVersion.compareTo(semver('0.9.0')) > 0",
        f"{memory}.compareTo(quantity('40Gi')) >= 0 && {domain}.model.startsWith('LATEST')",
    )
    bound_count = [world.pod(world.claim(request(of, selectors=[cel(text)]))) for text in fits]
    world.bound(*bound_count)
    none = f"{memory}.compareTo(quantity('1Ti')) >= 0"
    return Pods(bound_count, [world.pod(world.claim(request(of, selectors=[cel(none)])))])


@spec
def a_selector_with_a_macro_and_one_for_an_attribute_that_may_lack(world: ClaimWorld) -> Pods:
    of = example_nodes(world)
    domain = f"device.attributes['{EXAMPLE}']"
    texts = (
        f"['LATEST-GPU-MODEL', 'OTHER'].exists(model, model == {domain}.model)",
        f"has({domain}.model) && !has({domain}.lacks)",
        f"cel.bind(a, {domain}, a.model == 'LATEST-GPU-MODEL')",
    )
    return Pods([world.pod(world.claim(request(of, selectors=[cel(text)]))) for text in texts])


@spec
def the_first_of_several_alternatives_that_there_is(world: ClaimWorld) -> Pods:
    of = example_nodes(world)
    huge = cel(f"device.capacity['{EXAMPLE}'].memory.compareTo(quantity('1Ti')) >= 0")
    choices = [
        {"name": "huge", "deviceClassName": of, "selectors": [huge]},
        {"name": "two", "deviceClassName": of, "count": 2},
    ]
    return Pods([world.pod(world.claim({"name": "gpu", "firstAvailable": choices}))])


@spec
def devices_with_one_value_of_an_attribute(world: ClaimWorld) -> Pods:
    of = example_nodes(world, gpus=4, nodes=1)
    match = [{"requests": [], "matchAttribute": PCIE_ROOT}]
    claims = [world.claim(request(of, count=2), constraints=match) for _ in range(3)]
    bound_count = [world.pod(claim) for claim in claims[:2]]
    world.bound(*bound_count)
    return Pods(bound_count, [world.pod(claims[2])])


@spec
def opaque_parameters_for_the_driver(world: ClaimWorld) -> Pods:
    of = example_nodes(world)
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long "}}
    parameters = {"apiVersion": f"{EXAMPLE}/v1", "kind": "GpuConfig", "sharing": sharing}
    config = [{"requests": ["gpu"], "opaque": {"driver": EXAMPLE, "parameters": parameters}}]
    claim = world.claim(request(of), request(of, "extra"), config=config)
    return Pods([world.pod(claim)])


@spec
def an_administrator_looks_at_devices_that_are_taken(world: ClaimWorld) -> Pods:
    of = example_nodes(world, gpus=2, nodes=1)
    used = world.pod(world.claim(request(of, count=2)))
    world.bound(used)
    world.objects.patch(
        "/api/v1/namespaces/default",
        {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    access = request(of, allocationMode="All", adminAccess=True)
    return Pods([used, world.pod(world.claim(access))], [world.pod(world.claim(request(of)))])


@spec
def all_devices_of_a_node(world: ClaimWorld) -> Pods:
    of = example_nodes(world, gpus=3, nodes=2)
    one = world.pod(world.claim(request(of)))
    world.bound(one)
    # All devices of the other node are free.
    first = world.pod(world.claim(request(of, allocationMode="All")))
    world.bound(first)
    return Pods([one, first], [world.pod(world.claim(request(of, allocationMode="All")))])


@spec
def two_shared_capacities_of_one_device(world: ClaimWorld) -> Pods:
    node = world.node()
    capacity = {"memory": {"value": "80Gi"}, "compute": {"value": "100"}}
    gpu = example_gpu(0, node, capacity=capacity, allowMultipleAllocations=True)
    world.slice(node, EXAMPLE, devices=[gpu])
    of = world.device_class(f"device.driver == '{EXAMPLE}'")
    amounts = {"requests": {"memory": "16Gi", "compute": "40"}}
    pods = world.bound_in_turn(*(world.claim(request(of, capacity=amounts)) for _ in range(2)))
    # Memory is left, compute is not.
    return Pods(pods, [world.pod(world.claim(request(of, capacity=amounts)))])


@spec
def bandwidth_of_a_shared_nic(world: ClaimWorld) -> Pods:
    node = world.node()
    world.node()
    policy = {"default": "10G", "validRange": {"min": "1G", "step": "1G", "max": "100G"}}
    both = {
        name: {"value": "100G", "requestPolicy": policy}
        for name in ("ingressBandwidth", "egressBandwidth")
    }
    nic = {"name": "nic-0", "allowMultipleAllocations": True, "capacity": both}
    world.slice(node, NET, devices=[nic])
    of = world.device_class(f"device.driver == '{NET}'")

    def claim(ingress: str, egress: str) -> str:
        amounts = {"requests": {"ingressBandwidth": ingress, "egressBandwidth": egress}}
        return world.claim(request(of, "nic", capacity=amounts))

    pods = world.bound_in_turn(claim("60G", "5G"), claim("39500M", "5G"))
    return Pods(pods, [world.pod(claim("1G", "1G"))])


# -- in the forms of NVIDIA's driver ----------------------------------------------------------


@spec
def whole_gpus_by_product_and_compute_capability(world: ClaimWorld) -> Pods:
    of = nvidia_nodes(world, gpus=2, nodes=1)
    domain = f"device.attributes['{DRIVER}']"
    texts = (
        f"{domain}.productName.lowerAscii().matches('^.*h100.*$')",
        f"{domain}.cudaComputeCapability.isGreaterThan(semver('8.0.0'))",
    )
    bound_count = [world.pod(world.claim(request(of, selectors=[cel(text)]))) for text in texts]
    world.bound(*bound_count)
    return Pods(bound_count, [world.pod(world.claim(request(of)))])


@spec
def two_gpus_of_one_pcie_root(world: ClaimWorld) -> Pods:
    of = nvidia_nodes(world, gpus=4, nodes=1)
    match = [{"requests": ["a", "b"], "matchAttribute": PCIE_ROOT}]
    claims = [world.claim(request(of, "a"), request(of, "b"), constraints=match) for _ in range(2)]
    return Pods([world.pod(claim) for claim in claims])


@spec
def gpu_memory_by_shares(world: ClaimWorld) -> Pods:
    world.node(80, 24)
    pods = world.bound_in_turn(*(world.claim(memory_request(gib)) for gib in (10, 10, 60)))
    pair = world.pod(world.claim(memory_request(10, count=2)))
    return Pods(pods, [pair])


@spec
def a_number_of_shares_beside_memory(world: ClaimWorld) -> Pods:
    node = world.node()
    world.slice(node, DRIVER, devices=[shared_gpu(0, 80, node, shares="4")])
    of = world.device_class(f"device.driver == '{DRIVER}'")
    amounts = {"requests": {"memory": "8Gi", "shares": "1"}}
    pods = world.bound_in_turn(*(world.claim(request(of, capacity=amounts)) for _ in range(4)))
    return Pods(pods, [world.pod(world.claim(request(of, capacity=amounts)))])


@spec
def mig_devices_that_share_a_gpu_by_counters(world: ClaimWorld) -> Pods:
    mig_slices(world, world.node())
    of = world.device_class(
        f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"
    )

    def profile(name: str) -> Json:
        return world.pod(
            world.claim(
                request(of, selectors=[cel(f"device.attributes['{DRIVER}'].profile == '{name}'")])
            )
        )

    bound_count = [profile("3g.40gb")]
    world.bound(*bound_count)
    bound_count.append(profile("2g.20gb"))
    world.bound(*bound_count)
    return Pods(bound_count, [profile("7g.80gb")])


@spec
def a_gpu_or_else_a_mig_device(world: ClaimWorld) -> Pods:
    mig_slices(world, world.node())
    of = world.device_class(f"device.driver == '{DRIVER}'")
    domain = f"device.attributes['{DRIVER}']"
    choices = [
        {"name": "gpu", "deviceClassName": of, "selectors": [cel(f"{domain}.type == 'gpu'")]},
        {"name": "mig", "deviceClassName": of, "selectors": [cel(f"{domain}.type == 'mig'")]},
    ]
    return Pods([world.pod(world.claim({"name": "gpu", "firstAvailable": choices}))])


@spec
def a_gpu_and_a_nic_of_one_node(world: ClaimWorld) -> Pods:
    of = nvidia_nodes(world, nodes=3)
    node = world.node()
    world.slice(node, DRIVER, devices=[nvidia_gpu(0, node)])
    world.slice(node, NET, devices=[{"name": "nic-0"}])
    nic = world.device_class(f"device.driver == '{NET}'")
    return Pods([world.pod(world.claim(request(of)), world.claim(request(nic, "nic")))])
