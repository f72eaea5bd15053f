"""What a policy is: a pure judgement of placements.

A policy never decides whether something fits: `Ranking` and `decide` mask what does not. It is an
immutable value made from the workload, the pods that usually come: one file in `policies/` and one
entry point in the group `gpushare.policies`.
"""

from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Request
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import Workload
from gpushare.errors import SettingsError

Taken = npt.NDArray[np.int8]


@runtime_checkable
class Policy(Protocol):
    """How good each placement of a request would be."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value of placing the request there, for the given rows; higher
        is better.

        It depends on the state of the row and on the shapes of the nodes there are, so that it may
        be remembered until the row or any shape changes. For a request of several devices an entry
        is the value of the best whole placement that contains that device, or less where the policy
        would not use the device; of equal entries, those that are better for a single device are
        taken. Entries where the request does not fit are ignored, whatever they hold.
        """


@runtime_checkable
class ClusterPricing(Policy, Protocol):
    """A policy that also puts a price on what is scarce in the whole cluster.

    Each row has a supply of X scarce things, and a placement takes some of it; both depend on the
    row alone and are kept (see `core/cluster_prices.py`). The prices are computed at each
    request from totals, int64 (groups, X): the sums of the supply by `snapshot.group`. For a pod of
    one device the price may differ between a device in use and an idle one: V is 2 (in use, idle),
    else 1.
    """

    def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K, X): what each row has of each scarce thing."""

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return int8 (K, V * Y): what placing the request takes, by the state of the row alone."""

    def group_prices(self, snapshot: Snapshot, request: Request, totals: Ints) -> Floats:
        """Return float64 (groups,): the price of placing the request on a node of each group."""

    def taken_prices(
        self, snapshot: Snapshot, request: Request, taken: Taken, totals: Ints
    ) -> Floats:
        """Return float64 (V, K): the price of what is taken; 0 where a row takes nothing."""


def policy_names() -> tuple[str, ...]:
    """Return the names of all installed policies, sorted."""
    return tuple(sorted(entry.name for entry in entry_points(group="gpushare.policies")))


def load_policy(name: str, workload: Workload | None = None) -> Policy:
    """Return the policy of that name, made for the workload.

    Raises SettingsError when no installed package offers it, or the one that does is broken.
    """
    for entry in entry_points(group="gpushare.policies", name=name):
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


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
