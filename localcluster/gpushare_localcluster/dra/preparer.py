"""Prepared claims of this node: one CDI file per claim, until the end of the last pod.

The files are the only state, so that a restarted driver continues. A file names its allocation and
stays unchanged while the claim has this allocation, even if the device name means another GPU by
then: so all pods of a shared claim get one GPU.
"""

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.device_plugin.cards import Card, NodeCards
from gpushare.device_plugin.container import Contract, answer
from gpushare.device_plugin.identity import Grant
from gpushare.errors import QuantityError, RequestRefused
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.objects import RESOURCE_CLAIMS, ResourceClaim, Result
from gpushare.wire.fields import NAME
from gpushare.wire.quantity import to_bytes
from gpushare_localcluster.dra.publisher import MEMORY, device_name

log = logging.getLogger("gpushare.dra")

KIND = "gpushare.io/claim"
"""The kind of the CDI devices, which are named CLAIM'S-UID-REQUEST."""
ALLOCATION = "gpushare.io/allocation"
"""Annotation of a CDI file: the devices and shares of the allocation."""

_CDI_VERSION = "0.6.0"
"""The first version with annotations."""
_UID = re.compile(r"[0-9a-f-]{36}")
_READ_SECONDS = 5.0
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as named by the kubelet."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A device of a claim, ready for containers."""

    request: str
    pool: str
    device: str
    share: str | None
    cdi: tuple[str, ...]
    """CDI devices that the container runtime adds to a container."""


@dataclass(frozen=True, slots=True, eq=False)
class Preparer:
    """Prepares and unprepares claims; the kubelet repeats both calls until success."""

    api: Calls
    driver: str
    cdi: Path
    """The folder of generated CDI files."""
    read_cards: Callable[[], NodeCards]
    """Returns the GPUs as they are now; raises GpuShareError."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self, ref: ClaimRef) -> Sequence[Prepared]:
        """Write the CDI file, and return the devices of the claim.

        Raises GpuShareError. The kubelet calls once for each pod of a shared claim, and again after
        a lost answer.
        """
        path = self._path(ref)
        results = self._results(ref)
        with self._lock:
            made_of = None
            with suppress(OSError, ValueError, KeyError, TypeError):  # the file does not exist yet
                made_of = json.loads(path.read_text(encoding="utf-8"))["annotations"][ALLOCATION]
            if made_of != _mark(results):
                _put(path, _document(ref.uid, results, self.read_cards()))
                log.info(Line("prepared", claim=ref, devices=_mark(results)))
        prepared = []
        with_cdi: set[str] = set()
        for result in results:
            name = _request(result)
            # All GPUs of a request are in one CDI device, since two CDI devices would set the same
            # variable.
            cdi = () if name in with_cdi else (f"{KIND}={ref.uid}-{name}",)
            with_cdi.add(name)
            share = result.share_id
            prepared.append(Prepared(name, result.pool or "", result.device or "", share, cdi))
        return prepared

    def unprepare(self, ref: ClaimRef) -> None:
        """Remove the CDI file, if it exists. Raises GpuShareError."""
        with self._lock:
            try:
                self._path(ref).unlink(missing_ok=True)
            except OSError as error:
                raise RequestRefused(f"{self._path(ref)} cannot be removed: {error}") from error
        log.info(Line("unprepared", claim=ref))

    def _path(self, ref: ClaimRef) -> Path:
        if not (_UID.fullmatch(ref.uid) and NAME.fullmatch(ref.name)):
            raise RequestRefused(f"claim {ref}: {ref.uid[:40]!r} is no uid, or its name is none")
        return self.cdi / f"{KIND.replace('/', '-')}_{ref.uid}.json"

    def _results(self, ref: ClaimRef) -> Sequence[Result]:
        """Return the results of this driver in the claim's allocation. Raises GpuShareError."""
        if not NAME.fullmatch(ref.namespace):
            raise RequestRefused(f"claim {ref}: its namespace is none")
        path = f"/apis/resource.k8s.io/v1/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
        body = self.api.request("GET", path, timeout=_READ_SECONDS)
        claim: ResourceClaim = RESOURCE_CLAIMS.decode_answer(body, ref.namespace, ref.name)
        if not claim.metadata or claim.metadata.uid != ref.uid:
            raise RequestRefused(f"claim {ref} is another one by now")
        devices = claim.allocation and claim.allocation.devices
        results = (devices and devices.results) or ()
        driver_results = [result for result in results if result.driver == self.driver]
        if not driver_results:
            raise RequestRefused(f"claim {ref} has no device of {self.driver}")
        if any(result.admin_access for result in driver_results):
            raise RequestRefused(f"claim {ref} asks for an administrator's access, which is no use")
        return driver_results


def _request(result: Result) -> str:
    """Return the name of the request without the alternative."""
    return (result.request or "").partition("/")[0]


def _mark(results: Sequence[Result]) -> str:
    """Return a text that identifies the allocation; share ids are unique."""
    return ",".join(f"{result.pool}/{result.device}/{result.share_id or ''}" for result in results)


def _document(uid: str, results: Sequence[Result], cards: NodeCards) -> Mapping[str, Any]:
    """Return the CDI file with the variables for each request.

    Raises RequestRefused for a missing or unhealthy GPU.
    """
    by_name = {device_name(card): card for card in cards.all}
    shares: dict[str, list[tuple[Card, int]]] = {}
    for result in results:
        card = by_name.get(result.device or "")
        if card is None or card.problem:
            reason = card.problem if card else "is not there any more"
            raise RequestRefused(f"device {result.device}: {reason}")
        shares.setdefault(_request(result), []).append((card, _units(result, card, cards.unit_mib)))
    total = sum(units for of_request in shares.values() for _, units in of_request)
    contract = Contract(ALIYUN, cards.unit_mib, isolation="driver")
    devices = []
    for name, of_request in shares.items():
        allocation = answer(Grant(tuple(of_request), total), contract, "", "")
        edits = {"env": [f"{key}={value}" for key, value in allocation.envs.items()]}
        devices.append({"name": f"{uid}-{name}", "containerEdits": edits})
    return {
        "cdiVersion": _CDI_VERSION,
        "kind": KIND,
        "annotations": {ALLOCATION: _mark(results)},
        "devices": devices,
    }


def _units(result: Result, card: Card, unit_mib: int) -> int:
    """Return the units of a result; those of the whole GPU without an amount.

    Raises RequestRefused for less than one unit, or more than the GPU has.
    """
    amount = (result.consumed_capacity or {}).get(MEMORY)
    if amount is None:
        return card.unit_count
    try:
        units = to_bytes(amount) // (unit_mib * _MIB)
    except QuantityError as error:
        raise RequestRefused(f"device {result.device}: {error}") from error
    if not 0 < units <= card.unit_count:
        raise RequestRefused(
            f"device {result.device} has {card.unit_count} units of {unit_mib} MiB, and the claim"
            f" {units}"
        )
    return units


def _put(path: Path, document: Mapping[str, Any]) -> None:
    """Write the file atomically: runtimes read the folder after each change."""
    temporary = path.with_suffix(".tmp")  # runtimes ignore files of this name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document, indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise RequestRefused(f"{path} cannot be written: {error}") from error
