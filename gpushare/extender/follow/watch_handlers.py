"""Event handlers of the reflectors: they translate watch events and pass them to every ledger.

Knows the wire types and the ledger; no I/O. An object that cannot be read changes nothing: a pod
keeps what it holds, a node its shape, and the text of the error is logged.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.core.model import NodeSpec, ObservedPod
from gpushare.core.node_filters import NodeState
from gpushare.errors import AnnotationError, WireError
from gpushare.extender.follow.group_members import Member, Need, kind_of
from gpushare.extender.follow.shown import Shown
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.events.mistaken_pods import Mistake, MistakenPods
from gpushare.ledger import Changes
from gpushare.logline import Line
from gpushare.wire.codec import Decoded, UnreadableObject, WatchEvent
from gpushare.wire.demands import demands_of, node_state
from gpushare.wire.groups import Claimant, claimant, group_of
from gpushare.wire.inventory import UNHEALTHY_KEY, decode_unhealthy
from gpushare.wire.nodes import InventoryCache, node_spec
from gpushare.wire.objects import ConfigMap, Metadata, Node, Pod
from gpushare.wire.placeholders import Placeholder, placeholder_of
from gpushare.wire.pods import has_ended, observe_pod, pod_name, scheduler_of
from gpushare.wire.scale_down import Mark, mark_of

log = logging.getLogger("gpushare.watch")

Changed = Callable[[ManagedResource, Changes, bool], None]
"""Called with what has changed in the books of a managed resource, and whether that is the first
list, which shows what was there before."""


Moved = Callable[[ManagedResource, ObservedPod | None, str, Changes], None]
"""Called with what has changed with one pod, as it is shown (None: it is gone) and its uid; with ""
for what a whole list has changed."""


class SeenNode(NamedTuple):
    """What is kept of a node: what its own filters of kube-scheduler look at, and its devices in
    each managed resource, and what it says of scale-down.
    """

    state: NodeState
    specs: tuple[NodeSpec, ...]
    mark: Mark


class NodeEventHandler:
    """Handler for nodes. `unit`: the memory unit of the cluster. `marks`: is told of each node."""

    def __init__(
        self, resources: ManagedResources, unit: str, marks: Shown[Mark] | None = None
    ) -> None:
        self._resources = resources
        self._unit = unit
        self._marks = Shown[Mark]() if marks is None else marks
        self._inventories = InventoryCache()

    def trim(self, page: Decoded[Node]) -> Decoded[SeenNode]:
        """Return what is kept of a page."""
        return page.with_items([self._seen(node) for node in page.items])

    def replace(self, pages: Sequence[Decoded[Node] | Decoded[SeenNode]], started: float) -> None:
        """Take over all nodes."""
        del started
        unread = frozenset(bad.ref.name for page in pages for bad in _logged(page.bad))
        nodes = [
            self._seen(node) if isinstance(node, Node) else node
            for page in pages
            for node in page.items
        ]
        self._inventories.keep({node.state.name for node in nodes} | unread)
        self._resources.node_states.replace((node.state for node in nodes), keep=unread)
        self._marks.replace({node.state.name: node.mark for node in nodes}, keep=unread)
        for at, managed in enumerate(self._resources):
            managed.ledger.replace_nodes([node.specs[at] for node in nodes], keep=unread)

    def apply(self, event: WatchEvent[Node]) -> None:
        """Take over one node."""
        if event.object is None:
            for bad in _logged((event.bad,) if event.bad else ()):
                if event.kind == "DELETED":
                    self._gone(bad.ref.name)
            return
        node = self._seen(event.object)
        if event.kind == "DELETED":
            self._gone(node.state.name)
            return
        self._resources.node_states.put(node.state)
        self._marks.put(node.state.name, node.mark)
        for managed, spec in zip(self._resources, node.specs, strict=True):
            managed.ledger.node_changed(spec)

    def _seen(self, node: Node) -> SeenNode:
        specs = (
            node_spec(node, managed.names, self._unit, self._inventories)
            for managed in self._resources
        )
        metadata = node.metadata or Metadata()
        mark = mark_of(metadata.annotations or {}, metadata.resource_version or "")
        return SeenNode(node_state(node), tuple(specs), mark)

    def _gone(self, name: str) -> None:
        self._inventories.forget(name)
        self._resources.node_states.remove(name)
        self._marks.put(name, None)
        for managed in self._resources:
            managed.ledger.node_gone(name)


@dataclass(frozen=True, slots=True)
class SeenPod:
    """What is kept of a pod that the API server shows: what the ledgers, the holds and the mistakes
    need of it, a few hundred bytes, whatever else its owner has written.
    """

    uid: str
    """"" if it has none."""

    observed: tuple[ObservedPod | None, ...]
    """For each managed resource; None where it cannot be read."""

    claims: tuple[Claimant | None, ...]
    """For each managed resource: as the rules of holds see it; None if nothing may be held."""

    nominated: str
    """The node that kube-scheduler nominates it for, or ""."""

    mistake: Mistake | None
    """What is wrong with its spec."""

    running: ObservedPod | None = None
    """One on a node that has devices, or claims, with what it demands of nodes; if that is asked
    for."""

    placeholder: Placeholder | None = None
    """What it is, if it is a placeholder of ours: no scheduler serves it."""

    membership: tuple[str, Member] | None = None
    """The key of its group, and itself as a member; None once it is marked deleted or has ended."""

    deleted: bool = False
    """It is marked deleted."""


class PodEventHandler:
    """Handler for pods that have not ended; the watch selects by phase, so an end is a DELETED.

    `mistaken_pods`: is shown each pod. `moved`: is told of each change of a pod. `running`: is told
    of pods on nodes, with what they demand of nodes. `placeholders`: is told of placeholders.
    `gone`: is told the uid of each pod that is gone.
    """

    def __init__(
        self,
        resources: ManagedResources,
        changed: Changed = lambda *_: None,
        mistaken_pods: MistakenPods | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        running: Shown[ObservedPod] | None = None,
        placeholders: Shown[Placeholder] | None = None,
        moved: Moved = lambda *_: None,
        gone: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._resources = resources
        self._told_gone = gone
        self._changed = changed
        self._moved = moved
        self._mistaken_pods = mistaken_pods
        self._running = running
        self._placeholders = Shown[Placeholder]() if placeholders is None else placeholders
        self._clock = clock
        self._listed = False

    def trim(self, page: Decoded[Pod]) -> Decoded[SeenPod]:
        """Return what is kept of a page: a list may be long, and pods large."""
        return page.with_items([self._seen(pod) for pod in page.items])

    def replace(self, pages: Sequence[Decoded[Pod] | Decoded[SeenPod]], started: float) -> None:
        """Take over all pods."""
        unread = {bad.ref.uid for page in pages for bad in _logged(page.bad)}
        pods = [
            pod if isinstance(pod, SeenPod) else self._seen(pod)
            for page in pages
            for pod in page.items
        ]
        for at, managed in enumerate(self._resources):
            unreadable = unread | {pod.uid for pod in pods if pod.observed[at] is None}
            observed = (pod.observed[at] for pod in pods)
            changes = managed.ledger.replace_pods(
                (pod for pod in observed if pod is not None), keep=unreadable, started=started
            )
            self._changed(managed, changes, not self._listed)
            self._moved(managed, None, "", changes)
            managed.holds.keep({pod.uid for pod in pods if pod.claims[at] is not None})
            for pod in pods:
                if pod.claims[at] is not None:
                    self._hold(managed, pod, at)
        self._take_over_members(pods, unread)
        self._listed = True
        if self._running is not None:
            on_nodes = {pod.uid: pod.running for pod in pods if pod.running is not None}
            self._running.replace(on_nodes, keep=unread)
        stand_ins = {pod.uid: pod.placeholder for pod in pods if pod.placeholder is not None}
        self._placeholders.replace(stand_ins, keep=unread)
        if self._mistaken_pods is not None:
            mistaken = [pod for pod in pods if pod.mistake is not None]
            self._mistaken_pods.keep({pod.uid for pod in mistaken})
            for pod in mistaken:
                self._mistaken_pods.observe(pod.uid, pod.mistake)

    def apply(self, event: WatchEvent[Pod]) -> None:
        """Take over one pod."""
        if event.object is None:
            bad = _logged((event.bad,) if event.bad else ())
            if event.kind == "DELETED":
                self._gone(bad[0].ref.uid if bad else "", deleted=True)
        elif event.kind == "DELETED":
            metadata = event.object.metadata or Metadata()
            self._gone(metadata.uid or "", deleted=bool(metadata.deletion_timestamp))
        else:
            pod = self._seen(event.object)
            for at, managed in enumerate(self._resources):
                observed = pod.observed[at]
                if observed is None:
                    managed.ledger.pod_unreadable(pod.uid)
                else:
                    changes = managed.ledger.pod_changed(observed)
                    self._changed(managed, changes, False)
                    self._moved(managed, observed, pod.uid, changes)
                self._hold(managed, pod, at)
            self._show_to_gate(pod)
            if self._running is not None and pod.running is not None:
                self._running.put(pod.uid, pod.running)
            self._placeholders.put(pod.uid, pod.placeholder)
            if self._mistaken_pods is not None:
                self._mistaken_pods.observe(pod.uid, pod.mistake)

    def _seen(self, pod: Pod) -> SeenPod:
        observed: list[ObservedPod | None] = []
        claims: list[Claimant | None] = []
        schedulers = self._resources.scope.schedulers
        stands_in = placeholder_of(pod)
        ours = not schedulers or scheduler_of(pod) in schedulers
        deleted = bool(pod.metadata and pod.metadata.deletion_timestamp)
        stays = not (deleted or has_ended(pod))
        may_hold = stays and not (pod.spec and pod.spec.node_name)
        for managed in self._resources:
            try:
                seen = observe_pod(pod, managed.names)
            except WireError as error:
                observed.append(None)
                claims.append(None)
                log.warning(Line("pod kept as it was", pod=pod_name(pod), error=str(error)))
                continue
            # kube-scheduler of another name: no extender of ours is called for it.
            observed.append(seen if seen.node or ours else seen._replace(gated=True, served=False))
            asks = may_hold and seen.request.devices
            claims.append(claimant(pod, seen.request) if asks else None)
        claims_some = bool(pod.spec and pod.spec.resource_claims)
        on_node = [shown for shown in observed if shown and shown.node]
        running = next((shown for shown in on_node if claims_some or shown.request.devices), None)
        return SeenPod(
            uid=(pod.metadata and pod.metadata.uid) or "",
            observed=tuple(observed),
            claims=tuple(claims),
            nominated=(pod.status and pod.status.nominated_node_name) or "",
            mistake=None
            if self._mistaken_pods is None or stands_in is not None
            else self._mistaken_pods.mistake(pod),
            running=running._replace(demands=demands_of(pod))
            if running and self._running
            else None,
            placeholder=stands_in,
            membership=self._membership(pod, observed, claims) if stays else None,
            deleted=deleted,
        )

    def _membership(
        self, pod: Pod, observed: Sequence[ObservedPod | None], claims: Sequence[Claimant | None]
    ) -> tuple[str, Member] | None:
        """Return the key of the pod's group, and the pod as a member of it.

        observed, claims: the pod in each managed resource.
        """
        group_key = group_of(pod).key
        shown = next((one for one in observed if one is not None), None)
        if not group_key or shown is None:
            return None
        need = None
        for managed, one, claim in zip(self._resources, observed, claims, strict=True):
            if one is not None and claim is not None:
                request = kind_of(claim.request)
                need = Need(managed.names.resource, request, one.demands, claim.waits)
        node = (pod.spec and pod.spec.node_name) or ""
        return group_key, Member(shown.ref, bool(node), need, shown.priority, shown.created)

    def _take_over_members(self, pods: Sequence[SeenPod], unread: Collection[str]) -> None:
        """Tell the gate of all members of groups that a whole list shows.

        unread: uids of pods that cannot be read; they stay as they were.
        """
        gate = self._resources.gate
        for pod in pods:
            self._show_to_gate(pod)
        gate.listed({*unread, *(pod.uid for pod in pods if pod.membership is not None)})

    def _show_to_gate(self, pod: SeenPod) -> None:
        if pod.membership is not None:
            self._resources.gate.shown(*pod.membership)
        else:
            self._resources.gate.gone(pod.uid, deleted=pod.deleted)

    def _hold(self, managed: ManagedResource, pod: SeenPod, at: int) -> None:
        """Begin or end the hold of the pod, by what the API server shows of it."""
        claim = pod.claims[at]
        if claim is not None:
            managed.holds.shown(claim, pod.nominated, self._clock())
        else:
            managed.holds.gone(pod.uid)

    def _gone(self, uid: str, *, deleted: bool) -> None:
        """Forget a pod; deleted: it was marked deleted, so it has not ended by itself."""
        self._told_gone(uid)
        for managed in self._resources:
            changes = managed.ledger.pod_gone(uid)
            self._changed(managed, changes, False)
            self._moved(managed, None, uid, changes)
            managed.holds.gone(uid)
        self._resources.gate.gone(uid, deleted=deleted)
        if self._running is not None:
            self._running.put(uid, None)
        self._placeholders.put(uid, None)
        if self._mistaken_pods is not None:
            self._mistaken_pods.gone(uid)


class UnhealthyEventHandler:
    """Handler for the ConfigMaps that close devices: `unhealthy-gpu-NODE`, data `gpus: "0,2"`.

    room_on: called with the node of each that changes.
    """

    def __init__(
        self, resources: ManagedResources, room_on: Callable[[str], None] | None = None
    ) -> None:
        self._resources = resources
        self._room_on = room_on
        self._closed: set[tuple[str, str]] = set()

    def trim(self, page: Decoded[ConfigMap]) -> Decoded[ConfigMap]:
        """Return what is kept of a page: the ConfigMaps that may close devices, and of these what
        does.
        """
        prefixes = tuple(managed.names.unhealthy for managed in self._resources)
        named = [((item.metadata and item.metadata.name) or "", item) for item in page.items]
        return page.with_items(
            [
                ConfigMap(
                    Metadata(name=name),
                    {key: text for key, text in (item.data or {}).items() if key == UNHEALTHY_KEY},
                )
                for name, item in named
                if name.startswith(prefixes)
            ]
        )

    def replace(self, pages: Sequence[Decoded[ConfigMap]], started: float) -> None:
        """Take over all ConfigMaps: a node that has none has no device closed by one."""
        del started
        maps = [config_map for page in pages for config_map in page.items]
        named = {(config_map.metadata and config_map.metadata.name) or "" for config_map in maps}
        named.update(bad.ref.name for page in pages for bad in _logged(page.bad))
        for name, resource in list(self._closed):
            if name not in named:
                self._open(name, resource)
        for config_map in maps:
            self._apply(config_map)

    def apply(self, event: WatchEvent[ConfigMap]) -> None:
        """Take over one ConfigMap."""
        if event.object is None:
            _logged((event.bad,) if event.bad else ())
        elif event.kind == "DELETED":
            name = (event.object.metadata and event.object.metadata.name) or ""
            for managed in self._resources:
                self._open(name, managed.names.resource)
        else:
            self._apply(event.object)

    def _apply(self, config_map: ConfigMap) -> None:
        name = (config_map.metadata and config_map.metadata.name) or ""
        for managed in self._resources:
            node = name.removeprefix(managed.names.unhealthy)
            if node == name:
                continue
            try:
                devices = decode_unhealthy(config_map.data or {})
            except AnnotationError as error:
                log.warning(Line("configmap kept as it was", configmap=name, error=str(error)))
                continue
            self._set(managed, node, devices)
            self._closed.add((name, managed.names.resource))

    def _open(self, name: str, resource: str) -> None:
        managed = self._resources.find(resource)
        if managed is not None and (name, resource) in self._closed:
            self._closed.discard((name, resource))
            self._set(managed, name.removeprefix(managed.names.unhealthy), frozenset())

    def _set(self, managed: ManagedResource, node: str, devices: frozenset[int | str]) -> None:
        managed.ledger.set_unhealthy(node, devices)
        if self._room_on is not None:
            self._room_on(node)


def _logged(bad: Sequence[UnreadableObject]) -> Sequence[UnreadableObject]:
    for item in bad:
        log.warning(Line("object kept as it was", object=item.ref, error=item.error))
    return bad
