"""The devices of DRA drivers and the claims that hold them, as the API server last showed them.

It keeps slices, device classes, taint rules and claims of all drivers, and for each node the value
that first fit needs. An incremental state equals one that is built anew. The devices with memory of
one driver also count in a Ledger, in memory units, with claims as holders. The extender fills the
books by watches, the command line by lists.

Any thread may call; nothing here waits for anything.

Tested in `tests/unit/explain/test_claim_books.py`.
"""

from collections.abc import Iterable, Mapping

from gpushare.core.pairing import Pairing
from gpushare.ledger import Ledger
from gpushare.wire.dra.objects import ClaimsPod, DeviceClass, ResourceClaim, ResourceSlice


class ClaimBooks:
    """The books of claims. driver: whose devices count in the ledger. unit: bytes of a memory unit.

    ledger: the driver's nodes; its pods are claims, one record for each node of a claim, with the
    uid `CLAIM_UID/NODE`. A device that the driver does not offer now (taint, incomplete pool, slice
    gone) is not healthy there.
    """

    def __init__(self, driver: str, unit: int) -> None:
        self.driver = driver
        self.unit = unit
        self.ledger = Ledger(Pairing.OFF)

    # -- what is shown --------------------------------------------------------------------------

    def replace_slices(self, slices: Iterable[ResourceSlice]) -> None:
        """Take over a whole list of slices."""
        raise NotImplementedError

    def slice_changed(self, item: ResourceSlice) -> None:
        """Take over a slice as it is now."""
        raise NotImplementedError

    def slice_gone(self, name: str) -> None:
        """Forget a slice."""
        raise NotImplementedError

    def replace_classes(self, classes: Iterable[DeviceClass]) -> None:
        """Take over a whole list of device classes."""
        raise NotImplementedError

    def replace_claims(self, claims: Iterable[ResourceClaim]) -> None:
        """Take over a whole list of claims."""
        raise NotImplementedError

    def claim_changed(self, claim: ResourceClaim) -> None:
        """Take over a claim as it is now."""
        raise NotImplementedError

    def claim_gone(self, uid: str) -> None:
        """Free the devices of a claim."""
        raise NotImplementedError

    # -- what is known --------------------------------------------------------------------------

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name, as last shown."""
        raise NotImplementedError

    def allocated(self) -> Mapping[str, ResourceClaim]:
        """Return the claims that have devices of the driver, by uid."""
        raise NotImplementedError

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes with devices of any driver."""
        raise NotImplementedError

    def devices(self, node: str) -> object:
        """Return the devices of a node as first fit needs them (core.claims), None if unknown."""
        raise NotImplementedError

    def requests(self, pod: ClaimsPod) -> object:
        """Return the requests of the pod's claims as first fit needs them (core.claims)."""
        raise NotImplementedError

    def holders(self, driver: str, pool: str, device: str) -> tuple[ResourceClaim, ...]:
        """Return the claims that have the device, or a part of it."""
        raise NotImplementedError
