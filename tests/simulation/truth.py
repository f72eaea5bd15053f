"""What is true of pods, nodes and devices, whatever anybody's books say.

Plain values, filled by those who make things true: the API server's log, the kubelets, the users.
Nothing of production code is used here, so that it cannot be wrong in the same way.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RESOURCE, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
IDX, POD, DEV, ASSIGNED, ASSUMED = (
    f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "POD", "DEV", "ASSIGNED", "ASSUME_TIME")
)
ALLOCATION = "scheduler.framework.gpushare.allocation"
INVENTORY = "gpushare.io/devices"
UNHEALTHY = "unhealthy-gpu-"

Json = dict[str, Any]
Shares = tuple[tuple[int, int], ...]
"""(device, units) of each device held, by rising device."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks for: units on each device, devices, units of each regular container.

    inits: (units, whether it is a sidecar) of each init container; they may be all there is.
    """

    units: int
    devices: int
    containers: tuple[int, ...]
    inits: tuple[tuple[int, bool], ...] = ()

    @property
    def calls(self) -> tuple[int, ...]:
        """Units of each call of the kubelet to its device plug-in: init containers come first."""
        return (*(units for units, _ in self.inits), *self.containers)

    @property
    def total(self) -> int:
        """Units over all devices."""
        return self.units * self.devices

    def on(self, devices: tuple[int, ...]) -> Shares:
        """The shares it has on these devices."""
        return tuple((device, self.total // len(devices)) for device in sorted(devices))


@dataclass(slots=True)
class PodTruth:
    """A pod from its creation to its end.

    by: the process of ours that bound it, "" for anybody else. claim: where its annotations put it
    when it got its node, None where they name no usable device. edited: the version that changed
    them afterwards, 0 for none; unstamped: its assume time too. runs: by its phase. ended: its
    memory is free, by its phase or because it is gone. cpu: thousandths of a CPU it asks for, and
    as many MiB of memory.
    """

    uid: str
    name: str
    asked: Asked
    node: str = ""
    by: str = ""
    claim: Shares | None = None
    bound: int = 0
    edited: int = 0
    unstamped: bool = False
    terminating: bool = False
    runs: bool = False
    ended: bool = False
    gone: bool = False
    assigned: bool = False
    forged: bool = False
    cpu: int = 0


@dataclass(frozen=True, slots=True)
class Cards:
    """The devices of a node: units and health of each.

    closed: nothing may be placed there. plugin: how its device plug-in finds devices, see kubelet.
    """

    units: tuple[int, ...]
    healthy: tuple[bool, ...]
    closed: bool = False
    plugin: str = "own"

    def room(self, device: int) -> int:
        """Units the device has for pods; 0 where none may be placed."""
        known = device < len(self.units) and self.healthy[device] and not self.closed
        return self.units[device] if known else 0


def claim_of(annotations: Mapping[str, str], asked: Asked) -> Shares | None:
    """Where annotations put the pod: IDX, if it names devices among which its total can be split.

    Whoever writes annotations in a story writes an allocation map that agrees, or none.
    """
    if not asked.devices:
        return None
    tokens = annotations.get(IDX, "").split(",")
    if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in tokens):
        return None
    devices = tuple(sorted({int(token) for token in tokens}))
    if len(devices) != len(tokens) or asked.total % len(devices):
        return None
    return asked.on(devices)


def granted(annotations: Mapping[str, str]) -> dict[int, int]:
    """Units by device over all containers in the allocation map; empty where there is none."""
    sums: dict[int, int] = {}
    grants = json.loads(annotations.get(ALLOCATION, "{}"))
    for grant in grants.values() if isinstance(grants, dict) else ():
        for device, units in grant.items():
            sums[int(device)] = sums.get(int(device), 0) + units
    return sums


@dataclass(slots=True)
class Known:
    """What one process has been shown, by the lines and lists that reached it.

    pods: uid -> the version that first showed it with a node. nodes, closed: the devices of each
    node, by its object and by the last ConfigMap that could be read. led: when it was last seen to
    lead, as it sees it.
    """

    pods: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, Cards] = field(default_factory=dict)
    closed: dict[str, frozenset[int]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    led: float = -math.inf
    pages: dict[str, list[Json]] = field(default_factory=dict)

    def guesses(self, node: str) -> bool:
        """Whether the node's plug-in may take a pod for an equal one, as far as it was shown."""
        cards = self.nodes.get(node)
        return cards is None or cards.plugin != "blind"

    def room(self, node: str, device: int) -> int:
        """Units the device has for pods, as it has been shown."""
        cards = self.nodes.get(node)
        if cards is None or device in self.closed.get(node, frozenset()):
            return 0
        return cards.room(device)
