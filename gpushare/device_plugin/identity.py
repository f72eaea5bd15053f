"""The container that the kubelet asks for, and the container's units on each card.

Pure. The kubelet's question names a number of units and no pod. But the kubelet adds one pod after
the other to its pods, and admits each pod before the next is added (k8s.io/kubernetes
pkg/kubelet/allocation). So during the question the pod-resources API shows only one pod with a
container without units: this is the pod. Several such pods (after a restart, or with a kubelet that
works otherwise) count as one if all would get the same; else nothing is decided.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from gpushare.core.amounts import SHARE, usable_units
from gpushare.device_plugin.cards import (
    Card,
    NodeCards,
    number_of,
    starts_of_ids,
    uuid_of,
    uuids_of,
)
from gpushare.device_plugin.node_pod import GpuContainer, NodePod

PodKey = tuple[str, str]
"""Namespace and name."""

ContainerKey = tuple[str, str]
"""A pod's uid and a container's name."""

PodDevices = Mapping[PodKey, Mapping[str, frozenset[str]]]
"""Device ids by pod and container, as the kubelet's pod-resources API lists them; plain init
containers are missing.
"""

_NAMED = 8


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """The kubelet's record of a container.

    The uid of the pod, the ids, and the ContainerAllocateResponse for the container.
    """

    uid: str
    container: str
    ids: frozenset[str]
    response: bytes


@dataclass(frozen=True, slots=True)
class ContainerCandidate:
    """A container that the kubelet may be asking for."""

    pod: NodePod
    container: GpuContainer

    def __str__(self) -> str:
        return f"{self.pod.ref} container {self.container.name}"


@dataclass(frozen=True, slots=True)
class Grant:
    """The grant of a container: units of each card, of a pod that asks for `total` in all."""

    shares: tuple[tuple[Card, int], ...]
    total: int
    cores: int = 0
    """Percent of compute on all cards together; 0 without a request, or if the container is
    uncertain.
    """
    whole_cards: bool = False
    """The container may use all memory of the cards."""
    share: int = 0
    """Percent of memory on all cards together; 0 for the units of `shares`."""
    memory_limit: int = 0
    """The most units that the pod may use, on all cards together; 0 for the units of `shares`."""

    @property
    def limits(self) -> tuple[tuple[Card, int], ...]:
        """The usable units of each card. A share and a limit are distributed like the units, and
        rounded down: so containers together have no more than the ledger charges, or counts as
        the limit.
        """
        if self.whole_cards:
            return tuple((card, card.unit_count) for card, _ in self.shares)
        if self.memory_limit:
            return tuple(
                (card, usable_units(units, self.total, self.memory_limit, card.unit_count))
                for card, units in self.shares
            )
        return tuple(
            (card, max(units, self.share * units * card.unit_count // (SHARE.whole * self.units)))
            for card, units in self.shares
        )

    @property
    def without_limit(self) -> "Grant":
        """The grant of a pod that may use no more than its request."""
        return replace(self, memory_limit=0) if self.memory_limit else self

    @property
    def uuids(self) -> frozenset[str]:
        """The uuids of the cards."""
        return frozenset(card.uuid for card, _ in self.shares)

    @property
    def units(self) -> int:
        """Units on all cards."""
        return sum(units for _, units in self.shares)

    @property
    def least_percent(self) -> int:
        """The smallest percent of compute on any of the cards; 0 without a request.

        Compute is distributed like the memory, as the ledger charges compute.
        """
        if not self.cores:
            return 0
        smallest_units = min(units for _, units in self.shares)
        return max(1, self.cores * smallest_units // self.units)

    def limit_of(self, uuid: str) -> int:
        """Return the usable units of the card of that uuid; 0 for a card of no share."""
        return sum(units for card, units in self.limits if card.uuid == uuid)

    def __str__(self) -> str:
        text = ", ".join(f"{units} units of {card.uuid}" for card, units in self.shares)
        return f"{text}, {self.share} % of memory" if self.share else text


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision: the grant, and one container, or several that would all get the same."""

    grant: Grant
    owners: tuple[ContainerCandidate, ...]
    by_kubelet: bool = True
    """pod-resources lists the containers; if not, the kubelet may mean a pod that is not known."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The reason why nothing is decided."""

    reason: str
    """The kubelet writes the reason into the status of the pod of the question, which may be
    another pod than the candidate; so the reason names no pod.
    """
    more_may_help: bool = True
    """Changes of the pods may help."""
    details: str = ""
    """The containers and their grants, for the log."""


def candidates(
    pod_devices: PodDevices,
    pods: Mapping[PodKey, NodePod],
    answered: Set[ContainerKey],
    refused_uids: Collection[str],
    units: int,
) -> tuple[ContainerCandidate, ...]:
    """Return the containers that a question for this number of units may mean.

    answered: (uid, container) of each served container. refused_uids: uids of pods that got an
    error, with which a kubelet fails the pod. These, and pods that have started or are being
    deleted, count only if there is no other.
    """
    shown = ((pods[key], containers) for key, containers in pod_devices.items() if key in pods)
    following = ((pod, next_container(pod, containers, answered)) for pod, containers in shown)
    return _likely(following, refused_uids, units)


def unlisted(
    pods: Iterable[NodePod], answered: Set[ContainerKey], refused_uids: Collection[str], units: int
) -> tuple[ContainerCandidate, ...]:
    """Return the candidates without the kubelet's view: any container without an answer."""
    following = ((pod, next_container(pod, {}, answered, by_kubelet=False)) for pod in pods)
    return _likely(following, refused_uids, units)


