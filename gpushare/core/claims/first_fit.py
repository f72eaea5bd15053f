"""Model of the structured allocator of kube-scheduler 1.37: the devices that it takes on a node.

kube-scheduler takes the first devices that fit, in the order of pools, slices and devices. This is
a search with backtracking like the one of k8s.io/dynamic-resource-allocation/structured 0.37 with
the features that are on by default. `tests/e2e/test_first_fit.py` compares both.

Pure: no clock, no I/O. Tested in `tests/unit/core/claims/test_first_fit.py`.
"""

from collections.abc import Callable

from gpushare.core.claims.model import (
    Device,
    Fit,
    NodeDevices,
    NoFit,
    PodClaims,
    Use,
)

Matcher = Callable[[tuple[str, ...], Device], bool]
"""Tells whether all of some CEL expressions are true of a device."""


class Steps:
    """Upper bound on the steps of first fit, for one node or for several together."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        """Allow so many steps; one is a try of one device, about 1 us."""
        self.left = left


def first_fit(
    node: NodeDevices, claims: PodClaims, use: Use, matches: Matcher, steps: Steps
) -> Fit | NoFit:
    """Return the devices that kube-scheduler would allocate for the claims on a node.

    use: devices that allocated claims hold; it may name devices of other nodes.
    steps: lowered by the steps of the search; once none is left the answer is NOT_MODELLED.
    """
    raise NotImplementedError


def use_after(use: Use, fit: Fit) -> Use:
    """Return the use of devices once the claims hold the devices of a fit."""
    raise NotImplementedError
