"""The gain of choosing the node for MIG partitions that claims allocate.

    python -m tests.bench.mig_claims [--nodes 8] [--cards 4] [--seeds 1-8]

Each node has cards of 80 GB with the MIG profiles of an A100, published as NVIDIA's DRA driver does
with dynamic MIG (kubernetes-sigs/dra-driver-nvidia-gpu, partitions.go and driver.go): one slice a
card, in it the card and a device for each profile and placement, ordered by name; one counter set a
card, of its engines, multiprocessors, memory, and one counter for each memory slice. A claim asks
for one profile by name. The devices are those that first fit takes, as kube-scheduler does; only
the node is chosen, in one of these ways:

spread   the node with the least allocated (LeastAllocated, the default of kube-scheduler)
packed   the node with the most allocated (MostAllocated)
tight    the node where the card that first fit takes has the fewest memory slices left
profiles the node where the card loses the fewest places for the profiles to come, by their shares

A pod takes CPU and host memory in proportion to the multiprocessors. `filling` is the share
allocated when 100 % has been requested; in `churn` pods come and go at a load of 1, pods that fit
nowhere are lost, and the figure is the mean of time. In % of the multiprocessors that profiles can
have; points above `spread`, with the standard error over the seeds.
"""

import argparse
import heapq
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.core.claims.first_fit import Steps, first_fit
from gpushare.core.claims.model import (
    Attribute,
    ClaimRequest,
    CounterUse,
    Device,
    DeviceKey,
    DeviceRequest,
    Fit,
    NamedRequest,
    NodeDevices,
    PodClaims,
    Pool,
    Use,
)
from gpushare.sim.options import seeds
from gpushare.sim.report import aligned


@dataclass(frozen=True)
class Profile:
    """A MIG profile of an A100 with 80 GB, as `nvidia-smi mig -lgip -lgipp` lists it."""

    name: str
    number: int
    slices: int
    """Memory slices of 8."""
    starts: tuple[int, ...]
    """Placements: the first memory slice."""
    processors: int
    mebibytes: int
    decoders: int
    copy_engines: int

    @property
    def compute(self) -> int:
        """Compute slices of 7."""
        return self.processors // 14


PROFILES = (
    Profile("1g.10gb", 19, 1, (0, 1, 2, 3, 4, 5, 6), 14, 9728, 0, 1),
    Profile("1g.20gb", 15, 2, (0, 2, 4, 6), 14, 19968, 1, 1),
    Profile("2g.20gb", 14, 2, (0, 2, 4), 28, 19968, 1, 2),
    Profile("3g.40gb", 9, 4, (0, 4), 42, 40192, 2, 3),
    Profile("4g.40gb", 5, 4, (0,), 56, 40192, 2, 4),
    Profile("7g.80gb", 0, 8, (0,), 98, 80640, 5, 7),
)
BY_NAME = {profile.name: profile for profile in PROFILES}
WHOLE = BY_NAME["7g.80gb"]

MIXES: Mapping[str, Mapping[str, float]] = {
    "small": {"1g.10gb": 0.6, "2g.20gb": 0.25, "3g.40gb": 0.1, "7g.80gb": 0.05},
    "mixed": {"1g.10gb": 0.4, "2g.20gb": 0.25, "3g.40gb": 0.2, "7g.80gb": 0.15},
    "large": {"1g.10gb": 0.25, "2g.20gb": 0.15, "3g.40gb": 0.25, "7g.80gb": 0.35},
    "all profiles": {
        "1g.10gb": 0.3,
        "1g.20gb": 0.15,
        "2g.20gb": 0.2,
        "3g.40gb": 0.15,
        "4g.40gb": 0.1,
        "7g.80gb": 0.1,
    },
}
"""Share of each profile among the pods."""


def _counters(card: int, profile: Profile, start: int) -> tuple[CounterUse, ...]:
    amounts = {
        "multiprocessors": profile.processors,
        "memory": profile.mebibytes,
        "decoders": profile.decoders,
        "copy-engines": profile.copy_engines,
        **{f"memory-slice-{i}": 1 for i in range(start, start + profile.slices)},
    }
    return tuple(CounterUse(f"gpu-{card}", name, amount) for name, amount in amounts.items())


