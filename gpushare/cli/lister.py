"""List and watch the nodes and pods of a cluster through kubectl, reduced page by page to the facts
that a report shows.

Knows list paths and selectors of the API. The list has only pods that hold memory of a node, and
for one node only the pods of that node; pages bound the memory here and the requests there. Output
formats that the original does not have also show pending pods and devices that ConfigMaps close.

A watch prints an event of the API server a line. When one watch ends, all watches end, and all
objects are listed again: the error of a list tells why a watch does not work.

Tested in `tests/unit/cli/test_inspect_parts.py`.
"""

import gc
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import IO, NamedTuple

from gpushare.cli.facts import (
    Fields,
    NodeFacts,
    PendingFacts,
    PodFacts,
    elements,
    mapping,
    pod_ref,
    read_node,
    read_pending,
    read_pod,
    text,
)
from gpushare.cli.kubectl import Kubectl
from gpushare.errors import ApiError, ApiGone, ApiNotFound, SettingsError, WireError
from gpushare.wire.annotations import Names
from gpushare.wire.fields import NAME
from gpushare.wire.inventory import decode_unhealthy

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"

PAGE = 5000
"""Objects a page: about 15 MB of pods. A page costs a kubectl call, so many small ones are slow."""

DRA = "/apis/resource.k8s.io/v1"
DEVICE_CLASSES = f"{DRA}/deviceclasses"
_OUR_CLASS = "gpushare.io"
SLICES = f"{DRA}/resourceslices"
CLAIMS = f"{DRA}/resourceclaims"
TAINT_RULES = f"{DRA}/devicetaintrules"

_FORBIDDEN = 403

_HOLDING = "status.phase!=Succeeded,status.phase!=Failed"

SETTLE = 0.2
"""Seconds of changes that are shown as one."""

RELIST_PAUSE = 1.0
"""Seconds from the end of a watch to the next list, for the load of a broken watch."""

_WRAPPED = 1.0
"""Seconds until the end of the output: the real kubectl may be the child of a script."""

_Take = Callable[..., None]
_Line = tuple[_Take, bytes]
_KINDS = frozenset({"ADDED", "MODIFIED", "DELETED"})


@dataclass(frozen=True)
class Scope:
    """The nodes to list: by name, by labels, or all."""

    nodes: tuple[str, ...] = ()
    selector: str = ""
    more: bool = False
    """Whether to list pending pods, if the scope is all nodes, and closed devices."""

    def __post_init__(self) -> None:
        for name in self.nodes:
            if NAME.fullmatch(name) is None:
                raise SettingsError(f"{name[:80]!r} is not the name of a node")

    @property
    def pending(self) -> bool:
        """Whether pending pods are listed."""
        return self.more and not self.nodes and not self.selector

    def has(self, node: str) -> bool:
        """Return whether the scope has the node."""
        return not self.nodes or node in self.nodes


