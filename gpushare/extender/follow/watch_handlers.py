"""Event handlers of the reflectors: they decode watch events and pass the result to every ledger.

Knows the wire types and the ledger; no I/O. An unreadable object changes nothing: the charge of the
pod and the shape of the node stay, and the handler logs the error.
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from gpushare.core.model import NodeSpec, ObservedPod
from gpushare.core.node_filters import NodeState
from gpushare.errors import AnnotationError, WireError
from gpushare.extender.claims.waiting import WaitingPod, WaitingPods, waiting_pod
from gpushare.extender.follow.group_members import Member, Need, kind_of
from gpushare.extender.follow.shown import Shown
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.events.mistaken_pods import Mistake, MistakenPods
from gpushare.ledger import Changes
from gpushare.logline import Line
from gpushare.wire.codec import Decoded, UnreadableObject, WatchEvent
from gpushare.wire.demands import demands_of, node_state
from gpushare.wire.groups import group_of
from gpushare.wire.inventory import UNHEALTHY_KEY, decode_unhealthy
from gpushare.wire.kueue import AdmittedPod, admitted_pod
from gpushare.wire.nodes import InventoryCache, node_spec
from gpushare.wire.objects import ConfigMap, Metadata, Node, Pod
from gpushare.wire.placeholders import Placeholder, placeholder_of
from gpushare.wire.pods import Claimant, claimant, has_ended, observe_pod, pod_name, scheduler_of
from gpushare.wire.scale_down import Mark, mark_of

log = logging.getLogger("gpushare.watch")

Changed = Callable[[ManagedResource, Changes, bool], None]
"""Called after each change of a ledger: (managed resource, changes, whether the changes are of the
first list). The first list shows the pods from before the start of this process."""


Moved = Callable[[ManagedResource, ObservedPod | None, str, Changes], None]
"""Called after each change of a ledger: (managed resource, pod or None if deleted, uid, changes);
the uid is "" after a whole list."""


class SeenNode(NamedTuple):
    """A node of the watch: the state for kube-scheduler's own filters, the devices in each managed
    resource, and the annotations about scale-down.
    """

    state: NodeState
    specs: tuple[NodeSpec, ...]
    mark: Mark


class NodeEventHandler:
    """Handler for nodes. unit: the memory unit of the cluster. marks: gets a mark of each node."""

    def __init__(
        self, resources: ManagedResources, unit: str, marks: Shown[Mark] | None = None
    ) -> None:
        self._resources = resources
        self._unit = unit
        self._marks = Shown[Mark]() if marks is None else marks
        self._inventories = InventoryCache()

    def trim(self, page: Decoded[Node]) -> Decoded[SeenNode]:
        """Return the page with small records instead of nodes."""
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
        for at, resource in enumerate(self._resources):
            resource.ledger.replace_nodes([node.specs[at] for node in nodes], keep=unread)

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
        for resource, spec in zip(self._resources, node.specs, strict=True):
            resource.ledger.node_changed(spec)
            resource.ledger.make_layout()

    def _seen(self, node: Node) -> SeenNode:
        specs = (
            node_spec(node, resource.names, self._unit, self._inventories)
            for resource in self._resources
        )
        metadata = node.metadata or Metadata()
        mark = mark_of(metadata.annotations or {}, metadata.resource_version or "")
        return SeenNode(node_state(node), tuple(specs), mark)

    def _gone(self, name: str) -> None:
        self._inventories.forget(name)
        self._resources.node_states.remove(name)
        self._marks.put(name, None)
        for resource in self._resources:
            resource.ledger.node_gone(name)
            resource.ledger.make_layout()


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod of the watch, as the ledgers, the holds and the mistakes need the pod: a few hundred
    bytes, however large the object is.
    """

    uid: str
    """"" for a pod without a uid."""

    observed: tuple[ObservedPod | None, ...]
    """For each managed resource; None for an unreadable request."""

    claims: tuple[Claimant | None, ...]
    """For each managed resource: the pod for the rules of holds; None if a hold is impossible."""

    nominated: str
    """The node of status.nominatedNodeName, or ""."""

    mistake: Mistake | None
    """The mistake in the spec of the pod."""

    running: ObservedPod | None = None
    """The pod with its demands on nodes, if the pod is on a node and has devices, and the handler
    has to collect such pods."""

    placeholder: Placeholder | None = None
    """The placeholder, if the pod is one: no scheduler serves a placeholder."""

    membership: tuple[str, Member] | None = None
    """(group key, the pod as a member); None if the pod is marked deleted or has ended."""

    deleted: bool = False
    """Whether the pod is marked deleted."""

    waiting: WaitingPod | None = None
    """The record of a pod that may wait for devices of claims, if the handler has to collect such
    pods."""

    admitted: AdmittedPod | None = None
    """The pod as one of a workload that Kueue has admitted, if the handler has to collect such
    pods."""