def next_container(
    pod: NodePod,
    containers: Mapping[str, frozenset[str]],
    answered: Set[ContainerKey],
    *,
    by_kubelet: bool = True,
) -> GpuContainer | None:
    """Return the container that the kubelet asks for next, or None if all are served.

    by_kubelet: whether `containers` comes from the kubelet, which never shows plain init
    containers.
    """
    following = None
    for container in reversed(pod.gpu_containers):
        if container.init or not by_kubelet:
            served = (pod.ref.uid, container.name) in answered
        else:
            served = bool(containers.get(container.name))
        if served:
            # The containers before are served too: the kubelet asks in their order.
            return following
        following = container
    return following


def may_be_another(
    pod: NodePod,
    containers: Mapping[str, frozenset[str]],
    answered: Set[ContainerKey],
    refused_uids: Collection[str],
) -> bool:
    """Return whether the kubelet may mean a newer pod of that name.

    True if a container lacks ids although the known pod was served or refused, has started, or is
    ending.
    """
    if next_container(pod, containers, answered) is None:
        return False
    lacks_ids = any(
        (pod.ref.uid, container.name) in answered and not containers.get(container.name)
        for container in pod.gpu_containers
        if not container.init
    )
    is_ending = pod.ended or pod.terminating or pod.ref.uid in refused_uids
    return lacks_ids or is_ending or pod.assigned or pod.started


def decide(
    contenders: Sequence[ContainerCandidate], units: int, cards: NodeCards
) -> Decided | Undecided:
    """Return the grant of the container that the kubelet means, one of the contenders."""
    if not contenders:
        return Undecided(
            f"no pod of this node is known that waits for {units} units; was it bound past the"
            " gpushare extender, or does the device plug-in not hear from the API server?"
        )
    grants = []
    for candidate in contenders:
        if candidate.pod.problem:
            return Undecided(candidate.pod.problem, len(contenders) > 1, str(candidate))
        grant = granted(candidate, cards)
        if isinstance(grant, str):
            return Undecided(grant, len(contenders) > 1, str(candidate))
        grants.append(grant)
    # A wrong limit of compute is worse than none; the smallest limit of memory is safe for each.
    cores = grants[0].cores if len({grant.cores for grant in grants}) == 1 else 0
    whole_cards = all(grant.whole_cards for grant in grants)
    limit = min(grant.memory_limit for grant in grants)
    grants = [
        replace(grant, cores=cores, whole_cards=whole_cards, memory_limit=limit) for grant in grants
    ]
    if any(grant != grants[0] for grant in grants):
        texts = [
            f"{candidate} ({grant})" for candidate, grant in zip(contenders, grants, strict=True)
        ]
        more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
        return Undecided(
            f"the kubelet asks for {units} units, and {len(contenders)} containers wait for as many"
            " that are to have different devices or percentages of memory; the log of the device"
            " plug-in names them",
            details=f"{'; '.join(texts[:_NAMED])}{more}",
        )
    return Decided(grants[0], tuple(contenders))


def granted(
    candidate: ContainerCandidate, cards: NodeCards, *, healthy: bool = True
) -> Grant | str:
    """Return the container's grant by its Binding and the present cards, or why there is none.

    healthy: whether only healthy cards will do.
    """
    pod = candidate.pod
    shares = []
    for index, units in candidate.container.shares:
        uuid = (pod.uuids or {}).get(index, "")
        card = cards.by_uuid(uuid) if uuid else cards.by_index(index)
        if card is None:
            return f"its device {uuid or index} is not on this node"
        if healthy and not card.healthy:
            return f"its device {card.uuid} (index {card.index}) is unhealthy: {card.problem}"
        shares.append((card, units))
    container = candidate.container
    return Grant(
        shares=tuple(shares),
        total=pod.total,
        cores=container.cores,
        whole_cards=pod.whole_cards,
        share=container.share,
        memory_limit=pod.memory_limit,
    )


def choose_ids(
    grant: Grant, available: Collection[str], must_include: Collection[str], in_use: Collection[str]
) -> tuple[tuple[str, ...], bool]:
    """Return (ids of as many units as the grant has, whether all ids are of the granted cards).

    available: ids that the kubelet may take. must_include: ids that the kubelet takes in any case.
    in_use: ids that another container still has, as far as known; taken last.
    """
    chosen = list(dict.fromkeys(must_include))[: grant.units]

    def take(uuids: Collection[str], count: int) -> None:
        """Add ids of these cards."""
        chosen_ids, prefixes = set(chosen), starts_of_ids(uuids)
        free = [
            device
            for device in available
            if device.startswith(prefixes) and device not in chosen_ids
        ]
        free.sort(key=lambda device: (device in in_use, number_of(device)))
        chosen.extend(free[: max(0, min(count, grant.units - len(chosen)))])

    for card, units in grant.shares:
        take((card.uuid,), units - sum(uuid_of(device) == card.uuid for device in chosen))
    if len(chosen) < grant.units:
        # No id of the granted cards is free: another plug-in used the ids for other cards.
        take(uuids_of(available) - {""}, grant.units)
    return tuple(chosen), {uuid_of(device) for device in chosen} <= grant.uuids


def _likely(
    following: Iterable[tuple[NodePod, GpuContainer | None]],
    refused_uids: Collection[str],
    units: int,
) -> tuple[ContainerCandidate, ...]:
    """Return the containers with so many units: of new pods, or all if there is no new pod.

    following: pods, each with the container that comes next.
    """
    contenders = [
        ContainerCandidate(pod, container)
        for pod, container in following
        if container is not None and container.units == units and not pod.ended
    ]
    new = [
        candidate
        for candidate in contenders
        if not (
            candidate.pod.started
            or candidate.pod.terminating
            or candidate.pod.ref.uid in refused_uids
        )
    ]
    return tuple(new or contenders)
