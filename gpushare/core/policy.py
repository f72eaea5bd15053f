"""The interface of a policy, which scores placements.

A policy never decides whether something fits: `Ranking` and `decide` mask what does not. It is an
immutable value made from the workload, the pods that usually come. A policy is one file in
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
"""What a policy adds to the value of a node, or takes from it, to rank it before or after all
others."""


@runtime_checkable
class Policy(Protocol):
    """A score of how good each placement of a request would be."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value of placing the request there; higher is better.

        It depends only on the state of the row and on the shapes of all nodes, so that it may be
        remembered until the row or any shape changes (see `KeyedByShapes`). For a request of
        several devices an entry is the value of the best whole placement that contains that device,
        or less if the policy would not use the device; of equal entries, those that are better for
        a single device are taken. Entries where the request does not fit are ignored.
        """


class IgnoresHost(Protocol):
    """A policy that says whether it reads CPU and memory of requests; else it is taken to do so."""

    ignores_host: bool
    """If true, equal scores are kept once for requests that differ in CPU and memory alone."""


@runtime_checkable
class KeyedByShapes(Policy, Protocol):
    """A policy that says what it takes from the shapes of other nodes.

    Without this, all values are computed again whenever a node comes, goes or changes its shape.
    """

    def shapes_key(self, snapshot: Snapshot) -> Hashable:
        """Return a value; while it is equal, scores, supply and what placements take depend only on
        the row and the request. It depends only on the shapes of all nodes.
        """


@runtime_checkable
class ClusterPricing(Policy, Protocol):
    """A policy that also puts a price on what is scarce in the whole cluster.

    Each row has a supply of X scarce things, and a placement takes Y amounts of them; both depend
    only on the row and are remembered (see `core/cluster_prices.py`). The prices are computed at
    each request from totals, int64 (groups, X): the sums of the supply by `snapshot.group`. For a
    pod of one device the price may differ between a device in use and an idle one: V is 2 (in use,
    idle), else 1.
    """

    def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K, X): how much of each scarce thing each row has."""

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return int8 (K, V * Y): what placing the request takes from each row."""

    def group_prices(self, snapshot: Snapshot, request: Request, totals: Ints) -> Floats:
        """Return float64 (groups,): the price of placing the request on a node of each group."""

    def taken_prices(
        self, snapshot: Snapshot, request: Request, taken: Taken, totals: Ints
    ) -> Floats:
        """Return float64 (V, K): the price of what is taken; 0 for a row from which nothing is."""


def policy_names() -> tuple[str, ...]:
    """Return the names of all installed policies, sorted."""
    return tuple(sorted(_installed(tuple(sys.path)).names))


def load_policy(name: str, workload: Workload | None = None) -> Policy:
    """Return the policy of that name, made for the workload.

    Raises SettingsError if no installed package offers it, or if that package is broken.
    """
    for entry in _installed(tuple(sys.path)).select(name=name):
        try:
            policy: Policy = entry.load()(workload or Workload())
            if not isinstance(policy, Policy):
                raise TypeError("what it makes has no method score")
        # Another package's module may raise whatever it likes, or end the program.
        except (Exception, SystemExit) as error:
            text = f"policy {name!r} cannot be loaded from {entry.value}: {_error_text(error)}"
            raise SettingsError(text) from error
        return policy
    raise SettingsError(f"no policy is called {name!r}; there are: {', '.join(policy_names())}")


@cache
def _installed(_path: tuple[str, ...]) -> EntryPoints:
    """Return what the packages on Python's path offer: to read it of all packages takes 10 ms."""
    return entry_points(group="gpushare.policies")


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
