"""Bugs in binding: the time of the charge, and answers that do not come."""

# ruff: noqa: SLF001 -- a bug is put where it would stand

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from gpushare.core import decide
from gpushare.core.states import records
from gpushare.core.states.entry import Phase
from gpushare.errors import ApiConflict, ApiError, ApiUnavailable
from gpushare.extender.verbs import filter as filter_verb
from gpushare.extender.verbs import offers
from gpushare.extender.verbs.bind import binder, transaction
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.transaction import BindTransaction
from gpushare.ledger import Ledger
from gpushare.ledger.books import Reader, Store
from tests.simulation.mutants.museum import mutant


def _give_back(ledger: Any, uid: str) -> None:
    entry = ledger._store.entry(uid)
    if entry and entry.assumption:
        ledger._store.put(uid, entry.assumption.waiting)


@mutant("A1", "the original records a pod after its binding succeeded", Ledger, "assume")
def charges_after_success(original: Any) -> Any:
    def assume(self: Any, ref: Any, request: Any, allocation: Any, *_: Any, **__: Any) -> Any:
        self._store.check_fits(ref.uid, request, allocation)
        uuids = self._store.nodes[allocation.node].spec.uuids
        device_uuids = tuple(uuids[device] for device in allocation.devices) if any(uuids) else ()
        return replace(allocation, uuids=device_uuids), 0

    del original
    return assume


@mutant("A1", "volcano #2859: free memory is looked at, and taken later", transaction, "charge")
def takes_by_an_old_look(original: Any) -> Any:
    del original

    def charge(
        allocation_request: Any, ref: Any, node: str, *, now: float, stamp: str, at_gate: bool
    ) -> Any:
        del at_gate
        books, request = allocation_request
        ledger = books.ledger
        looks = vars(ledger).setdefault("looks", [])
        looks.append(ledger.snapshot())
        view = next(look for look in looks[-2:] if look.capacity is looks[-1].capacity)
        allocation = decide.place(view, node, request, books.ranking(request))
        assume = ledger.assume
        with patch.object(Store, "check_fits", lambda *_: None):
            return assume(ref, request, allocation, now, stamp=stamp)

    return charge


def _assumes_unseen(original: Any) -> Any:
    def assume(self: Any, *args: Any, seen: Any = None, **kwargs: Any) -> Any:
        del seen
        return original(self, *args, **kwargs)

    return assume


@mutant(
    "A1",
    "what a look found free is taken, whoever took it meanwhile",
    Store,
    "check_fits",
    also=[(Ledger, "assume", _assumes_unseen)],
)
def takes_without_another_look(original: Any) -> Any:
    del original

    def check_fits(self: Any, *_: Any) -> None:
        return

    return check_fits


@mutant("A2", "the original places a pod anew on every try", BindTransaction, "_already_charged")
def places_anew_on_retry(original: Any) -> Any:
    def standing(self: Any, entry: Any) -> Any:
        if entry.in_doubt:
            _give_back(self.resource_request[0].ledger, self.ref.uid)
            return self._send(0.0, float("inf"))
        return original(self, entry)

    return standing


@mutant("A2", "a bind takes the place of one under way", Ledger, "assume")
def binds_one_pod_twice(original: Any) -> Any:
    def assume(self: Any, ref: Any, *args: Any, **kwargs: Any) -> Any:
        if self._store.entry(ref.uid):
            self._store.put(ref.uid, None)
        return original(self, ref, *args, **kwargs)

    return assume


@mutant("A3", "KAI's rollback: no answer is taken for a refusal", Ledger, "doubt")
def frees_on_no_answer(original: Any) -> Any:
    del original

    def doubt(self: Any, uid: str, now: float, stamp: str) -> None:
        self.forget(uid, stamp)

    return doubt


@mutant("A4", "nobody waits for writes that land late", records, "BINDING_LIFETIME")
def does_not_hold(original: Any) -> Any:
    del original
    return 0.0


