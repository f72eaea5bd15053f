"""A cache of the devices that pairing allows to each kind of request, for all rows.

Only changed rows are computed again: pins come and go with the charges of pods (see pairing.py).

Tested in `tests/unit/core/test_paired_rows.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Request
from gpushare.core.pairing import paired_devices

if TYPE_CHECKING:
    from gpushare.core.snapshot import Snapshot

_KINDS = 16
"""Upper bound of the cached kinds of request: some 50 KiB each for 5,000 nodes."""

_Kind = tuple[frozenset[int], int]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The devices that one kind of request may use, for one generation; immutable."""

    generation: int
    limited: npt.NDArray[np.bool_]
    """(N,), rows in which pairing excludes devices."""
    devices: npt.NDArray[np.bool_]
    """(N, D), the devices that pairing allows."""


class PairedRows:
    """The cache that snapshots of the same arrays share.

    Any thread may call the methods: entries are immutable, and replaced whole.
    """

    def __init__(self) -> None:
        self._kept: dict[_Kind, _Allowed] = {}

    def devices(self, snapshot: "Snapshot", request: Request) -> npt.NDArray[np.bool_] | None:
        """Return bool (N, D), the devices that pairing allows; None if pairing allows all."""
        kind = request.sizes, request.devices
        cached = self._kept.pop(kind, None)
        if cached is None or cached.devices.shape[1] != snapshot.capacity.shape[1]:
            cached = None
        if cached is not None and cached.generation > snapshot.generation:
            # A thread still uses an earlier snapshot: keep the newer entry.
            self._keep(kind, cached)
            return _result(_compute_allowed(None, snapshot, request))
        if cached is None or cached.generation != snapshot.generation:
            cached = _compute_allowed(cached, snapshot, request)
        self._keep(kind, cached)
        return _result(cached)

    def _keep(self, kind: _Kind, entry: _Allowed) -> None:
        self._kept[kind] = entry
        for old in list(self._kept)[:-_KINDS]:
            self._kept.pop(old, None)


def _result(entry: _Allowed) -> npt.NDArray[np.bool_] | None:
    return entry.devices if entry.limited.any() else None


def _compute_allowed(cached: _Allowed | None, snapshot: "Snapshot", request: Request) -> _Allowed:
    """Return the allowed devices; with a cached entry only changed rows are computed again."""
    shape, pinned = snapshot.capacity.shape, snapshot.pinned
    limited, devices = np.zeros(shape[0], dtype=bool), np.ones(shape, dtype=bool)
    rows: Sequence[int] = list(pinned)
    if cached is not None:
        limited[: len(cached.limited)] = cached.limited
        devices[: len(cached.devices)] = cached.devices
        changed_rows = snapshot.changed_since(cached.generation)
        limited[changed_rows], devices[changed_rows] = False, True
        rows = [row for row in changed_rows.tolist() if row in pinned]
    for row in rows:
        allowed_devices = paired_devices(pinned[row], request)
        if allowed_devices is not None:
            limited[row], devices[row] = True, False
            devices[row, [device for device in allowed_devices if device < shape[1]]] = True
    devices.flags.writeable = False
    return _Allowed(snapshot.generation, limited, devices)
