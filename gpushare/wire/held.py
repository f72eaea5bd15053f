"""Places that filter keeps for pods that are not bound yet, as documents have them.

Knows the keys, which are a promise (docs/inspect.md, docs/explain.md). Standard library only: the
kubectl plug-in reads the documents too.

Tested in `tests/unit/wire/test_held.py`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gpushare.core.amounts import COMPUTE, PERCENT_AMOUNTS, Percents, by_name, percents_of
from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.inventory import mib_of


@dataclass(frozen=True, slots=True)
class HeldPlace:
    """A place that filter keeps for a pod that is not bound yet."""

    pod: PodRef
    node: str
    units: int
    """On each of the devices."""
    devices: int
    """How many devices of the node."""
    until: float | None = None
    """The end of the hold, in seconds since the epoch; None while kube-scheduler nominates the pod.
    For a reservation when the devices are expected to be free."""
    percents: Percents = ()
    """Percent of each amount on each of the devices."""
    split: tuple[int, ...] = ()
    """The units on each device of an uneven split, the largest first."""
    reserved_since: float | None = None
    """The begin of a reservation, in seconds since the epoch; None: no reservation."""

    @property
    def cores(self) -> int:
        """Percent of the compute of each of the devices."""
        return by_name(self.percents).get(COMPUTE.name, 0)

    @property
    def until_text(self) -> str:
        """The end of the hold, for people."""
        if self.until is None:
            return "kube-scheduler binds it or gives it up"
        until = _moment(self.until)
        if self.reserved_since is None:
            return f"{until:%H:%M:%S} UTC"
        since = _moment(self.reserved_since)
        form = "%H:%M:%S UTC" if since.date() == until.date() else "%Y-%m-%d %H:%M:%S UTC"
        return f"it is bound; reserved since {since:{form}}, expected to be free at {until:{form}}"


def held_document(place: HeldPlace) -> dict[str, Any]:
    """Return the JSON object of one place, with a key such as `cores` for each requested amount in
    percent, `split` for an uneven split, and `reservedSince` for a reservation.
    """
    return {
        "pod": asdict(place.pod),
        "node": place.node,
        "units": place.units,
        "devices": place.devices,
        **by_name(place.percents),
        **({"split": list(place.split)} if place.split else {}),
        "until": _stamp(place.until),
        **({"reservedSince": _stamp(place.reserved_since)} if place.reserved_since else {}),
    }


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(round(seconds), UTC)


def _stamp(seconds: float | None) -> str | None:
    return None if seconds is None else f"{_moment(seconds):%Y-%m-%dT%H:%M:%SZ}"


def _seconds(stamp: str | None) -> float | None:
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()


def encode_held(unit: str, places: Mapping[str, Iterable[HeldPlace]]) -> bytes:
    """Return the document of all places, by managed resource."""
    resources = [
        {"resource": resource, "held": [held_document(place) for place in held_places]}
        for resource, held_places in places.items()
    ]
    return json.dumps({"unit": unit, "resources": resources}).encode()


def decode_held(body: bytes, resource: str, unit: str) -> tuple[HeldPlace, ...]:
    """Return the places of one managed resource in this unit, rounded up.

    Raises MessageError for any other document, and for one without the resource.
    """
    try:
        document = json.loads(body)
        document_mib = mib_of(document["unit"])
        resource_item = next(item for item in document["resources"] if item["resource"] == resource)
        return tuple(_place(place, document_mib, mib_of(unit)) for place in resource_item["held"])
    except StopIteration:
        raise MessageError(f"tells nothing of {resource}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MessageError("has an answer that is no list of places") from error


def _place(item: Mapping[str, Any], document_mib: int, unit_mib: int) -> HeldPlace:
    pod = item["pod"]
    return HeldPlace(
        pod=PodRef(str(pod["namespace"]), str(pod["name"]), str(pod["uid"])),
        node=str(item["node"]),
        units=-(-int(item["units"]) * document_mib // unit_mib),
        devices=int(item["devices"]),
        until=_seconds(item["until"]),
        percents=percents_of(int(item.get(amount.name, 0)) for amount in PERCENT_AMOUNTS),
        split=tuple(-(-int(units) * document_mib // unit_mib) for units in item.get("split", ())),
        reserved_since=_seconds(item.get("reservedSince")),
    )
