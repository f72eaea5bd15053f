"""What a policy is: a pure judgement of placements.

A policy never decides whether something fits: `decide` masks what does not. It is an immutable
value, one file in `policies/` and one entry point in the group `gpushare.policies`.
"""

from importlib.metadata import entry_points
from typing import Protocol

from gpushare.core.model import Request
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.errors import SettingsError


class Policy(Protocol):
    """How good each placement of a request would be."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D): the value of placing the request there, for the given rows; higher is
        better.

        It depends on the state of the row alone, so that it may be remembered until the row
        changes. For a request of several devices an entry is the value of the best whole placement
        that contains that device; of equal entries, those that are better for a single device are
        taken. Entries where the request does not fit are ignored, whatever they hold.
        """


def policy_names() -> tuple[str, ...]:
    """The names of all installed policies, sorted."""
    return tuple(sorted(entry.name for entry in entry_points(group="gpushare.policies")))


def load_policy(name: str) -> Policy:
    """The policy of that name.

    Raises SettingsError when no installed package offers it.
    """
    for entry in entry_points(group="gpushare.policies", name=name):
        policy: Policy = entry.load()()
        return policy
    raise SettingsError(f"no policy is called {name!r}; there are: {', '.join(policy_names())}")
