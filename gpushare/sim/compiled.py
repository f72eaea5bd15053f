"""The arguments of compiled loops, and the compiler if it is installed.

numba (extra `fast`) compiles the loops of a simulation. Without it the same source runs, slowly,
and simulations use the arrays of the policies instead.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gpushare.core.snapshot import Bools, Floats, Ints

_Function = TypeVar("_Function", bound=Callable[..., object])

try:
    from numba import config, njit
except ImportError:
    COMPILED = False

    def compiled(function: _Function) -> _Function:
        """Return the function as it is."""
        return function
else:
    COMPILED = not config.DISABLE_JIT  # type: ignore[attr-defined]  # numba sets it on import

    def compiled(function: _Function) -> _Function:
        """Return the function, compiled when it is first called."""
        try:
            made = njit(cache=True)(function)
        except RuntimeError:  # neither beside the modules nor at home can anything be written
            made = njit(function)
        return cast(_Function, made)


class State(NamedTuple):
    """The arrays of a Snapshot; model: int64 (N,) the index of each node's, the last for none."""

    free: Ints
    capacity: Ints
    cpu_free: Ints
    memory_free: Ints
    cpu_only: Ints
    cpu_capacity: Ints
    model: Ints
    kinds: npt.NDArray[np.int16]


class Typical(NamedTuple):
    """The tables of Fragmentation; many: by size, line and number of devices with that room."""

    cpus: Ints
    sizes: Ints
    base: Ints
    barred: Ints
    small: Ints
    many_sizes: Ints
    many: Ints
    pods: int


class Prices(NamedTuple):
    """The tables of ShadowPrice; for fgd only `even` and `capacity`, with an empty `left`."""

    even: float
    capacity: Ints
    steps: Ints
    worth_at: Ints
    worth: Floats
    left_at: Ints
    left: Floats
    alpha: float
    mu: float
    drain: float
    hold: float


class Blocks(NamedTuple):
    """The blocks of Scarcity."""

    devices: Ints
    cpu: Ints
    memory: Ints
    accepted: Ints


class World(NamedTuple):
    """Everything that a score depends on, besides the request."""

    state: State
    typical: Typical
    prices: Prices
    blocks: Blocks


class RequestArrays(NamedTuple):
    """A request; accepted: bool by model, the last for none."""

    units: int
    devices: int
    cpu: int
    memory: int
    accepted: Bools


class KindScores(NamedTuple):
    """The kept scores of a kind, as in a Ranking; changed in place.

    best, devices: (V, N). taken: (N, V * Y). touched: (N,) whether anything is taken.
    """

    best: Floats
    devices: npt.NDArray[np.int16]
    taken: npt.NDArray[np.int8]
    touched: Bools


class Supply(NamedTuple):
    """What Scarcity computes its prices from.

    by_row: the supply of each row, totals: the sums by group; both are changed in place.
    """

    needs: Floats
    needed: Bools
    share: Floats
    units: Ints
    alone: Bools
    largest: int
    group: npt.NDArray[np.int32]
    row_generation: Ints
    by_row: Ints
    totals: Ints


class WantedKind(NamedTuple):
    """A kind of request with its kept scores and the arrays of `ranking.Scores`.

    weight: of blocks, weights: of a device by group. values, by_state: changed in place.
    """

    request: RequestArrays
    scores: KindScores
    weight: float
    weights: Floats
    values: Floats
    by_state: Floats
