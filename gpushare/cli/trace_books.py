"""A table of nodes, as `gpushare simulate` reads it, as a managed resource with its ledger.

Tested in `tests/unit/cli/test_whatif.py`.
"""

from collections.abc import Iterable
from pathlib import Path

from gpushare.cli.listed_cluster import ListedResource
from gpushare.core.model import MAX_UNITS, NodeSpec
from gpushare.errors import SettingsError
from gpushare.ledger import Ledger
from gpushare.trace.nodes_and_pods import MIB, TraceNode, read_nodes
from gpushare.wire.annotations import Names

_BARE = (
    "the file of nodes has no pods that run or wait, no labels and no taints; times of pods do not"
    " count"
)


def resource_of_nodes(path: str, names: Names, unit: str, policy: str) -> ListedResource:
    """Return the resource that the nodes of a file share. Raises TraceError, SettingsError."""
    ledger = Ledger()
    ledger.replace_nodes(_specs(read_nodes(Path(path)), path))
    return ListedResource(names, ledger, unit, policy, [_BARE])


def _specs(nodes: Iterable[TraceNode], path: str) -> Iterable[NodeSpec]:
    for node in nodes:
        sizes = node.sizes[: node.devices]
        if max(sizes, default=0) > MAX_UNITS:
            raise SettingsError(f"{path}: {node.name}: a device has at most {MAX_UNITS} units")
        count = len(sizes)
        yield NodeSpec(
            node.name,
            sizes,
            (True,) * count,
            (node.model,) * count,
            ("",) * count,
            node.cpu,
            node.memory * MIB,
            serves_by_identity=True,
        )
