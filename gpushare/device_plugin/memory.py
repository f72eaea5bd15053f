"""Use of the cards by containers, whether limits hold, and whether compute is enforced.

Knows the granted memory (the Binding) and the answer to each container (the kubelet's record). A
limit that NVML shows is compared with the limit in the answer; if NVML shows none, only use above
the allowed memory proves that a limit does not hold. Without an answer of NVML there is no figure.

The cgroup of a process names the container. Knows the node's /proc and /sys/fs/cgroup, and how
kubelets and runtimes name cgroups: with systemd
kubepods.slice/kubepods-podUID.slice/cri-containerd-ID.scope, with cgroupfs kubepods/podUID/ID. A
container may make further cgroups below these, but not beside.

Tested in `tests/unit/device_plugin/test_memory.py`, `tests/unit/device_plugin/test_cgroups.py` and
`tests/unit/device_plugin/test_compute.py`.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from gpushare.core.model import ALL_CORES
from gpushare.daemon.loop import Loop
from gpushare.device_plugin.cards import NodeCards
from gpushare.device_plugin.container import compute_limit, driver_limit, isolation_of
from gpushare.device_plugin.devices import CardMemory
from gpushare.device_plugin.identity import CheckpointEntry, ContainerCandidate, Grant, granted
from gpushare.device_plugin.kubelet import parse_answer
from gpushare.device_plugin.node_pod import GpuContainer, NodePod
from gpushare.device_plugin.pods import Pods
from gpushare.errors import SettingsError
from gpushare.logline import Line

log = logging.getLogger("gpushare.memory")

EVERY_SECONDS = 10.0
STALE_SECONDS = 60.0
"""Figures that are older are not shown: the driver hangs."""

NO_LIMIT = 2**64 - 1
"""NVML's value without a limit."""

_MIB = 2**20
_CONTAINER = re.compile(
    r"[/-]pod[0-9a-f][-_0-9a-f]{31,35}(?:\.slice)?/(?:[^/\s]*-)?([0-9a-f]{64})(?:\.scope)?(?:/|\s|$)"
)
_LONGEST = 1 << 16
_MOST_FOLDERS = 10_000

_Place = tuple[str, str, str]
"""A pod's uid, a container's name, a card's uuid."""


def container_of(path: str) -> str:
    """Return the id of the container in the path of a cgroup, or in the text of /proc/PID/cgroup.

    "" if there is none. The first id counts: a container may run other containers in cgroups below.
    """
    match = _CONTAINER.search(path)
    return match[1] if match else ""


class Cgroups:
    """The cgroups of the node. root: the folder of the node's /proc and /sys."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._cgroup = root / "sys/fs/cgroup"

    def container(self, pid: int) -> str:
        """Return the id of the container of a process; "" without one, or after the end of the
        process.
        """
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                return container_of(file.read(_LONGEST).decode("ascii", "replace"))
        except OSError:
            return ""

    def folders(self) -> Mapping[str, Path]:
        """Return the cgroups of containers that can be seen, by the container's id."""
        folders: dict[str, Path] = {}
        todo = [self._cgroup]
        for _ in range(_MOST_FOLDERS):
            if not todo:
                break
            folder = todo.pop()
            try:
                with os.scandir(folder) as entries:
                    inners = [Path(item) for item in entries if item.is_dir(follow_symlinks=False)]
            except OSError:  # the container has ended meanwhile
                continue
            for inner in inners:
                path = f"/{inner.relative_to(self._cgroup)}"
                container = container_of(path)
                if container:
                    folders[container] = inner
                elif "kubepods" in path or path.startswith("/kubelet"):
                    todo.append(inner)
        return folders


class MemorySource(Protocol):
    """A source of memory figures; see gpushare.device_plugin.devices.NvmlSource."""

    def memory(self, uuid: str) -> CardMemory:
        """Return the used memory of a card. Raises SettingsError."""
        ...

    def sm_percents(self, uuid: str) -> Mapping[int, int] | None:
        """Return the use of a card's SMs in percent by pid; None if there are no samples."""
        ...

    def limit(self, uuid: str, cgroup: Path) -> tuple[int, int]:
        """Return (limit, used) of a cgroup on a card, in bytes. Raises SettingsError."""
        ...


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """A container on a card, in bytes."""

    pod: NodePod
    container: str
    uuid: str
    granted: int
    """Granted bytes; 0 on a card that is not the pod's."""
    used: int
    allowed: int
    """Bytes that it may use: the granted ones, or the limit above these."""
    isolation: str
    """The kind of limit: one of ISOLATIONS."""
    told_limit: int = 0
    """The limit that the driver was given."""
    limit: int | None = None
    """The one that NVML shows, or None."""

    @property
    def exceeded(self) -> bool:
        """Whether the container uses more than allowed."""
        return self.used > self.allowed

    @property
    def enforced(self) -> bool | None:
        """Whether the limit holds; None without a limit, or without a figure."""
        if self.isolation == "none":
            return None
        if self.exceeded:
            return False
        return None if self.limit is None else self.limit <= self.told_limit


