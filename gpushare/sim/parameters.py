"""Parameters of experiments. The help of the command imports this module, so it imports little.

Tested in `tests/unit/sim/test_main_options.py`.
"""

from dataclasses import dataclass

KNOWN, LEARNED = "known", "learned"
"""The pods that a policy is made for: all pods of the file, or the pods that have come so far."""

TRAINING, SERVICES = "training", "services"
"""The kinds of interference."""


@dataclass(frozen=True, slots=True)
class Defrag:
    """When and how many pods are moved."""

    k: int = 3
    """Upper bound of the moves for one waiting pod."""
    every: int = 20
    """Departures from one search for moves to the next."""

    def __str__(self) -> str:
        """Return the words of the command line."""
        return f"k={self.k},every={self.every}"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of an experiment."""

    load: float = 1.0
    """GPU that would be held on average if no pod were refused, as a share of the capacity."""
    life: float = 6.0
    """Duration in mean lifetimes."""
    warmup: float = 2.0
    """Begin of the measurement in mean lifetimes."""
    wait: bool = False
    """Whether pods that fit nowhere wait, first come first served, instead of being lost."""
    speed: float = 1.0
    """Factor of the rate of arrivals in a replay, compared with the file."""
    workload: str = LEARNED
    """LEARNED: the policy learns from the pods that come, as in the extender. KNOWN: the policy is
    made for all pods of the file."""
    interference: str = ""
    """TRAINING: pods that share a device slow each other down, and stay longer. SERVICES: they are
    slowed down, and stay as long. "": pods do not slow each other down."""
    neighbours: int = 0
    """The limit of neighbours, as --neighbours of the extender; 0: none."""
    reserve_after: float = 0.0
    """The time that a pod waits before a node is reserved for it, in mean lifetimes, in a replay in
    seconds; 0: never."""
    pool: bool = False
    """Whether nodes join when a pod fits on no other one, and leave when they are empty."""
    picture: bool = False
    """Whether the record has the used units of each device at the end."""
    defrag: Defrag | None = None
    """How pods are moved for waiting pods; None: no moves."""
