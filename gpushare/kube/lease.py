"""The Lease document, and the actions of an elector: bytes and values, no calls, no clock.

Knows `coordination.k8s.io/v1` Leases as kube-scheduler's leader election writes them. Times in the
document are the writer's wall clock; who may lead is decided by the local monotonic clock.

Tested in `tests/unit/kube/test_election.py`.
"""

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpushare.errors import WireError

NEVER = float("-inf")

RELEASED_DURATION = 1.0
"""The duration that its holder writes as it gives a Lease away, as client-go does."""

_UNREADABLE = (
    *(ValueError, TypeError, KeyError, AttributeError, RecursionError),
    OverflowError,  # a number too large for a float, or infinite if a whole one belongs
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as read or to be written: who holds it, for how many seconds after a renewal, and the
    document it came from, whose other fields a PUT must give back.

    `renewed` and `acquired` are the document's texts, compared but, for leading, never computed
    with.
    """

    holder: str
    duration: float
    acquired: str
    renewed: str
    transitions: int
    uid: str
    version: str
    document: bytes

    def same_term(self, other: "Lease") -> bool:
        """Return whether the Lease was not renewed, taken, released or edited between the two."""
        return replace(self, document=b"") == replace(other, document=b"")

    def transitions_since(self, other: "Lease") -> float:
        """Return how often the holder changed since the other was read; infinity if the Lease was
        deleted and made again: then its transitions count from 0.
        """
        return self.transitions - other.transitions if self.uid == other.uid else math.inf

    @property
    def released(self) -> bool:
        """Whether its last holder released it; one that was removed by hand may still lead."""
        return not self.holder and self.duration == RELEASED_DURATION

    def held_by(self, holder: str, wall: float, duration: float) -> bytes:
        """Return the document to PUT: `holder` ("" releases) holds it from now on.

        It names the resourceVersion read, so that the API server refuses it (409) when somebody
        else wrote meanwhile. A change of holder counts as a transition, as client-go counts it.
        """
        document: dict[str, Any] = json.loads(self.document)
        now = stamp(wall)
        spec = {**(document.get("spec") or {})}
        if holder and holder != self.holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = self.transitions + 1
        spec["holderIdentity"] = holder
        spec["leaseDurationSeconds"] = max(1, math.ceil(duration))
        spec["renewTime"] = now
        return json.dumps({**document, "spec": spec}).encode()


def new_lease(namespace: str, name: str, holder: str, wall: float, duration: float) -> bytes:
    """Return the document of a Lease to POST."""
    now = stamp(wall)
    document = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": max(1, math.ceil(duration)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        },
    }
    return json.dumps(document).encode()


def read_lease(body: bytes) -> Lease:
    """Return the Lease in an answer. Raises WireError if it cannot be one."""
    try:
        document: dict[str, Any] = json.loads(body)
        if document.get("kind") != "Lease":
            raise ValueError("of another kind")
        spec = document.get("spec") or {}
        duration = float(spec.get("leaseDurationSeconds") or 0)
        if not math.isfinite(duration):
            raise ValueError("leaseDurationSeconds")
        return Lease(
            holder=str(spec.get("holderIdentity") or ""),
            duration=duration,
            acquired=str(spec.get("acquireTime") or ""),
            renewed=str(spec.get("renewTime") or ""),
            transitions=int(spec.get("leaseTransitions") or 0),
            uid=str(document["metadata"].get("uid") or ""),
            version=str(document["metadata"]["resourceVersion"]),
            document=body,
        )
    except _UNREADABLE as error:
        raise WireError(f"Lease: not readable ({type(error).__name__}: {error})") from error


def seconds_of(stamp: str) -> float:
    """Return the wall seconds of a time in a Lease; not a number if it is no time."""
    try:
        when = datetime.fromisoformat(stamp)
    except ValueError:
        return float("nan")
    return when.timestamp() if when.tzinfo else float("nan")


def stamp(wall: float) -> str:
    """Return a MicroTime, which always has six digits of a second."""
    return datetime.fromtimestamp(wall, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for these seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Read:
    """GET the Lease; answer with `on_lease` (None: there is none) or `on_error`."""


@dataclass(frozen=True, slots=True)
class Create:
    """POST it; answer with `on_written` or `on_error`."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Update:
    """PUT it; answer with `on_written` or `on_error`."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """Stop: nothing more is to be done."""


Action = Wait | Read | Create | Update | Done


@dataclass(frozen=True, slots=True)
class Term:
    """Leading from `begin`, when all that an earlier leader sent has surely landed, to `end`."""

    begin: float = NEVER
    end: float = NEVER

    def until(self, now: float) -> float:
        """Return until when this process may bind; not later than `now` when it may not."""
        return self.end if now >= self.begin else NEVER