@dataclass
class Observed:
    """Facts about a cluster: nodes by name, pods by uid, and why pods are unreadable by uid."""

    names: Names
    scope: Scope
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    pending: dict[str, PendingFacts] = field(default_factory=dict)
    """Pending pods, by uid."""
    closed_devices: dict[str, frozenset[int | str]] = field(default_factory=dict)
    """Devices that ConfigMaps close, as indices or uuids, by node."""
    listed_nodes: set[str] = field(default_factory=set)
    """The names of all listed nodes."""
    slices: dict[tuple[str, str], Fields] | None = None
    """ResourceSlices by ("", name); None without the device class of claims."""
    claims: dict[tuple[str, str], Fields] | None = None
    """ResourceClaims by (namespace, name); None without the device class of claims."""

    @property
    def warnings(self) -> list[str]:
        """Warnings about pods that the numbers leave out."""
        warnings = sorted(self.unread.values())
        if not self.scope.selector:
            strays: dict[str, int] = {}
            for pod in self.pods.values():
                if pod.node not in self.nodes:
                    strays[pod.node] = strays.get(pod.node, 0) + 1
            warnings += [
                f"node {node} shares no {self.names.resource}, and"
                f" {'1 pod on it asks' if count == 1 else f'{count} pods on it ask'} for it"
                for node, count in sorted(strays.items())
            ]
        return warnings

    def take_node(self, item: Fields, *, is_deleted: bool = False) -> None:
        """Update the facts about a node."""
        name = text(mapping(item.get("metadata")).get("name"))
        self.listed_nodes.add(name)
        self.nodes.pop(name, None)
        if self.scope.has(name) and not is_deleted:
            node = read_node(item, self.names)
            if node is not None:
                self.nodes[name] = node

    def take_pod(self, item: Fields, *, is_deleted: bool = False) -> None:
        """Update the facts about a pod."""
        ref = pod_ref(item)
        self.pods.pop(ref.uid, None)
        self.unread.pop(ref.uid, None)
        self.pending.pop(ref.uid, None)
        if is_deleted or not self.scope.has(text(mapping(item.get("spec")).get("nodeName"))):
            return
        try:
            pod = read_pod(item, self.names)
            pending = read_pending(item, self.names) if self.scope.pending else None
        except WireError as error:
            self.unread[ref.uid] = f"pod {ref}: {error}; it is left out"
        else:
            if pod is not None:
                self.pods[ref.uid] = pod
            if pending is not None:
                self.pending[ref.uid] = pending

    def take_config_map(self, item: Fields, *, is_deleted: bool = False) -> None:
        """Update the devices that a ConfigMap closes; an unreadable ConfigMap changes nothing."""
        name = text(mapping(item.get("metadata")).get("name"))
        node = name.removeprefix(self.names.unhealthy)
        if node == name:
            return
        self.unread.pop(name, None)
        if is_deleted:
            self.closed_devices.pop(node, None)
            return
        data = {key: text(value) for key, value in mapping(item.get("data")).items()}
        try:
            self.closed_devices[node] = decode_unhealthy(data)
        except WireError as error:
            self.unread[name] = f"ConfigMap {name}: {error}"


class Listed(NamedTuple):
    """A list with the resourceVersion to watch from, and the function for changes."""

    path: str
    query: Mapping[str, str]
    version: str
    take: Callable[..., None]


def observe(kubectl: Kubectl, scope: Scope, names: Names) -> tuple[Observed, list[Listed]]:
    """Return the facts about the cluster, and the lists to watch.

    Raises ApiNotFound if a named node does not exist, and the errors of `Kubectl.get`.
    """
    # Parsed JSON has no cycles, and looking for some in every page takes two thirds of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _observe(kubectl, scope, names, PAGE)
    except ApiGone:
        # etcd has compacted the version of the pages before the last one: list without pages.
        return _observe(kubectl, scope, names, 0)
    finally:
        if collects:
            gc.enable()


def _observe(
    kubectl: Kubectl, scope: Scope, names: Names, limit: int
) -> tuple[Observed, list[Listed]]:
    observed = Observed(names, scope)
    query = {"labelSelector": scope.selector} if scope.selector else {}
    held_by = "spec.nodeName!="
    if len(scope.nodes) == 1:
        query = {"fieldSelector": f"metadata.name={scope.nodes[0]}"}
        held_by = f"spec.nodeName={scope.nodes[0]}"
    lists = [_list(kubectl, Listed(NODES, query, "", observed.take_node), limit)]
    unknown = [name for name in scope.nodes if name not in observed.listed_nodes]
    if unknown:
        text = "; ".join(f'nodes "{name}" not found' for name in unknown)
        raise ApiNotFound(f"Error from server (NotFound): {text}", 404)
    # The pods that hold memory of these nodes, and perhaps of others.
    query = {"fieldSelector": _HOLDING if scope.pending else f"{_HOLDING},{held_by}"}
    lists.append(_list(kubectl, Listed(PODS, query, "", observed.take_pod), limit))
    if scope.more:
        maps = Listed(CONFIG_MAPS, {}, "", observed.take_config_map)
        try:
            lists.append(_list(kubectl, maps, limit))
        except ApiGone:
            raise
        except ApiError as error:
            observed.unread[CONFIG_MAPS] = f"devices that ConfigMaps close are not known: {error}"
        lists += _list_claims(kubectl, observed, limit)
    return observed, lists


def observe_namespace(kubectl: Kubectl, names: Names, namespace: str) -> Observed:
    """Return the facts about the pods of one namespace, pending pods included, and no node."""
    observed = Observed(names, Scope(more=True))
    path, query = f"/api/v1/namespaces/{namespace}/pods", {"fieldSelector": _HOLDING}
    _list(kubectl, Listed(path, query, "", observed.take_pod), PAGE)
    return observed


