"""Moves of pods: the eviction, the pod that replaces the evicted one, the record of the last hour.

A ConfigMap has the record for all processes that move pods. The leading extender records each
eviction before the request, and so does `gpushare defrag --apply`, by a write with the
resourceVersion of the read. So the budget of an hour is kept across leaders, two processes cannot
both spend the last move, and each process knows that an eviction of another process may be under
way.

Tested in `tests/unit/wire/test_move_record.py`, `tests/unit/cli/test_defrag_apply.py` and
`tests/unit/extender/moves/test_mover.py`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from msgspec import structs

from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.demands import demands_of
from gpushare.wire.fields import MAX_NAME_LENGTH
from gpushare.wire.groups import GROUP_ANNOTATIONS
from gpushare.wire.kept import MOVES
from gpushare.wire.objects import Container, Metadata, Owner, Pod, PodSpec, controller_of

SETTLES = 300.0
"""Seconds after which an eviction without a recorded end counts as settled."""

_MOST_LABELS, _MOST_TEXT = 100, 8 * 1024
"""Upper bounds of the labels of a pod that may be moved, and of their characters."""
_HOUR = 3600.0
_KEY = "moves"


def eviction(ref: PodRef, version: str) -> dict[str, Any]:
    """Return the Eviction of this pod, with uid and resourceVersion as preconditions."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "deleteOptions": {"preconditions": {"uid": ref.uid, "resourceVersion": version}},
    }


def may_succeed(pod: Pod, owner: Owner, name: str) -> bool:
    """Return whether the owner may have created the pod to replace the pod of that name."""
    if owner.kind == "StatefulSet" and (pod.metadata or Metadata()).name != name:
        return False
    return (controller_of(pod) or Owner()).uid == owner.uid


def kept_owned(pod: Pod, annotation: str) -> Pod | None:
    """Return the pod with the fields that decide whether the pod may be moved; None if the fields
    are larger than the bounds: such a pod is not moved. annotation: the owner's permission.
    """
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    texts = sum(len(key) + len(value) for key, value in labels.items())
    if len(labels) > _MOST_LABELS or texts > _MOST_TEXT or not demands_of(pod).is_complete:
        return None
    # One reason to stay is enough.
    ports = (port for container in spec.containers or () for port in container.ports or ())
    port = next((port for port in ports if port.host_port), None)
    volumes = (
        volume
        for volume in spec.volumes or ()
        if volume.host_path or volume.persistent_volume_claim or volume.ephemeral
    )
    kept_keys = annotations.keys() & {annotation, *GROUP_ANNOTATIONS}
    controller = controller_of(pod)
    return Pod(
        structs.replace(
            metadata,
            annotations={key: annotations[key][:MAX_NAME_LENGTH] for key in kept_keys},
            owner_references=[controller] if controller else [],
        ),
        structs.replace(
            spec,
            containers=[] if port is None else [Container(ports=[port])],
            init_containers=None,
            overhead=None,
            resources=None,
            volumes=[*islice(volumes, 1)],
            resource_claims=(spec.resource_claims or [])[:1],
            topology_spread_constraints=(spec.topology_spread_constraints or [])[:1],
        ),
        pod.status and structs.replace(pod.status, resource_claim_statuses=None),
    )


@dataclass(frozen=True, slots=True)
class SentEviction:
    """An eviction that was sent."""

    at: float
    """Seconds since the epoch."""
    uid: str
    pod: str
    settled: bool = False
    """The end of the eviction is known."""


@dataclass(frozen=True, slots=True)
class MoveRecord:
    """The moves, the oldest first."""

    moves: tuple[SentEviction, ...] = ()
    version: str = ""
    """The resourceVersion of the read ConfigMap; "": there is no ConfigMap."""

    def moves_left(self, budget: int, now: float) -> int:
        """Return the number of further moves that the budget of an hour allows now."""
        return max(budget - len(self._last_hour(now)), 0)

    def under_way(self, now: float) -> SentEviction | None:
        """Return an eviction that may not have ended; None without one."""
        going = (move for move in self.moves if not move.settled and move.at > now - SETTLES)
        return next(going, None)

    def sent(self, uid: str, pod: str, now: float) -> "MoveRecord":
        """Return the record with one more eviction."""
        return replace(self, moves=(*self._last_hour(now), SentEviction(now, uid, pod)))

    def settled(self, uid: str) -> "MoveRecord":
        """Return the record with the end of the eviction of this uid."""
        moves = (replace(move, settled=True) if move.uid == uid else move for move in self.moves)
        return replace(self, moves=tuple(moves))

    def withdrawn(self, uid: str) -> "MoveRecord":
        """Return the record without the eviction of this uid: the API server has refused the
        eviction.

        A settled one stays: another process has moved that pod before.
        """
        remaining = (move for move in self.moves if move.uid != uid or move.settled)
        return replace(self, moves=tuple(remaining))

    def document(self) -> dict[str, Any]:
        """Return the ConfigMap."""
        moves = [
            {"at": move.at, "uid": move.uid, "pod": move.pod, "settled": move.settled}
            for move in self.moves
        ]
        metadata = {"name": MOVES} | ({"resourceVersion": self.version} if self.version else {})
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return document | {"data": {_KEY: json.dumps(moves)}}

    def _last_hour(self, now: float) -> tuple[SentEviction, ...]:
        return tuple(move for move in self.moves if move.at > now - _HOUR)


def read_record(body: bytes, now: float) -> MoveRecord:
    """Return the record in the API server's answer. Raises MessageError as `record_of` does."""
    try:
        document = json.loads(body)
    except ValueError as error:
        raise _unread(error) from error
    return record_of(document, now)


def record_of(document: Mapping[str, Any], now: float) -> MoveRecord:
    """Return the record in a ConfigMap; a move in the future counts as a move of now.

    Raises MessageError for an unreadable record: the spent budget is unknown then.
    """
    try:
        entries = json.loads((document.get("data") or {}).get(_KEY, "[]"))
        moves = tuple(
            SentEviction(
                min(float(move["at"]), now), move["uid"], move["pod"], bool(move["settled"])
            )
            for move in entries
        )
        return MoveRecord(moves, str(document["metadata"]["resourceVersion"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unread(error) from error


def _unread(error: Exception) -> MessageError:
    return MessageError(f"ConfigMap {MOVES} cannot be read; delete it: {error!r}")