@mutant("A5", "the original leaves the annotations of a refused bind", Ledger, "forget")
def keeps_what_was_refused(original: Any) -> Any:
    del original

    def forget(self: Any, uid: str, _: str) -> None:
        entry = self._store.entry(uid)
        if entry and entry.assumption:
            self._store.put(uid, replace(entry, assumption=None, phase=Phase.BOUND))

    return forget


@mutant("A7", "the original patches and binds by name", binder, "encode_binding")
def binds_by_name(original: Any) -> Any:
    def nameless(ref: Any, node: str, annotations: Any) -> bytes:
        return bytes(original(ref, node, annotations)).replace(b'"uid":', b'"nobody":')

    return nameless


@mutant("A8", "a pod bound by somebody else counts as bound by us", BindTransaction, "written")
def takes_a_conflict_for_success(original: Any) -> Any:
    def written(self: Any, error: Any, now: float) -> Any:
        if isinstance(error, ApiConflict):
            return original(self, None, now)
        return original(self, error, now)

    return written


def _judges_by_capacity(original: Any) -> Any:
    def by_capacity(snapshot: Any, rows: Any, request: Any) -> Any:
        codes = original(snapshot, rows, request).codes
        codes = np.where(codes == decide.UNKNOWN, codes, decide.FITS)
        return decide.Judgement(codes, codes == decide.FITS)

    return by_capacity


@mutant("A12", "KAI #848: filter and bind judge by different sums", offers, "judge",
        also=[(filter_verb, "judge", _judges_by_capacity)])  # fmt: skip
def filters_by_capacity(original: Any) -> Any:
    return _judges_by_capacity(original)


@mutant("A13", "the Python client raises after a successful Binding", Binder, "_write")
def takes_success_for_failure(original: Any) -> Any:
    def write(*args: Any) -> Any:
        return original(*args) or ApiError("ValueError: Invalid value for `target`", 0)

    return write


@mutant("A14", "kube-scheduler's cache once expired what it had assumed", Reader, "overdue")
def expires_by_the_clock(original: Any) -> Any:
    def overdue(self: Any, now: float) -> Any:
        for uid, entry in self._store.entries(Phase.IN_DOUBT, Phase.LANDED).items():
            if now > entry.assumption.since + 20:
                _give_back(self, uid)
        return original(self, now)

    return overdue


@mutant("B1", "charged by the binder no more, by the watch not yet", Ledger, "landed")
def frees_what_has_landed(original: Any) -> Any:
    del original

    def landed(self: Any, uid: str, *_: Any) -> None:
        _give_back(self, uid)

    return landed


@mutant(
    "C13", "assume times by the second are the same for several pods", binder, "BindTransaction"
)
def stamps_by_the_second(original: Any) -> Any:
    def begun(**kwargs: Any) -> Any:
        bind = original(**kwargs)
        bind.stamp = str(int(bind.stamp) // 10**9)
        return bind

    return begun


@mutant(
    "C3",
    "a pod is told the size of its node's first device, not of its own",
    transaction,
    "charge",
)
def tells_the_size_of_device_0(original: Any) -> Any:
    def charge(request: Any, ref: Any, node: str, **kwargs: Any) -> Any:
        allocation, _ = original(request, ref, node, **kwargs)
        view = request[0].ledger.snapshot()
        return allocation, int(view.capacity[view.row[node], 0])

    return charge


@mutant(
    "E11", "HAMi #3030: binding an unknown pod drops what its uid holds", BindTransaction, "start"
)
def drops_what_a_stranger_names(original: Any) -> Any:
    def start(self: Any, now: float, leads_until: float) -> Any:
        for books in self.resources:
            entry = books.ledger.entry(self.ref.uid)
            if entry is not None and entry.ref != self.ref:
                books.ledger._store.put(self.ref.uid, None)
        return original(self, now, leads_until)

    return start


@mutant("A3", "5xx is taken for a refusal", BindTransaction, "written")
def takes_5xx_for_refusal(original: Any) -> Any:
    def written(self: Any, error: Any, now: float) -> Any:
        if isinstance(error, ApiUnavailable) and error.status >= 500:
            return original(self, ApiError(str(error), error.status), now)
        return original(self, error, now)

    return written