@dataclass(eq=False)
class PodEventHandler:
    """Handler for pods that have not ended; the watch selects by phase, so an end is a DELETED.

    changed, moved: called after each change of a ledger. gone: called with the uid of each deleted
    pod. mistaken_pods: gets the mistake of each pod. running: gets the pods on nodes, with their
    demands on nodes. placeholders: gets the placeholders. waiting: gets the pods that may wait for
    devices of claims. admitted: gets the pods of workloads that Kueue has admitted.
    """

    resources: ManagedResources
    changed: Changed = lambda *_: None
    mistaken_pods: MistakenPods | None = None
    clock: Callable[[], float] = time.monotonic
    _: KW_ONLY
    running: Shown[ObservedPod] | None = None
    placeholders: Shown[Placeholder] | None = None
    waiting: WaitingPods | None = None
    admitted: Shown[AdmittedPod] | None = None
    moved: Moved = lambda *_: None
    gone: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        sinks: dict[str, Shown[Any] | None] = {
            "running": self.running,
            "placeholder": self.placeholders,
            "waiting": self.waiting,
            "admitted": self.admitted,
        }
        self._sinks = [(name, sink) for name, sink in sinks.items() if sink is not None]
        """With the attribute of SeenPod that each sink gets."""
        self._listed = False

    def trim(self, page: Decoded[Pod]) -> Decoded[SeenPod]:
        """Return the page with small records instead of pods: a list may be long."""
        return page.with_items([self._seen(pod) for pod in page.items])

    def replace(self, pages: Sequence[Decoded[Pod] | Decoded[SeenPod]], started: float) -> None:
        """Take over all pods."""
        unread = {bad.ref.uid for page in pages for bad in _logged(page.bad)}
        pods = [
            pod if isinstance(pod, SeenPod) else self._seen(pod)
            for page in pages
            for pod in page.items
        ]
        for at, resource in enumerate(self.resources):
            unreadable = unread | {pod.uid for pod in pods if pod.observed[at] is None}
            observed = (pod.observed[at] for pod in pods)
            changes = resource.ledger.replace_pods(
                (pod for pod in observed if pod is not None), keep=unreadable, started=started
            )
            self.changed(resource, changes, not self._listed)
            self.moved(resource, None, "", changes)
            resource.holds.keep({pod.uid for pod in pods if pod.claims[at] is not None})
            for pod in pods:
                if pod.claims[at] is not None:
                    self._hold(resource, pod, at)
        self._take_over_members(pods, unread)
        self._listed = True
        for name, sink in self._sinks:
            values = {pod.uid: getattr(pod, name) for pod in pods}
            sink.replace({uid: item for uid, item in values.items() if item is not None}, unread)
        if self.mistaken_pods is not None:
            mistaken = [pod for pod in pods if pod.mistake is not None]
            self.mistaken_pods.keep({pod.uid for pod in mistaken})
            for pod in mistaken:
                self.mistaken_pods.observe(pod.uid, pod.mistake)

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
            for at, resource in enumerate(self.resources):
                observed = pod.observed[at]
                if observed is None:
                    resource.ledger.pod_unreadable(pod.uid)
                else:
                    changes = resource.ledger.pod_changed(observed)
                    self.changed(resource, changes, False)
                    self.moved(resource, observed, pod.uid, changes)
                self._hold(resource, pod, at)
            self._show_to_gate(pod)
            for name, sink in self._sinks:
                value = getattr(pod, name)
                if value is not None or name != "running":  # as before if its request is unreadable
                    sink.put(pod.uid, value)
            if self.mistaken_pods is not None:
                self.mistaken_pods.observe(pod.uid, pod.mistake)

    def _seen(self, pod: Pod) -> SeenPod:
        observed: list[ObservedPod | None] = []
        claims: list[Claimant | None] = []
        schedulers = self.resources.scope.schedulers
        stands_in = placeholder_of(pod)
        is_own = not schedulers or scheduler_of(pod) in schedulers
        deleted = bool(pod.metadata and pod.metadata.deletion_timestamp)
        stays = not (deleted or has_ended(pod))
        may_hold = stays and not (pod.spec and pod.spec.node_name)
        for resource in self.resources:
            try:
                view = observe_pod(pod, resource.names)
            except WireError as error:
                observed.append(None)
                claims.append(None)
                log.warning(Line("pod kept as it was", pod=pod_name(pod), error=str(error)))
                continue
            # A kube-scheduler with another name does not call this extender for the pod.
            observed.append(
                view if view.node or is_own else view._replace(gated=True, served=False)
            )
            asks = may_hold and view.request.devices
            claims.append(claimant(pod, view.request) if asks else None)
        running = next(
            (view for view in observed if view and view.node and view.request.devices), None
        )
        return SeenPod(
            uid=(pod.metadata and pod.metadata.uid) or "",
            observed=tuple(observed),
            claims=tuple(claims),
            nominated=(pod.status and pod.status.nominated_node_name) or "",
            mistake=None
            if self.mistaken_pods is None or stands_in is not None
            else self.mistaken_pods.mistake(pod),
            running=running._replace(demands=demands_of(pod)) if running and self.running else None,
            placeholder=stands_in,
            membership=self._membership(pod, observed, claims) if stays else None,
            deleted=deleted,
            waiting=self._waiting_pod(pod) if may_hold and stands_in is None else None,
            admitted=None if self.admitted is None else admitted_pod(pod),
        )

    def _waiting_pod(self, pod: Pod) -> WaitingPod | None:
        """Return the record of a pod without a node that may wait for devices of claims."""
        if self.waiting is None:
            return None
        return waiting_pod(pod, [resource.names.resource for resource in self.resources])

    def _membership(
        self, pod: Pod, observed: Sequence[ObservedPod | None], claims: Sequence[Claimant | None]
    ) -> tuple[str, Member] | None:
        """Return (group key, the pod as a member); None for a pod without a group.

        observed, claims: the pod in each managed resource.
        """
        group_key = group_of(pod).key
        first = next((view for view in observed if view is not None), None)
        if not group_key or first is None:
            return None
        need = None
        for resource, view, claim in zip(self.resources, observed, claims, strict=True):
            if view is not None and claim is not None:
                request = kind_of(claim.request)
                need = Need(resource.names.resource, request, view.demands, claim.waits)
        node = (pod.spec and pod.spec.node_name) or ""
        return group_key, Member(first.ref, bool(node), need, first.priority, first.created)

    def _take_over_members(self, pods: Sequence[SeenPod], unread: Collection[str]) -> None:
        """Pass the members of groups in a whole list to the gate.

        unread: uids of unreadable pods; the gate keeps these members.
        """
        gate = self.resources.gate
        for pod in pods:
            self._show_to_gate(pod)
        gate.listed({*unread, *(pod.uid for pod in pods if pod.membership is not None)})

    def _show_to_gate(self, pod: SeenPod) -> None:
        if pod.membership is not None:
            self.resources.gate.shown(*pod.membership)
        else:
            self.resources.gate.gone(pod.uid, deleted=pod.deleted)

    def _hold(self, resource: ManagedResource, pod: SeenPod, at: int) -> None:
        """Begin or end the hold of the pod."""
        claim = pod.claims[at]
        if claim is not None:
            resource.holds.shown(claim, pod.nominated, self.clock())
        else:
            resource.holds.gone(pod.uid)

    def _gone(self, uid: str, *, deleted: bool) -> None:
        """Forget a pod. deleted: the pod was marked deleted, so it has not ended by itself."""
        self.gone(uid)
        for resource in self.resources:
            changes = resource.ledger.pod_gone(uid)
            self.changed(resource, changes, False)
            self.moved(resource, None, uid, changes)
            resource.holds.gone(uid)
        self.resources.gate.gone(uid, deleted=deleted)
        for _, sink in self._sinks:
            sink.put(uid, None)
        if self.mistaken_pods is not None:
            self.mistaken_pods.gone(uid)