@dataclass(frozen=True, slots=True)
class ComputeUse:
    """The use of a card's SMs by a container."""

    pod: NodePod
    container: str
    uuid: str
    percent: int
    """Of all SMs of the card, for all processes of the container together."""


@dataclass(frozen=True, slots=True)
class UsageFigures:
    """The figures of one look."""

    uses: tuple[ContainerUse, ...] = ()
    compute_uses: tuple[ComputeUse, ...] = ()
    """Of containers with a process on a card that NVML has samples of."""
    cards: Mapping[str, int] = field(default_factory=dict)
    """Bytes used of each card, by uuid."""
    at: float = 0.0
    """The time of the look, by the clock of `Memory`."""


@dataclass(eq=False)
class Memory(Loop):
    """The thread: NVML may hang, so no other work is done here. record: returns the kubelet's
    record; raises GpuShareError. tell: called once for each container that uses more than allowed,
    or has a limit that does not hold.
    """

    source: MemorySource
    cgroups: Cgroups
    pods: Pods
    record: Callable[[], Sequence[CheckpointEntry]]
    cards: Callable[[], NodeCards]
    _: KW_ONLY
    tell: Callable[[ContainerUse], None]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        failed = "memory of containers not looked at"
        super().__init__("memory", self.look, EVERY_SECONDS, log=log, failed=failed)
        self._seen = UsageFigures(at=self.clock())
        self._reported: set[tuple[str, str, str, bool]] = set()
        self._silent: set[str] = set()

    def seen(self) -> UsageFigures:
        """Return the last look, or an empty one if that is too long ago."""
        figures = self._seen
        return figures if self.clock() <= figures.at + STALE_SECONDS else UsageFigures()

    def look(self) -> None:
        """Read the use of memory, and report use above the grant. Raises GpuShareError."""
        pods = {pod.ref.uid: pod for pod in self.pods.now()[0].values() if not pod.ended}
        cards = self.cards()
        used, percents, of_cards = self._used(pods, cards)
        uses = tuple(self._uses(pods, cards, used))
        compute_uses = tuple(
            ComputeUse(pods[uid], container, card, min(percent, ALL_CORES))
            for (uid, container, card), percent in percents.items()
        )
        self._seen = UsageFigures(uses, compute_uses, of_cards, self.clock())
        self._reported = {key for key in self._reported if key[0] in pods}
        for use in uses:
            key = (use.pod.ref.uid, use.container, use.uuid, use.exceeded)
            if (use.exceeded or use.enforced is False) and key not in self._reported:
                self._reported.add(key)
                self.tell(use)

    def _used(
        self, pods: Mapping[str, NodePod], cards: NodeCards
    ) -> tuple[Mapping[_Place, int | None], Mapping[_Place, int], Mapping[str, int]]:
        """Return (bytes by container and card, None if NVML does not tell; percent of SMs by
        container and card; bytes of each card).
        """
        owners = {
            container_id: (uid, name)
            for uid, pod in pods.items()
            for container_id, name in (pod.container_names or {}).items()
        }
        used: dict[_Place, int | None] = {}
        percents: dict[_Place, int] = {}
        of_cards: dict[str, int] = {}
        for card in cards.all:
            try:
                memory = self.source.memory(card.uuid)
                if memory.used > memory.total:
                    raise SettingsError(
                        f"NVML says that {memory.used} of {memory.total} bytes are used"
                    )
            except SettingsError as error:
                self._log_once(card.uuid, str(error))
                continue
            self._silent.discard(card.uuid)
            of_cards[card.uuid] = memory.used
            by_pid = self.source.sm_percents(card.uuid)
            for pid, size in memory.by_process.items():
                owner = owners.get(self.cgroups.container(pid))
                if owner:
                    place = (*owner, card.uuid)
                    before = used.get(place, 0)
                    is_known = size is not None and size <= memory.total and before is not None
                    used[place] = (before or 0) + (size or 0) if is_known else None
                    if by_pid is not None:
                        percents[place] = percents.get(place, 0) + by_pid.get(pid, 0)
        return used, percents, of_cards

    def _uses(
        self, pods: Mapping[str, NodePod], cards: NodeCards, used: Mapping[_Place, int | None]
    ) -> Iterator[ContainerUse]:
        record = [(entry, parse_answer(entry.response)) for entry in self.record()]
        folders: Mapping[str, Path] = {}
        if any(driver_limit(answer) for _, answer in record):
            folders = self.cgroups.folders()
            if not folders:
                self._log_once(
                    "cgroups",
                    "limits are not read back, as no container's cgroup is in /sys/fs/cgroup; does"
                    " this pod have the node's?",
                )
        for entry, answer in record:
            pod = pods.get(entry.uid)
            container = pod.gpu_container(entry.container) if pod else None
            grant = (
                granted(ContainerCandidate(pod, container), cards, healthy=False)
                if pod and container
                else None
            )
            if pod is None or not isinstance(grant, Grant):
                continue
            names = pod.container_names or {}
            own_ids = (id_ for id_, name in names.items() if name == entry.container)
            folder = next((folders[id_] for id_ in own_ids if id_ in folders), None)
            for card in cards.all:
                granted_bytes, allowed_bytes = (
                    limited.limit_of(card.uuid) * cards.unit_mib * _MIB
                    for limited in (grant.without_limit, grant)
                )
                limit = driver_limit(answer) * _MIB if granted_bytes else 0
                nvml_limit, size = (
                    self._limit(card.uuid, folder) if limit and folder else (None, None)
                )
                if size is None:
                    size = used.get((entry.uid, entry.container, card.uuid))
                if size is not None:
                    yield ContainerUse(
                        pod=pod,
                        container=entry.container,
                        uuid=card.uuid,
                        granted=granted_bytes,
                        used=size,
                        allowed=allowed_bytes,
                        isolation=isolation_of(answer),
                        told_limit=limit,
                        limit=nvml_limit,
                    )

    def _limit(self, uuid: str, folder: Path) -> tuple[int | None, int | None]:
        """Return (limit, used) of a cgroup on a card; None if NVML does not tell."""
        try:
            return self.source.limit(uuid, folder)
        except SettingsError as error:
            self._log_once(f"limits on {uuid}", str(error))
            return None, None

    def _log_once(self, about: str, text: str) -> None:
        """Log a problem once; that of a card again once the card was read in between."""
        if about not in self._silent:
            self._silent.add(about)
            log.warning(Line("memory of containers", found=text))


