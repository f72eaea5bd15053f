"""Whose cards claims are given, and which they are, as the cluster's slices say.

Knows the list paths and the device class; not what is counted of the cards.

Tested in `tests/unit/cli/test_whatif_claims.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.cli.cluster import items
from gpushare.cli.lister import DEVICE_CLASSES as CLASSES
from gpushare.cli.lister import SLICES
from gpushare.errors import ApiError, ApiNotFound
from gpushare.kube.api import Getter
from gpushare.wire.dra.claims import CLASS, CLASS_ASIDE
from gpushare.wire.dra.objects import DEVICE_CLASSES as CLASS_CODEC
from gpushare.wire.dra.objects import RESOURCE_SLICES
from gpushare.wire.dra.slices import DeviceKey, SliceCard, cards_of

_TIMEOUT = 30.0
_FORBIDDEN = 403
_NO_CLASS = f"there is no DeviceClass {CLASS}"


@dataclass(frozen=True)
class DriverCards:
    """The cards of the driver that serves claims."""

    driver: str = ""
    cards: Mapping[DeviceKey, SliceCard] = field(default_factory=dict)
    why_not: str = ""
    """Why there are none that count, or ""."""
    notes: tuple[str, ...] = ()
    """What could not be read; nothing where nobody uses claims."""

    @property
    def nodes(self) -> frozenset[str]:
        """The driver's nodes."""
        return frozenset(card.node for card in self.cards.values())


def every_card(api: Getter, notes: list[str]) -> dict[DeviceKey, SliceCard]:
    """Return the cards of all drivers, by what names them; what cannot be read is noted."""
    return cards_of(items(api, SLICES, RESOURCE_SLICES, {}, notes))


def list_cards(api: Getter, driver: str) -> DriverCards:
    """Return the cards of this driver; "": of the only one whose cards may be shared."""
    notes: list[str] = []
    try:
        body = api.request("GET", CLASSES, query={}, timeout=_TIMEOUT)
        names = {
            device_class.metadata and device_class.metadata.name
            for device_class in CLASS_CODEC.decode_list(body).items
        }
        if not names & {CLASS, CLASS_ASIDE}:
            return DriverCards(why_not=_NO_CLASS)
        cards = every_card(api, notes)
    except ApiNotFound:
        return DriverCards(why_not=_NO_CLASS)
    except ApiError as error:
        why_not = f"claims are not known: {error}"
        return DriverCards(why_not=why_not, notes=() if error.status == _FORBIDDEN else (why_not,))
    shared = sorted({card.key.driver for card in cards.values() if card.shared})
    if not driver and len(shared) > 1:
        why_not = (
            f"of {' and '.join(shared)} one has to be named by --claims: whose cards are given"
        )
        return DriverCards(why_not=why_not, notes=(f"claims do not count: {why_not}",))
    driver = driver or next(iter(shared), "")
    if driver not in shared:
        whose = f"of {driver} that" if driver else "that"
        return DriverCards(driver, why_not=f"no slice has a card {whose} several claims may share")
    own = {key: card for key, card in cards.items() if key.driver == driver}
    return DriverCards(driver, own, notes=tuple(notes))