class UnhealthyEventHandler:
    """Handler for the ConfigMaps that close devices: `unhealthy-gpu-NODE`, data `gpus: "0,2"`.

    room_on: called with the node of each changed ConfigMap.
    """

    def __init__(
        self, resources: ManagedResources, room_on: Callable[[str], None] | None = None
    ) -> None:
        self._resources = resources
        self._room_on = room_on
        self._closed: set[tuple[str, str]] = set()

    def trim(self, page: Decoded[ConfigMap]) -> Decoded[ConfigMap]:
        """Return the page with only the ConfigMaps and keys that may close devices."""
        prefixes = tuple(resource.names.unhealthy for resource in self._resources)
        named_maps = [((item.metadata and item.metadata.name) or "", item) for item in page.items]
        return page.with_items(
            [
                ConfigMap(
                    Metadata(name=name),
                    {key: text for key, text in (item.data or {}).items() if key == UNHEALTHY_KEY},
                )
                for name, item in named_maps
                if name.startswith(prefixes)
            ]
        )

    def replace(self, pages: Sequence[Decoded[ConfigMap]], started: float) -> None:
        """Take over all ConfigMaps; the devices of a node without a ConfigMap open."""
        del started
        maps = [config_map for page in pages for config_map in page.items]
        map_names = {
            (config_map.metadata and config_map.metadata.name) or "" for config_map in maps
        }
        map_names.update(bad.ref.name for page in pages for bad in _logged(page.bad))
        for name, resource in list(self._closed):
            if name not in map_names:
                self._open(name, resource)
        for config_map in maps:
            self._apply(config_map)

    def apply(self, event: WatchEvent[ConfigMap]) -> None:
        """Take over one ConfigMap."""
        if event.object is None:
            _logged((event.bad,) if event.bad else ())
        elif event.kind == "DELETED":
            name = (event.object.metadata and event.object.metadata.name) or ""
            for resource in self._resources:
                self._open(name, resource.names.resource)
        else:
            self._apply(event.object)

    def _apply(self, config_map: ConfigMap) -> None:
        name = (config_map.metadata and config_map.metadata.name) or ""
        for resource in self._resources:
            node = name.removeprefix(resource.names.unhealthy)
            if node == name:
                continue
            try:
                devices = decode_unhealthy(config_map.data or {})
            except AnnotationError as error:
                log.warning(Line("configmap kept as it was", configmap=name, error=str(error)))
                continue
            self._set(resource, node, devices)
            self._closed.add((name, resource.names.resource))

    def _open(self, name: str, resource: str) -> None:
        managed_resource = self._resources.find(resource)
        if managed_resource is not None and (name, resource) in self._closed:
            self._closed.discard((name, resource))
            self._set(
                managed_resource, name.removeprefix(managed_resource.names.unhealthy), frozenset()
            )

    def _set(self, resource: ManagedResource, node: str, devices: frozenset[int | str]) -> None:
        resource.ledger.set_unhealthy(node, devices)
        if self._room_on is not None:
            self._room_on(node)


def _logged(bad: Sequence[UnreadableObject]) -> Sequence[UnreadableObject]:
    for item in bad:
        log.warning(Line("object kept as it was", object=item.ref, error=item.error))
    return bad