def _list_claims(kubectl: Kubectl, observed: Observed, limit: int) -> list[Listed]:
    """List slices and claims, if the cluster has the device class of claims; return the lists.

    Without the class, or without the right to read it, there is no warning.
    """
    try:
        items = elements(kubectl.get(DEVICE_CLASSES).get("items"))
    except ApiError as error:
        if not isinstance(error, ApiNotFound) and error.refusal != _FORBIDDEN:
            observed.unread[DEVICE_CLASSES] = f"claims are not known: {error}"
        return []
    names = {text(mapping(mapping(item).get("metadata")).get("name")) for item in items}
    if _OUR_CLASS not in names:
        return []
    observed.slices, observed.claims = {}, {}
    try:
        return [
            _list(kubectl, Listed(SLICES, {}, "", partial(_take, observed.slices)), limit),
            _list(kubectl, Listed(CLAIMS, {}, "", partial(_take, observed.claims)), limit),
        ]
    except ApiGone:
        raise
    except ApiError as error:
        observed.unread[CLAIMS] = f"claims are not known: {error}"
        observed.slices = observed.claims = None
        return []


def _take(
    objects: dict[tuple[str, str], Fields], item: Fields, *, is_deleted: bool = False
) -> None:
    ref = pod_ref(item)
    objects.pop((ref.namespace, ref.name), None)
    if not is_deleted:
        objects[ref.namespace, ref.name] = item


def _list(kubectl: Kubectl, of: Listed, limit: int) -> Listed:
    """Read the list in pages of `limit` items; return the list with its resourceVersion."""
    page: dict[str, str] = {}
    while True:
        document = kubectl.get(of.path, **of.query, limit=str(limit), **page)
        for item in elements(document.get("items")):
            of.take(mapping(item))
        metadata = mapping(document.get("metadata"))
        token = text(metadata.get("continue"))
        if not token:
            return of._replace(version=text(metadata.get("resourceVersion")))
        page = {"continue": token}


def follow(kubectl: Kubectl, scope: Scope, names: Names) -> Iterator[Observed]:
    """Yield the facts about the cluster, at once and after each change, without end.

    Raises the errors of `observe`, at any list.
    """
    while True:
        observed, lists = observe(kubectl, scope, names)
        yield observed
        with closing(_Streams()) as streams:
            for of in lists:
                watch = kubectl.watch(of.path, **of.query, resourceVersion=of.version)
                streams.start(watch, of.take)
            while streams.gather():
                yield observed
        time.sleep(RELIST_PAUSE)


class _Streams:
    """Watches with one queue for their lines; an empty line is the end of a watch."""

    def __init__(self) -> None:
        from queue import Empty, SimpleQueue  # the command mostly watches nothing

        self._lines: SimpleQueue[_Line] = SimpleQueue()
        self._no_line = Empty
        self._running: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []

    def start(self, process: "subprocess.Popen[bytes]", take: _Take) -> None:
        """Read the lines of this process; `take` gets the objects."""
        assert process.stdout is not None  # noqa: S101  # watch() asked for the pipe
        thread = threading.Thread(target=self._read, args=(process.stdout, take), daemon=True)
        self._running.append((process, thread))
        thread.start()

    def gather(self) -> bool:
        """Apply the next changes, up to SETTLE seconds of them; return False at the end."""
        take, line = self._lines.get()
        until = time.monotonic() + SETTLE
        while True:
            try:
                event = mapping(json.loads(line))
            except (ValueError, RecursionError):
                return False
            kind = text(event.get("type"))
            if kind not in _KINDS:
                return False  # the watch has ended, or cannot go on
            take(mapping(event.get("object")), is_deleted=kind == "DELETED")
            try:
                take, line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except self._no_line:
                return True

    def close(self) -> None:
        """Stop the processes."""
        for process, _thread in self._running:
            process.kill()
        for process, thread in self._running:
            thread.join(_WRAPPED)
            if not thread.is_alive():
                with process:
                    pass  # closes the pipe and waits

    def _read(self, lines: IO[bytes], take: _Take) -> None:
        for line in lines:
            self._lines.put((take, line))
        self._lines.put((take, b""))
