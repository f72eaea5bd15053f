"""The answers to the kubelet: which ids to prefer, what a container gets, whether it may start.

Applies the rules of identity.py to the kubelet's view, the pods and the answers so far. The lock is
held for arithmetic only. The kubelet's List is read when the kubelet asks for preferred ids, and at
Allocate only if the kubelet did not ask: the List may miss ids that are being allocated
(UpdateAllocatedDevices of the device manager). A pod that the kubelet shows and the watch does not
is read before the pod is left out.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace

from gpushare.device_plugin import identity
from gpushare.device_plugin.cards import NodeCards, uuid_of, uuids_of
from gpushare.device_plugin.identity import CheckpointEntry, ContainerCandidate, Decided, Grant
from gpushare.device_plugin.node_pod import NodePod
from gpushare.device_plugin.pods import Found, Pods
from gpushare.errors import GpuShareError, RequestRefused
from gpushare.logline import Line

log = logging.getLogger("gpushare.allocate")

MAX_WAIT = 1.0
"""Seconds to wait for changes of the pods before a question that cannot be decided is refused."""

_AGAIN = 0.1
_MOST_PENDING = 64
_UNKNOWN_FOR = 10.0
_MOST_UNSHOWN = 512
"""More than the containers of a node."""


@dataclass(frozen=True, slots=True)
class Served:
    """An answer of Allocate: the grant, and the ids of the request."""

    grant: Grant
    ids: frozenset[str]
    owners: tuple[ContainerCandidate, ...]


@dataclass(slots=True)
class AllocationState:
    """The answers so far."""

    pending: dict[frozenset[str], Decided] = field(default_factory=dict)
    """Preferred ids without an Allocate call so far."""
    served: dict[identity.ContainerKey, frozenset[str]] = field(default_factory=dict)
    """The ids of containers."""
    doubtful: set[identity.ContainerKey] = field(default_factory=set)
    """Containers on record as served; the kubelet may have asked for a pod that was not known."""
    refused_uids: set[str] = field(default_factory=set)
    """Uids of pods."""
    unshown: dict[frozenset[str], None] = field(default_factory=dict)
    """Sets of ids that Allocate served without a certain owner, the newest ones."""

    def note(self, ids: frozenset[str], decided: Decided) -> None:
        """Remember the container that was served with these ids, if there is only one."""
        self.unshown.pop(ids, None)
        if not decided.by_kubelet:
            self.unshown[ids] = None
            if len(self.unshown) > _MOST_UNSHOWN:
                del self.unshown[next(iter(self.unshown))]
        for owner in decided.owners if len(decided.owners) == 1 else ():
            container = (owner.pod.ref.uid, owner.container.name)
            self.served[container] = ids
            (self.doubtful.discard if decided.by_kubelet else self.doubtful.add)(container)

    def learn(self, entries: Iterable[CheckpointEntry]) -> None:
        """Add the kubelet's record, which shows the owners of uncertain answers."""
        for entry in entries:
            container = (entry.uid, entry.container)
            if self.served.setdefault(container, entry.ids) == entry.ids:
                self.doubtful.discard(container)

    def in_use(self, owners: Sequence[ContainerCandidate]) -> set[str]:
        """Return the ids that other pods have, or are about to get."""
        owner_uids = {owner.pod.ref.uid for owner in owners}
        used_ids = [ids for (uid, _), ids in self.served.items() if uid not in owner_uids]
        for ids, decided in self.pending.items():
            if not any(owner.pod.ref.uid in owner_uids for owner in decided.owners):
                used_ids.append(ids)
        return set().union(*used_ids)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates."""

    candidates: Sequence[ContainerCandidate]
    by_kubelet: bool
    """pod-resources lists the candidates, and each listed pod that lacks ids could be read."""
    changes: int
    """The number of changes of the pods before."""


@dataclass(slots=True, eq=False)
class CandidateFinder:
    """Finds candidates; several threads may call it."""

    pods: Pods
    pod_devices: Callable[[], identity.PodDevices]
    """Returns the kubelet's view; raises GpuShareError."""
    clock: Callable[[], float] = time.monotonic
    # Pods that the API server does not have: the time of the next request for each.
    _unknown: Mapping[identity.PodKey, float] = field(default_factory=dict)

    def find(
        self, units: int, answered: Set[identity.ContainerKey], refused_uids: Collection[str]
    ) -> Candidates:
        """Return the containers that may be asking for this number of units."""
        try:
            pod_devices = self.pod_devices()
        except GpuShareError as error:
            log.warning(Line("pod-resources does not answer", error=error))
            return self.unlisted(units, answered, refused_uids)
        pods, changes, unread = self._known(pod_devices)
        candidates = identity.candidates(pod_devices, pods, answered, refused_uids, units)
        doubtful = [
            pod.key
            for pod in (
                [candidate.pod for candidate in candidates]
                or [pods[key] for key in pod_devices if key in pods]
            )
            if identity.may_be_another(pod, pod_devices[pod.key], answered, refused_uids)
        ]
        if doubtful:
            found = self.pods.look_up(doubtful)
            pods, changes = self.pods.now()
            # A pod that cannot be read may have been replaced by a newer one.
            deleted_keys = {key for key in doubtful if found[key] is not Found.EXISTS}
            pods = {key: pod for key, pod in pods.items() if key not in deleted_keys}
            candidates = identity.candidates(pod_devices, pods, answered, refused_uids, units)
            unread |= {key for key in doubtful if found[key] is Found.UNKNOWN}
        if candidates:
            return Candidates(
                candidates, all(all(pod_devices[key].values()) for key in unread), changes
            )
        if any(key not in pods for key in pod_devices):
            return Candidates((), True, changes)
        # A kubelet that does not show the pod it is admitting.
        return self.unlisted(units, answered, refused_uids, excluded=pod_devices)

    def unlisted(
        self,
        units: int,
        answered: Set[identity.ContainerKey],
        refused_uids: Collection[str],
        *,
        excluded: Collection[identity.PodKey] = (),
    ) -> Candidates:
        """Return the candidates among all pods except `excluded`."""
        pods, changes = self.pods.now()
        unlisted_pods = [pod for key, pod in pods.items() if key not in excluded]
        return Candidates(
            identity.unlisted(unlisted_pods, answered, refused_uids, units), False, changes
        )

    def read_again(self, candidates: Sequence[ContainerCandidate]) -> None:
        """Read again the candidates, and the pods that the kubelet shows with an id missing."""
        pods, _ = self.pods.now()
        keys = {candidate.pod.key for candidate in candidates}
        with suppress(GpuShareError):
            pod_devices = self.pod_devices()
            keys |= {
                key
                for key in pod_devices
                if key not in pods
                or identity.next_container(pods[key], pod_devices[key], frozenset())
            }
        self.pods.look_up(keys)

    def _known(
        self, pod_devices: identity.PodDevices
    ) -> tuple[Mapping[identity.PodKey, NodePod], int, set[identity.PodKey]]:
        """Return (the pods, the number of changes, the pods that could not be read).

        Pods that the kubelet shows and the watch does not are read first. If the API server has
        no such pod (a static pod without a mirror), the next request waits.
        """
        pods, changes = self.pods.now()
        now = self.clock()
        late = {
            key for key in pod_devices if key not in pods and now >= self._unknown.get(key, now)
        }
        if not late:
            return pods, changes, set()
        found = self.pods.look_up(late)
        pods, changes = self.pods.now()
        unread = {key for key in found if found[key] is Found.UNKNOWN and key not in pods}
        unknown = {key: until for key, until in self._unknown.items() if until > now}
        until = self.clock() + _UNKNOWN_FOR
        self._unknown = unknown | {key: until for key in late - unread if key not in pods}
        return pods, changes, unread


