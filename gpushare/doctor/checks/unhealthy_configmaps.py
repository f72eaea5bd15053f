"""Checks of the ConfigMaps that close devices: each must name devices that exist.

Pure. What one says is read by the codec that the extender uses.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator, Sequence

from gpushare.doctor.facts import ClosedSeen, Facts, NodeSeen, Unread
from gpushare.doctor.finding import Finding, count, fail, ok, some, warn

_NAME = "closed-devices"


def check_unhealthy_configmaps(facts: Facts) -> Iterator[Finding]:
    """Yield the finding about these ConfigMaps."""
    closed, prefix = facts.closed, facts.names.unhealthy
    if isinstance(closed, Unread):
        yield closed.finding(_NAME)
        return
    broken = {prefix + one.node: one.broken for one in closed if one.broken}
    if broken:
        yield fail(
            _NAME,
            f"ConfigMap {some(broken)}: cannot be read ({broken[min(broken)]}), so devices it means"
            " may be open",
            'write indices or uuids and commas under the key gpus, as in gpus: "0,2"; "" opens all',
        )
        return
    misplaced = {} if isinstance(facts.nodes, Unread) else _misplaced(closed, facts.nodes)
    if misplaced:
        yield warn(
            _NAME,
            f"ConfigMap {some(prefix + node for node in misplaced)}: {misplaced[min(misplaced)]}",
            f"correct it, or delete it; its name is {prefix}NODE",
        )
        return
    devices = sum(len(one.devices) for one in closed)
    nodes = sum(bool(one.devices) for one in closed)
    where = f" on {count(nodes, 'node')}" if devices else ""
    yield ok(_NAME, f"{count(devices, 'device')} closed by ConfigMaps{where}")


def _misplaced(closed: Sequence[ClosedSeen], nodes: Sequence[NodeSeen]) -> dict[str, str]:
    """Return, by node, the devices that its ConfigMap names and that do not exist."""
    specs = {node.name: node.spec for node in nodes}
    found = {}
    for one in closed:
        spec = specs.get(one.node)
        if spec is None:
            found[one.node] = f"there is no node {one.node}"
        # A node that is closed as a whole has no known devices.
        elif spec.capacity:
            there = {*range(len(spec.capacity)), *spec.uuids}
            if beyond := sorted(map(str, one.devices - there)):
                found[one.node] = f"{one.node} has no device {beyond[0]}"
    return found
