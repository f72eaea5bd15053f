"""The interface of a policy, which scores placements.

A policy never decides whether a request fits: `Ranking` and `decide` mask placements that do not. A
policy is an immutable value made from the workload, the pods that usually come; one file in
`policies/` and one entry point in the group `gpushare.policies`.

Tested in `tests/contract/test_policies.py`.
"""

import sys
from collections.abc import Hashable
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Request
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import Workload
from gpushare.errors import SettingsError

Taken = npt.NDArray[np.int8]

APART = 1e12
"""A policy adds this to the value of a node to rank the node first, or subtracts it: last."""


@runtime_checkable
class Policy(Protocol):
    """A score of how good each placement of a request would be."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value of placing the request there; higher is better.

        The value depends only on the state of the row and on the shapes of all nodes, and is cached
        until the row or any shape changes (see `KeyedByShapes`). For a request of several devices
        an entry is the value of the best whole placement that contains that device, or less if the
        policy would not use the device; of equal entries, the better ones for a single device are
        used. Entries where the request does not fit are ignored.
        """


@runtime_checkable
class KeyedByShapes(Policy, Protocol):
    """A policy that declares the facts it uses of the shapes of other nodes.

    Otherwise all values are computed again whenever a node comes, goes or changes shape.
    """

    def shapes_key(self, snapshot: Snapshot) -> Hashable:
        """Return a key computed from the shapes of all nodes alone.

        While the key stays equal, scores, supply and amounts taken depend only on the row and the
        request.
        """


@runtime_checkable
class ClusterPricing(Policy, Protocol):
    """A policy that also puts prices on scarce goods of the whole cluster.

    Each row has a supply of X scarce goods, and a placement takes Y amounts of the goods; both
    depend only on the row and are cached (see `core/cluster_prices.py`). The prices are computed
    at each request from totals, int64 (groups, X): the sums of the supply by `snapshot.group`. For
    a pod of one device the price may differ between a device in use and an idle one: V is 2 (in
    use, idle), else 1.
    """

    def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K, X): the supply of each scarce good in each row."""

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return int8 (K, V * Y): the amounts that placing the request takes from each row."""

    def group_prices(self, snapshot: Snapshot, request: Request, totals: Ints) -> Floats:
        """Return float64 (groups,): the price of placing the request on a node of each group."""

    def taken_prices(
        self, snapshot: Snapshot, request: Request, amounts: Taken, totals: Ints
    ) -> Floats:
        """Return float64 (V, K): the price of the amounts of each row; 0 if all are 0."""


def policy_names() -> tuple[str, ...]:
    """Return the names of all installed policies, sorted."""
    return tuple(sorted(_installed(tuple(sys.path)).names))


def load_policy(name: str, workload: Workload | None = None) -> Policy:
    """Return the policy of that name, made for the workload.

    Raises SettingsError if no installed package offers the policy, or if that package is broken.
    """
    for entry in _installed(tuple(sys.path)).select(name=name):
        try:
            policy: Policy = entry.load()(workload or Workload())
            if not isinstance(policy, Policy):
                raise TypeError("what it makes has no method score")
        # The module of another package may raise anything, even SystemExit.
        except (Exception, SystemExit) as error:
            text = f"policy {name!r} cannot be loaded from {entry.value}: {_error_text(error)}"
            raise SettingsError(text) from error
        return policy
    raise SettingsError(f"no policy is called {name!r}; there are: {', '.join(policy_names())}")


@cache
def _installed(_path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of all packages on Python's path; reading them takes 10 ms."""
    return entry_points(group="gpushare.policies")


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
