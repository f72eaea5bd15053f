"""The pools of a node, gathered from slices as kube-scheduler gathers them.

Tested in `tests/unit/core/claims/test_pools.py`.
"""

from collections.abc import Collection, Iterable, Mapping

from gpushare.core.claims.model import NodeDevices, Slice, TaintRule


def gather_pools(
    node: str,
    labels: Mapping[str, str],
    slices: Iterable[Slice],
    all_slices: Mapping[tuple[str, str], Collection[Slice]],
    rules: Collection[TaintRule] = (),
) -> NodeDevices:
    """Return the devices that a node can use, in the order of kube-scheduler.

    slices: at least those of this node and those that name no node; slices of other nodes are
    ignored.
    all_slices: all slices of the cluster by (driver, pool), to tell whether a pool is complete.
    rules: taint rules; only devices that a rule taints are copied.
    """
    raise NotImplementedError
