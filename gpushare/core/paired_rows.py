"""On which devices of each row pairing lets a request, kept by kind of request.

A row is looked at again when it has changed: pins come and go with the charges of their pods. Knows
what a snapshot shows of pins (see pairing.py). Tested in `tests/unit/core/test_paired_rows.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Pinned, Request
from gpushare.core.pairing import paired_devices

_KINDS = 16
"""Kinds of request that are kept: some 50 KiB each for 5,000 nodes."""

_Kind = tuple[frozenset[int], int]


class Pinning(Protocol):
    """What is read of a Snapshot."""

    @property
    def generation(self) -> int:
        """Rises with every change."""

    @property
    def capacity(self) -> npt.NDArray[np.int64]:
        """Units, (N, D)."""

    @property
    def pinned(self) -> Mapping[int, tuple[Pinned, ...]]:
        """The pins by row."""

    def changed_since(self, generation: int) -> npt.NDArray[np.intp]:
        """Return the rows that changed after that generation."""


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Where one kind of request may go, for one generation; immutable."""

    generation: int
    limited: npt.NDArray[np.bool_]
    """(N,), rows on which pairing excludes devices."""
    devices: npt.NDArray[np.bool_]
    """(N, D), the devices that pairing leaves."""


class PairedRows:
    """What snapshots of the same arrays share. Any thread may ask: entries are replaced whole."""

    def __init__(self) -> None:
        self._kept: dict[_Kind, _Allowed] = {}

    def devices(self, snapshot: Pinning, request: Request) -> npt.NDArray[np.bool_] | None:
        """Return bool (N, D), the devices that pairing leaves; None if that is all of them."""
        if not snapshot.pinned or not request.devices:
            return None
        kind = request.sizes, request.devices
        kept = self._kept.pop(kind, None)
        if kept is None or kept.devices.shape[1] != snapshot.capacity.shape[1]:
            kept = None
        if kept is not None and kept.generation > snapshot.generation:
            # Of an earlier snapshot, which somebody still holds.
            self._keep(kind, kept)
            return _result(_judged(None, snapshot, request))
        if kept is None or kept.generation != snapshot.generation:
            kept = _judged(kept, snapshot, request)
        self._keep(kind, kept)
        return _result(kept)

    def _keep(self, kind: _Kind, allowed: _Allowed) -> None:
        self._kept[kind] = allowed
        for old in list(self._kept)[:-_KINDS]:
            self._kept.pop(old, None)


def _result(allowed: _Allowed) -> npt.NDArray[np.bool_] | None:
    return allowed.devices if allowed.limited.any() else None


def _judged(kept: _Allowed | None, snapshot: Pinning, request: Request) -> _Allowed:
    """Return where the request may go; of what was kept only rows that have changed are new."""
    shape, pinned = snapshot.capacity.shape, snapshot.pinned
    limited, devices = np.zeros(shape[0], dtype=bool), np.ones(shape, dtype=bool)
    rows: Sequence[int] = list(pinned)
    if kept is not None:
        limited[: len(kept.limited)] = kept.limited
        devices[: len(kept.devices)] = kept.devices
        changed = snapshot.changed_since(kept.generation)
        limited[changed], devices[changed] = False, True
        rows = [row for row in changed.tolist() if row in pinned]
    for row in rows:
        allowed = paired_devices(pinned[row], request)
        if allowed is not None:
            limited[row], devices[row] = True, False
            devices[row, [device for device in allowed if device < shape[1]]] = True
    devices.flags.writeable = False
    return _Allowed(snapshot.generation, limited, devices)