@dataclass(eq=False)
class Allocator:
    """Decides what each container gets; several threads may call it.

    pod_devices: returns the kubelet's view. record: returns the kubelet's record. Both raise
    GpuShareError. cards: returns the present cards. other_card_ids: called for a container with ids
    of other cards than the granted ones.
    """

    pods: Pods
    pod_devices: Callable[[], identity.PodDevices]
    cards: Callable[[], NodeCards]
    _: KW_ONLY
    record: Callable[[], Iterable[CheckpointEntry]] = tuple
    other_card_ids: Callable[[Served], None] = lambda served: None
    clock: Callable[[], float] = time.monotonic
    max_wait: float = MAX_WAIT

    def __post_init__(self) -> None:
        self._finder = CandidateFinder(self.pods, self.pod_devices, self.clock)
        self._lock = threading.Lock()
        self._state = AllocationState()

    def reset(self, entries: Iterable[CheckpointEntry]) -> None:
        """Forget all answers except those in the kubelet's record: the kubelet has restarted.

        An answer that was doubtful stays doubtful.
        """
        served = {(entry.uid, entry.container): entry.ids for entry in entries}
        with self._lock:
            self._state = AllocationState(served=served, unshown=self._state.unshown)

    def prefer(
        self, available: Collection[str], must_include: Collection[str], units: int
    ) -> tuple[str, ...]:
        """Return the ids to take for this number of units. Raises RequestRefused."""
        decided = self._decide(units)
        with self._lock:
            in_use = self._state.in_use(decided.owners)
            ids, _ = identity.choose_ids(decided.grant, available, must_include, in_use)
            pending = self._state.pending
            pending.pop(frozenset(ids), None)
            pending[frozenset(ids)] = decided
            while len(pending) > _MOST_PENDING:
                del pending[next(iter(pending))]
        return ids

    def allocate(self, ids: Collection[str]) -> Served:
        """Return the grant of a container for these ids.

        Raises RequestRefused. Makes no call unless the kubelet did not ask for preferred ids.
        """
        cards = self.cards()
        unknown_ids = [device for device in ids if cards.by_uuid(uuid_of(device)) is None]
        if unknown_ids or not ids:
            raise RequestRefused(
                f"{', '.join(sorted(unknown_ids)[:4]) or 'no id'}: no id of this node"
            )
        requested_ids = frozenset(ids)
        with self._lock:
            decided = self._state.pending.pop(requested_ids, None)
        decided = decided or self._reused(requested_ids)
        if decided is None:
            with self._lock:
                pending = self._state.pending
                if len(pending) == 1 and len(next(iter(pending))) == len(requested_ids):
                    # The kubelet took other ids than those preferred.
                    _, decided = pending.popitem()
        if decided is None and self._state.pending:
            # The kubelet took the ids by NUMA node.
            candidates = self._finder.unlisted(len(requested_ids), *self._past()).candidates
            preface = "the kubelet took ids without asking which: "
            decided = replace(
                self._decided(candidates, len(requested_ids), preface), by_kubelet=False
            )
        # Else the kubelet asked the process before this one.
        decided = decided or self._decide(len(requested_ids))
        served = Served(decided.grant, requested_ids, decided.owners)
        with self._lock:
            self._state.note(requested_ids, decided)
        if not uuids_of(requested_ids) <= decided.grant.uuids:
            self.other_card_ids(served)
        return served

    def certain(self, ids: Collection[str]) -> bool:
        """Return whether the owner of these ids was known when the ids were served."""
        with self._lock:
            return frozenset(ids) not in self._state.unshown

    def complete(self, pod: NodePod) -> bool:
        """Return whether each container of the pod certainly has an answer."""
        with self._lock:
            certain = self._state.served.keys() - self._state.doubtful
        return identity.next_container(pod, {}, certain, by_kubelet=False) is None

    def learn(self, entries: Iterable[CheckpointEntry]) -> None:
        """Add the kubelet's record, which shows the owners of uncertain answers."""
        with self._lock:
            self._state.learn(entries)

    def forget(self, alive: Collection[str]) -> None:
        """Drop the answers of pods that are not among these uids."""
        with self._lock:
            state = self._state
            state.served = {key: ids for key, ids in state.served.items() if key[0] in alive}
            state.doubtful &= state.served.keys()
            state.refused_uids &= set(alive)

    # -- which container --------------------------------------------------------------------------

    def _decide(self, units: int) -> Decided:
        """Return the decision; wait for changes of the pods if that may help.

        Raises RequestRefused.
        """
        deadline = self.clock() + self.max_wait
        read_again = False
        self._settle()
        while True:
            search = self._finder.find(units, *self._past())
            decision = identity.decide(search.candidates, units, self.cards())
            remaining = deadline - self.clock()
            if isinstance(decision, Decided):
                # Known from the watch only: the kubelet may mean a pod that the watch lacks so far.
                if search.by_kubelet or remaining <= 0:
                    return replace(decision, by_kubelet=search.by_kubelet)
            elif remaining <= 0 or (search.by_kubelet and not decision.more_may_help):
                if read_again:
                    with self._lock:
                        if len(search.candidates) == 1:
                            self._state.refused_uids.add(search.candidates[0].pod.ref.uid)
                    raise _refused(decision)
                # A refusal fails the pod for good: make sure that no older pod of that name is
                # meant.
                read_again = True
                self._finder.read_again(search.candidates)
                continue
            else:
                # The process before this one may have served the pod.
                self.learn(self._recorded() or ())
            self.pods.wait(search.changes, min(remaining, _AGAIN))

    def _past(self) -> tuple[set[identity.ContainerKey], set[str]]:
        """Return (containers that have had an answer, uids of pods that had an error)."""
        with self._lock:
            return set(self._state.served), set(self._state.refused_uids)

    def _settle(self) -> None:
        """Look up in the kubelet's record which containers got the doubtful answers.

        The kubelet writes the record before the next question, so the record has all answers so
        far.
        """
        with self._lock:
            doubtful = frozenset(self._state.doubtful)
        entries = self._recorded() if doubtful else None
        if entries is not None:
            with self._lock:
                for container in doubtful:
                    self._state.served.pop(container, None)
                    self._state.doubtful.discard(container)
                self._state.learn(entries)

    def _recorded(self) -> Sequence[CheckpointEntry] | None:
        """Return the kubelet's record, or None if the record cannot be read."""
        try:
            return tuple(self.record())
        except GpuShareError as error:
            log.warning(Line("what the kubelet has given out is not known", error=error))
            return None

    # -- which container, by its ids --------------------------------------------------------------

    def _reused(self, requested_ids: frozenset[str]) -> Decided | None:
        """Return the grant of a container that reuses ids of an init container of the same pod.

        The kubelet then asks for no preferred ids.
        """
        pods, _ = self.pods.now()
        with self._lock:
            served = dict(self._state.served)
        reusing = []
        for pod in pods.values():
            if pod.ended:
                continue
            inits = [
                served.get((pod.ref.uid, container.name), frozenset())
                for container in pod.gpu_containers
                if container.init
            ]
            container = identity.next_container(pod, {}, served.keys(), by_kubelet=False)
            ids = frozenset().union(*inits)
            if (
                container is not None
                and container.units == len(requested_ids)
                and requested_ids <= ids
            ):
                reusing.append(ContainerCandidate(pod, container))
        return self._decided(reusing, len(requested_ids)) if reusing else None

    def _decided(
        self, candidates: Sequence[ContainerCandidate], units: int, preface: str = ""
    ) -> Decided:
        decision = identity.decide(candidates, units, self.cards())
        if isinstance(decision, identity.Undecided):
            raise _refused(decision, preface)
        return decision


def _refused(decision: identity.Undecided, preface: str = "") -> RequestRefused:
    """Return the refusal for the kubelet; the log names the pods."""
    if decision.details:
        log.warning(Line("undecided", why=decision.reason, whose=decision.details))
    return RequestRefused(f"{preface}{decision.reason}")