@dataclass(frozen=True, slots=True)
class Unenforced:
    """A pod's containers that ask for compute and got no limit of compute."""

    pod: NodePod
    containers: tuple[GpuContainer, ...]
    isolation: str
    """The kind of memory limit of the first container."""


@dataclass(slots=True, eq=False)
class ComputeCheck:
    """Finds containers with a share of compute and no limit, by the kubelet's record.

    NVML does not tell whether a limit of compute holds.
    """

    pods: Pods
    tell: Callable[[Unenforced], None]
    """Called once for each pod."""
    unenforced_containers: int = 0
    """Number of containers on record that ask for compute and got no limit."""
    _reported: set[str] = field(default_factory=set)

    def look(self, record: Sequence[CheckpointEntry]) -> None:
        """Count these containers, and report each pod once. Raises MessageError."""
        unenforced: dict[str, list[tuple[GpuContainer, str]]] = {}
        pods = {pod.ref.uid: pod for pod in self.pods.now()[0].values() if not pod.ended}
        for entry in record:
            pod = pods.get(entry.uid)
            container = pod.gpu_container(entry.container) if pod else None
            # A container with all compute of the devices needs no limit.
            if container is None or not 0 < container.cores < ALL_CORES * len(container.shares):
                continue
            answer = parse_answer(entry.response)
            if not compute_limit(answer):
                unenforced.setdefault(entry.uid, []).append((container, isolation_of(answer)))
        self.unenforced_containers = sum(map(len, unenforced.values()))
        for uid in sorted(unenforced.keys() - self._reported):
            containers = tuple(container for container, _ in unenforced[uid])
            self.tell(Unenforced(pods[uid], containers, unenforced[uid][0][1]))
        self._reported = set(unenforced)
