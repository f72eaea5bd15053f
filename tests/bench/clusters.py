"""Random clusters, with the pods that come there: the input of placement benches.

Every published list of pods is of one cluster whose devices all count the same. Real clusters have
cards of 16 beside cards of 141 GiB, so this draws such clusters: 5 to 150 nodes of one to four
kinds of cards, 1 to 16 on a node, CPU that is plenty or scarce; pods from notebooks to trainings on
eight cards, some that name a model, with few, many or no pods of several devices. A seed gives a
cluster, and always the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpushare.trace.nodes_and_pods import TraceNode, TracePod

CARDS = (
    ("T4", 16),
    ("V100", 16),
    ("V100-32", 32),
    ("A10", 24),
    ("L4", 24),
    ("A100-40", 40),
    ("L40S", 48),
    ("A40", 48),
    ("A100", 80),
    ("H100", 80),
    ("H100-NVL", 94),
    ("H200", 141),
)
"""Models, and the GiB on the label."""

_MIB = 1024
_SHOWN = 0.96
"""The share of a card's labelled memory that the driver shows."""

_FEWEST, _MOST = 5, 150
_PODS = 400
_SMALL = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 30, 32, 40, 48)
_DEVICES = {
    "small": ((1, 2, 4, 8), (0.3, 0.3, 0.3, 0.1)),
    "large": ((2, 4, 8, 16), (0.1, 0.3, 0.5, 0.1)),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A cluster and the pods that come there."""

    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def kinds(self) -> int:
        """How many sizes of devices there are."""
        return len({node.capacity for node in self.nodes})

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return sum(node.devices for node in self.nodes)


def drawn(seed: int) -> Drawn:
    """The cluster of that seed, and the pods; each pod fits some empty node."""
    rng = np.random.default_rng(seed)
    nodes = _nodes(rng)
    pods = _pods(rng, nodes)
    rng.uniform()  # once a load: the clusters of the seeds stay as they are
    return Drawn(*_counted(rng, nodes, pods))


def _nodes(rng: np.random.Generator) -> list[TraceNode]:
    number = round(float(np.exp(rng.uniform(np.log(_FEWEST), np.log(_MOST)))))
    kinds = int(rng.choice(4, p=(0.15, 0.4, 0.3, 0.15))) + 1
    cards = [CARDS[index] for index in rng.choice(len(CARDS), kinds, replace=False)]
    # Every kind has a node at least.
    counts = 1 + rng.multinomial(max(number - kinds, 0), rng.dirichlet(np.full(kinds, 1.5)))
    nodes: list[TraceNode] = []
    for (model, size), count in zip(cards, counts.tolist(), strict=True):
        choices, weights = _DEVICES["large" if size >= 40 else "small"]
        devices = int(rng.choice(choices, p=weights))
        cores = int(devices * np.exp(rng.uniform(np.log(4), np.log(24)))) + 2
        gib = int(cores * rng.uniform(4, 10))
        nodes += [
            TraceNode(f"{model.lower()}-{index}", cores * 1000, gib * _MIB, devices, size, model)
            for index in range(count)
        ]
    return nodes


@dataclass(frozen=True, slots=True)
class _PodShape:
    devices: int
    units: int
    host: TraceNode


def _pods(rng: np.random.Generator, nodes: Sequence[TraceNode]) -> list[TracePod]:
    single = [_single(rng, nodes) for _ in range(int(rng.integers(2, 10)))]
    several = [_several(rng, nodes) for _ in range(int(rng.integers(1, 4)))]
    weight = rng.dirichlet(np.ones(len(single)))
    part = float(rng.choice((0.0, rng.uniform(0.05, 0.3), rng.uniform(0.3, 0.8))))
    single_units = float(sum(w * shape.units for w, shape in zip(weight, single, strict=True)))
    shapes, weights = [*single], [*weight.tolist()]
    wide = [shape for shape in several if shape.devices > 1]
    if part and wide:
        for shape in wide:
            gpu = single_units * part / (1 - part) / len(wide)
            shapes.append(shape)
            weights.append(gpu / (shape.devices * shape.units))
    pressure = float(rng.uniform(0.3, 1.3))
    naming = float(rng.choice((0.0, 0.15, 0.4)))
    pods = [_pod(rng, shape, nodes, pressure, naming) for shape in shapes]
    if rng.random() < 0.5:
        weights.append(sum(weights) * float(rng.uniform(0.05, 0.3)))
        pods.append(replace(pods[0], devices=0, units=0, models=()))
    chosen = rng.choice(len(pods), _PODS, p=np.array(weights) / sum(weights))
    # Each kind comes, however rarely.
    which = [*range(len(pods)), *chosen.tolist()[len(pods) :]]
    return [replace(pods[index], name=f"pod-{number}") for number, index in enumerate(which)]


def _some(rng: np.random.Generator, nodes: Sequence[TraceNode]) -> TraceNode:
    """A node, drawn in proportion to the GPU there."""
    sizes = np.array([node.devices * node.capacity for node in nodes], dtype=float)
    return nodes[int(rng.choice(len(nodes), p=sizes / sizes.sum()))]


def _single(rng: np.random.Generator, nodes: Sequence[TraceNode]) -> _PodShape:
    host = _some(rng, nodes)
    match int(rng.choice(4, p=(0.55, 0.15, 0.15, 0.15))):
        case 0:
            fitting = [size for size in _SMALL if size <= host.capacity]
            units = int(rng.choice(fitting[: max(len(fitting) * 2 // 3, 1)]))
        case 1:
            units = host.capacity // 2
        case 2:
            units = max(int(host.capacity * rng.uniform(0.2, 0.95)), 1)
        case _:
            units = host.capacity
    return _PodShape(1, units, host)


def _several(rng: np.random.Generator, nodes: Sequence[TraceNode]) -> _PodShape:
    host = _some(rng, nodes)
    fitting = [number for number in (2, 4, 8) if number <= host.devices] or [1]
    devices = int(rng.choice(fitting))
    units = host.capacity if rng.random() < 0.75 else max(host.capacity // 2, 1)
    return _PodShape(devices, units, host)


def _pod(
    rng: np.random.Generator,
    shape: _PodShape,
    nodes: Sequence[TraceNode],
    pressure: float,
    naming: float,
) -> TracePod:
    """A pod of the shape, with about a proportional part of the host's CPU and memory times
    pressure.
    """
    host = shape.host
    part = shape.devices * shape.units / (host.devices * host.capacity)
    max_cores = max(1, host.cpu // 1000)
    cores = int(np.clip(round(max_cores * part * pressure * rng.uniform(0.5, 1.5)), 1, max_cores))
    gib = max(1, int(host.memory / _MIB * part * rng.uniform(0.2, 0.9)))
    models: tuple[str, ...] = ()
    if rng.random() < naming:
        other_models = {node.model for node in nodes if node.capacity >= shape.units}
        extra = str(rng.choice(sorted(other_models)))
        models = (host.model,) if rng.random() < 0.7 else tuple(sorted({host.model, extra}))
    return TracePod(
        "pod", cores * 1000, gib * _MIB, shape.devices, shape.units, models, None, None, None
    )


def _counted(
    rng: np.random.Generator, nodes: list[TraceNode], pods: list[TracePod]
) -> tuple[tuple[TraceNode, ...], tuple[TracePod, ...]]:
    """The same in GiB, or, one time in five, in MiB with cards that show a little less."""
    if rng.random() < 0.8:
        return tuple(nodes), tuple(pods)
    shown_units = {node.capacity: int(node.capacity * _MIB * _SHOWN) for node in nodes}

    def asked(gib: int) -> int:
        # A pod for a whole card gets the card's units; others ask for round numbers.
        large = min(size for size in shown_units if size >= gib)
        return shown_units[large] if gib in shown_units else min(gib * 1000, shown_units[large])

    return (
        tuple(replace(node, capacity=shown_units[node.capacity]) for node in nodes),
        tuple(replace(pod, units=asked(pod.units)) if pod.devices else pod for pod in pods),
    )