def node_devices(name: str, cards: int) -> NodeDevices:
    """Return the devices of a node, in the order of the driver's slices."""
    devices = []
    for card in range(cards):
        parts = {f"gpu-{card}": (WHOLE, 0, "gpu", "")}
        for profile in PROFILES:
            for start in profile.starts:
                short = profile.name.replace(".", "")
                device = f"gpu-{card}-mig-{short}-{profile.number}-{start}"
                parts[device] = (profile, start, "mig", profile.name)
        for device, (profile, start, kind, model) in sorted(parts.items()):
            attributes = {
                "gpu.nvidia.com/type": Attribute("string", kind),
                "gpu.nvidia.com/profile": Attribute("string", model),
            }
            devices.append(
                Device(
                    key=DeviceKey("gpu.nvidia.com", name, device),
                    attributes=attributes,
                    counters=_counters(card, profile, start),
                )
            )
    counters = {
        f"gpu-{card}": {counter: amount for _, counter, amount in _counters(card, WHOLE, 0)}
        for card in range(cards)
    }
    pool = Pool(driver="gpu.nvidia.com", name=name, devices=tuple(devices), counters=counters)
    return NodeDevices((pool,))


CLAIMS = {
    name: PodClaims(
        (ClaimRequest((NamedRequest("gpu", (DeviceRequest(name="gpu", selectors=(name,)),)),)),)
    )
    for name in BY_NAME
}


def matches(selectors: tuple[str, ...], device: Device) -> bool:
    """Return whether a device has the profile that the selector names."""
    return device.attributes["gpu.nvidia.com/profile"].value == selectors[0]


@dataclass
class MigNode:
    """A node and the partitions that pods hold."""

    devices: NodeDevices
    cards: int
    held: dict[DeviceKey, Profile] = field(default_factory=dict)
    found: dict[str, Device | None] = field(default_factory=dict)
    """By profile: the device that first fit takes now."""

    def __post_init__(self) -> None:
        self.free = [[(1 << 8) - 1, 98] for _ in range(self.cards)]
        """Of each card: free memory slices, as bits, and free multiprocessors."""

    @property
    def allocated(self) -> int:
        """Compute slices that pods hold."""
        return sum(profile.compute for profile in self.held.values())

    def first(self, profile: str) -> Device | None:
        """Return the device that first fit takes for a profile."""
        if profile not in self.found:
            use = Use(self.held.keys())
            fit = first_fit(self.devices, CLAIMS[profile], use, matches, Steps(10_000))
            self.found[profile] = fit.taken[0].device if isinstance(fit, Fit) else None
        return self.found[profile]

    def change(self, device: Device, profile: Profile, *, comes: bool) -> None:
        """Take a device, or release it."""
        self.found.clear()
        card, bits = _place(device, profile)
        self.free[card][0] ^= bits
        self.free[card][1] += profile.processors * (-1 if comes else 1)
        if comes:
            self.held[device.key] = profile
        else:
            del self.held[device.key]


def _place(device: Device, profile: Profile) -> tuple[int, int]:
    """Return the card of a device, and the memory slices as bits."""
    words = device.key.device.split("-")
    return int(words[1]), ((1 << profile.slices) - 1) << int(words[-1])


def _places(bits: int, processors: int, mix: Mapping[str, float]) -> float:
    """Return the compute that a card can still give, a mean over the profiles to come."""
    total = 0.0
    for name, share in mix.items():
        profile = BY_NAME[name]
        number = 0
        free = bits
        for start in profile.starts:
            slices = ((1 << profile.slices) - 1) << start
            if free & slices == slices and (number + 1) * profile.processors <= processors:
                number += 1
                free &= ~slices
        total += share * number * profile.compute
    return total


Way = Callable[[MigNode, Device, Profile, Mapping[str, float]], float]
"""The worth of a node for a pod: the highest is chosen."""


def _tight(node: MigNode, device: Device, profile: Profile, _: Mapping[str, float]) -> float:
    card = _place(device, profile)[0]
    return -(node.free[card][0].bit_count() - profile.slices) - 0.001 * (56 - node.allocated)


def _profiles(node: MigNode, device: Device, profile: Profile, mix: Mapping[str, float]) -> float:
    card, bits = _place(device, profile)
    free, processors = node.free[card]
    before = _places(free, processors, mix)
    return _places(free ^ bits, processors - profile.processors, mix) - before


WAYS: Mapping[str, Way] = {
    "spread": lambda node, device, profile, mix: -node.allocated,
    "packed": lambda node, device, profile, mix: node.allocated,
    "tight": _tight,
    "profiles": _profiles,
}


