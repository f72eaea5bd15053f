"""Nodes and pods of a cluster as kubectl lists them and as they change, reduced page by page to
what is shown of them.

Knows the list paths of the API and its selectors. Only pods that hold memory of a node are listed,
and for one node only its own; a page at a time, so that a large cluster costs little memory here
and no long request there. Output formats that the original does not have show more: the pods that
wait, and the devices that ConfigMaps close.

Watch events are as the API server writes them, a JSON object a line. If one watch ends, for
whatever reason, all end, and everything is listed again: the list is right, and its error says why
a watch does not work.

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
"""Seconds in which changes are gathered before they are shown as one."""

RELIST_PAUSE = 1.0
"""Seconds from the end of a watch to the next list, so that a broken watch is no load."""

_WRAPPED = 1.0
"""Seconds to wait for the end of output: the real kubectl may be the child of a script."""

_Take = Callable[..., None]
_Line = tuple[_Take, bytes]
_KINDS = frozenset({"ADDED", "MODIFIED", "DELETED"})


@dataclass(frozen=True)
class Scope:
    """Which nodes: those named, else those with the labels, else all."""

    nodes: tuple[str, ...] = ()
    selector: str = ""
    more: bool = False
    """Also the pods that wait (they are of no node, so of all nodes alone), and closed devices."""

    def __post_init__(self) -> None:
        for name in self.nodes:
            if NAME.fullmatch(name) is None:
                raise SettingsError(f"{name[:80]!r} is not the name of a node")

    @property
    def pending(self) -> bool:
        """Whether pods without a node are shown."""
        return self.more and not self.nodes and not self.selector

    def has(self, node: str) -> bool:
        """Return whether the node, or the node of a pod, is one of those listed."""
        return not self.nodes or node in self.nodes


@dataclass
class Observed:
    """What was read: nodes by name, pods by uid; by uid also why a pod could not be read."""

    names: Names
    scope: Scope
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    pods: dict[str, PodFacts] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    pending: dict[str, PendingFacts] = field(default_factory=dict)
    """Pods that wait, by uid."""
    closed: dict[str, frozenset[int | str]] = field(default_factory=dict)
    """By node the devices that its ConfigMap closes, by index or uuid."""
    listed_nodes: set[str] = field(default_factory=set)
    """The names of all nodes that were listed."""
    slices: dict[tuple[str, str], Fields] | None = None
    """By "" and name, if the cluster has the device class of claims; else None."""
    claims: dict[tuple[str, str], Fields] | None = None
    """By namespace and name, if the cluster has that class; else None."""

    @property
    def warnings(self) -> list[str]:
        """What the numbers leave out, one line each."""
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

    def take_node(self, item: Fields, *, gone: bool = False) -> None:
        """Take over a node as it is now."""
        name = text(mapping(item.get("metadata")).get("name"))
        self.listed_nodes.add(name)
        self.nodes.pop(name, None)
        if self.scope.has(name) and not gone:
            node = read_node(item, self.names)
            if node is not None:
                self.nodes[name] = node

    def take_pod(self, item: Fields, *, gone: bool = False) -> None:
        """Take over a pod as it is now."""
        ref = pod_ref(item)
        self.pods.pop(ref.uid, None)
        self.unread.pop(ref.uid, None)
        self.pending.pop(ref.uid, None)
        if gone or not self.scope.has(text(mapping(item.get("spec")).get("nodeName"))):
            return
        try:
            pod = read_pod(item, self.names)
            waiting = read_pending(item, self.names) if self.scope.pending else None
        except WireError as error:
            self.unread[ref.uid] = f"pod {ref}: {error}; it is left out"
        else:
            if pod is not None:
                self.pods[ref.uid] = pod
            if waiting is not None:
                self.pending[ref.uid] = waiting

    def take_config_map(self, item: Fields, *, gone: bool = False) -> None:
        """Take over a ConfigMap as it is now; keep the last good one if it cannot be read."""
        name = text(mapping(item.get("metadata")).get("name"))
        node = name.removeprefix(self.names.unhealthy)
        if node == name:
            return
        self.unread.pop(name, None)
        if gone:
            self.closed.pop(node, None)
            return
        data = {key: text(value) for key, value in mapping(item.get("data")).items()}
        try:
            self.closed[node] = decode_unhealthy(data)
        except WireError as error:
            self.unread[name] = f"ConfigMap {name}: {error}"


class Listed(NamedTuple):
    """A list that was read: where to watch from, and the function that takes its changes."""

    path: str
    query: Mapping[str, str]
    version: str
    take: Callable[..., None]


def observe(kubectl: Kubectl, scope: Scope, names: Names) -> tuple[Observed, list[Listed]]:
    """Return what the cluster shows, and the lists that it is from.

    Raises SettingsError if a named node does not exist, and whatever `Kubectl.get` raises.
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
    listed = [_list(kubectl, Listed(NODES, query, "", observed.take_node), limit)]
    unknown = [name for name in scope.nodes if name not in observed.listed_nodes]
    if unknown:
        raise SettingsError("; ".join(f'node "{name}" not found' for name in unknown))
    # The pods that hold memory of these nodes, and perhaps of others.
    query = {"fieldSelector": _HOLDING if scope.pending else f"{_HOLDING},{held_by}"}
    listed.append(_list(kubectl, Listed(PODS, query, "", observed.take_pod), limit))
    if scope.more:
        maps = Listed(CONFIG_MAPS, {}, "", observed.take_config_map)
        try:
            listed.append(_list(kubectl, maps, limit))
        except ApiGone:
            raise
        except ApiError as error:
            observed.unread[CONFIG_MAPS] = f"devices that ConfigMaps close are not known: {error}"
        listed += _list_claims(kubectl, observed, limit)
    return observed, listed


def _list_claims(kubectl: Kubectl, observed: Observed, limit: int) -> list[Listed]:
    """Take over slices and claims, if the cluster has the device class of claims; return the lists.

    Nothing is said where it has none, or where it may not be read.
    """
    try:
        items = elements(kubectl.get(DEVICE_CLASSES).get("items"))
    except ApiError as error:
        if not isinstance(error, ApiNotFound) and error.status != _FORBIDDEN:
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


def _take(kept: dict[tuple[str, str], Fields], item: Fields, *, gone: bool = False) -> None:
    """Take over an object as it is now."""
    ref = pod_ref(item)
    kept.pop((ref.namespace, ref.name), None)
    if not gone:
        kept[ref.namespace, ref.name] = item


def _list(kubectl: Kubectl, of: Listed, limit: int) -> Listed:
    """Take over its items, page by page of `limit` items; return the list with its version."""
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
    """Yield what the cluster shows, now and after each change, without end.

    Raises whatever `observe` raises, at the first list or a later one.
    """
    while True:
        observed, listed = observe(kubectl, scope, names)
        yield observed
        with closing(_Streams()) as streams:
            for of in listed:
                watch = kubectl.watch(of.path, **of.query, resourceVersion=of.version)
                streams.start(watch, of.take)
            while streams.gather():
                yield observed
        time.sleep(RELIST_PAUSE)


class _Streams:
    """Watches whose lines arrive in one queue; an empty line is the end of one."""

    def __init__(self) -> None:
        from queue import Empty, SimpleQueue  # the command mostly watches nothing

        self._lines: SimpleQueue[_Line] = SimpleQueue()
        self._no_line = Empty
        self._running: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []

    def start(self, process: "subprocess.Popen[bytes]", take: _Take) -> None:
        """Read the lines that this process prints; `take` gets their objects."""
        assert process.stdout is not None  # noqa: S101  # watch() asked for the pipe
        thread = threading.Thread(target=self._read, args=(process.stdout, take), daemon=True)
        self._running.append((process, thread))
        thread.start()

    def gather(self) -> bool:
        """Return whether a change was taken over (and those right after it); False at the end."""
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
            take(mapping(event.get("object")), gone=kind == "DELETED")
            try:
                take, line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except self._no_line:
                return True

    def close(self) -> None:
        """End the processes."""
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