class MigCluster:
    """Some nodes, and a way to choose among them."""

    def __init__(self, nodes: int, cards: int, mix: Mapping[str, float], way: Way) -> None:
        self.nodes = [MigNode(node_devices(f"n{i}", cards), cards) for i in range(nodes)]
        self.total = 7 * nodes * cards
        self._mix, self._way = mix, way

    @property
    def allocated(self) -> float:
        """Compute slices that pods hold, in %."""
        return 100 * sum(node.allocated for node in self.nodes) / self.total

    def place(self, profile: str) -> tuple[MigNode, Device] | None:
        """Give a pod a device of the best node; None if no node has one."""
        firsts = [(node, node.first(profile)) for node in self.nodes]
        fitting = [(node, device) for node, device in firsts if device is not None]
        if not fitting:
            return None
        wanted_profile = BY_NAME[profile]
        node, device = max(
            fitting, key=lambda one: self._way(one[0], one[1], wanted_profile, self._mix)
        )
        node.change(device, wanted_profile, comes=True)
        return node, device


def arrivals(mix: Mapping[str, float], seed: int) -> Iterator[str]:
    """Yield the profiles of pods without end."""
    draw = random.Random(seed)
    names, shares = list(mix), list(mix.values())
    while True:
        yield draw.choices(names, shares)[0]


def filling(cluster: MigCluster, mix: Mapping[str, float], seed: int) -> float:
    """Return the allocated % when the whole capacity has been requested."""
    requested_slices = 0
    for profile in arrivals(mix, seed):
        requested_slices += BY_NAME[profile].compute
        if requested_slices > cluster.total:
            return cluster.allocated
        cluster.place(profile)
    raise AssertionError


def churn(cluster: MigCluster, mix: Mapping[str, float], seed: int) -> float:
    """Return the allocated % at a load of 1, a mean over 10 lifetimes after 3."""
    draw = random.Random(seed + 10_000)
    mean = sum(share * BY_NAME[name].compute for name, share in mix.items())
    between = mean / cluster.total  # of lifetimes
    ends: list[tuple[float, int, MigNode, Device, Profile]] = []
    now = area = 0.0
    for number, profile in enumerate(arrivals(mix, seed)):
        then = now + draw.expovariate(1 / between)
        life = draw.expovariate(1.0)
        while ends and ends[0][0] <= then:
            end, _, node, device, held_profile = heapq.heappop(ends)
            area += cluster.allocated * _counted(now, end)
            now = end
            node.change(device, held_profile, comes=False)
        area += cluster.allocated * _counted(now, then)
        now = then
        if now > _WARMUP + _SPAN:
            return area / _SPAN
        place = cluster.place(profile)
        if place:
            heapq.heappush(ends, (now + life, number, *place, BY_NAME[profile]))
    raise AssertionError


_WARMUP, _SPAN = 3.0, 10.0


def _counted(begin: float, end: float) -> float:
    """Return the part of a time that counts."""
    return max(0.0, min(end, _WARMUP + _SPAN) - max(begin, _WARMUP))


EXPERIMENTS = {"filling": filling, "churn": churn}


def table(nodes: int, cards: int, numbers: Sequence[int]) -> str:
    """Return the allocation of each way, by experiment and mix."""
    rows = [["experiment", "pods", "spread", *(f"{name} above it" for name in [*WAYS][1:])]]
    for experiment, run in EXPERIMENTS.items():
        for mix_name, mix in MIXES.items():
            values = {
                name: [run(MigCluster(nodes, cards, mix, way), mix, seed) for seed in numbers]
                for name, way in WAYS.items()
            }
            row = [experiment, mix_name, f"{statistics.fmean(values['spread']):.2f}"]
            for name in [*WAYS][1:]:
                gains = [one - two for one, two in zip(values[name], values["spread"], strict=True)]
                error = statistics.stdev(gains) / len(gains) ** 0.5
                row.append(f"{statistics.fmean(gains):+.2f} ({error:.2f})")
            rows.append(row)
    return aligned(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--cards", type=int, default=4)
    parser.add_argument("--seeds", type=seeds, default=tuple(range(1, 9)))
    options = parser.parse_args()
    print(table(options.nodes, options.cards, options.seeds), end="")


if __name__ == "__main__":
    main()
