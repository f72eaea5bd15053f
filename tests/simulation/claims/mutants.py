"""Bugs that an allocator of claims may have, each of which a story must find."""

import json
from collections.abc import Callable
from typing import Any

from gpushare.core import dealing
from gpushare.core.dealing import Dealing
from gpushare.extender.claims import books, writer
from gpushare.extender.claims.allocator import Allocator
from gpushare.extender.claims.books import ClaimBooks
from gpushare.extender.claims.cases import Gang
from gpushare.extender.claims.handlers import WaitingPods
from gpushare.extender.claims.writer import ClaimWriter
from gpushare.extender.follow.group_members import GroupMembers
from gpushare.extender.follow.readiness import Readiness
from gpushare.wire.dra import counted, writes
from gpushare.wire.dra.claims import ClaimRequest
from gpushare.wire.dra.slices import CardDeals
from tests.simulation.mutants.museum import Change, Mutant

MUTANTS: list[Mutant] = []

FOUND = {
    "believes_what_is_older": 244,
    "counts_its_own_alone": 11,
    "counts_the_first_device_alone": 6,
    "counts_who_waits_twice": 55,
    "does_not_look_again": 1007,
    "frees_nothing": 111,
    "gives_a_gang_out_in_pieces": 2,
    "gives_all_to_the_first_request": 3,
    "gives_out_cards_without_a_slice": 18,
    "gives_the_lease_back_too_soon": 53,
    "goes_where_it_was_taken_back": 4,
    "keeps_what_a_gang_has_in_part": 44,
    "keeps_what_a_list_lacks": 111,
    "keeps_what_was_refused": 2,
    "knows_a_card_by_its_name_alone": 88,
    "knows_no_steps": 2,
    "leaves_doubts": 113,
    "leaves_what_nobody_has_reserved": 41,
    "loses_the_name_to_the_dead": 19,
    "mixes_up_the_requests": 19,
    "rounds_down": 17,
    "looks_where_it_takes_the_least_alone": 19,
    "sees_no_later_pods": 2,
    "takes_any_change_for_an_outcome": 310,
    "takes_no_answer_for_a_refusal": 1,
    "writes_until_its_term_is_over": 242,
    "writes_without_leading": 29,
}
"""The seed by which a mutant was found, where it is not 0; a story that changes may find it by
another one."""


def _mutant(
    home: Any, attribute: str, *more: tuple[Any, str, Change]
) -> Callable[[Change], Change]:
    def show(change: Change) -> Change:
        MUTANTS.append(Mutant("", change.__name__, "", ((home, attribute, change), *more)))
        return change

    return show


def _nothing(original: Any) -> Any:
    del original
    return lambda *_, **__: None


def _yes(original: Any) -> Any:
    del original
    return lambda *_, **__: True


# -- what is counted ------------------------------------------------------------------------------


@_mutant(ClaimBooks, "claim_changed")
def believes_what_is_older(original: Any) -> Any:
    def claim_changed(self: Any, claim: Any, **how: Any) -> None:
        self._claims.pop(claim.metadata.uid, None)
        original(self, claim)

    return claim_changed


@_mutant(ClaimBooks, "claim_changed")
def takes_any_change_for_an_outcome(original: Any) -> Any:
    def claim_changed(self: Any, claim: Any, **how: Any) -> None:
        original(self, claim, **how)
        self.forget(claim.metadata.uid)

    return claim_changed


@_mutant(ClaimWriter, "_write")
def takes_no_answer_for_a_refusal(original: Any) -> Any:
    def write(self: Any, given: Any, *of: Any) -> Any:
        landed = original(self, given, *of)
        self._books.forget(given.claim.uid)
        return landed

    return write


@_mutant(ClaimBooks, "claim_gone")
def frees_nothing(original: Any) -> Any:
    del original
    return lambda self, uid: None


@_mutant(ClaimBooks, "replace_claims")
def keeps_what_a_list_lacks(original: Any) -> Any:
    del original

    def replace_claims(self: Any, claims: Any, keep: Any) -> None:
        for claim in claims:
            self.claim_changed(claim)

    return replace_claims


@_mutant(books, "replace")
def gives_out_cards_without_a_slice(original: Any) -> Any:
    def replace(found: Any, **changes: Any) -> Any:
        return found if "open" in changes else original(found, **changes)

    return replace


@_mutant(ClaimBooks, "_taken")
def knows_a_card_by_its_name_alone(original: Any) -> Any:
    def taken(self: Any, uid: str) -> Any:
        self._meant.pop(uid, None)
        return original(self, uid)

    return taken


@_mutant(books, "given_devices")
def counts_its_own_alone(original: Any) -> Any:
    def given_devices(allocation: Any) -> Any:
        return original(allocation) if allocation.allocation_timestamp else ()

    return given_devices


@_mutant(books, "given_devices")
def counts_the_first_device_alone(original: Any) -> Any:
    return lambda allocation: original(allocation)[:1]


@_mutant(dealing, "place_parts")
def mixes_up_the_requests(original: Any) -> Any:
    return lambda *of: original(*of)[::-1]


def _down(original: Any) -> Any:
    del original
    return lambda memory, unit: memory // unit


@_mutant(books, "units_up", (counted, "units_up", _down))
def rounds_down(original: Any) -> Any:
    return _down(original)


@_mutant(CardDeals, "consumed")
def knows_no_steps(original: Any) -> Any:
    del original
    return lambda self, asked: asked if asked <= self.memory else None


@_mutant(Dealing, "where")
def looks_where_it_takes_the_least_alone(original: Any) -> Any:
    return lambda self, asked: original(self, asked)[:1]


# -- what is written ------------------------------------------------------------------------------


@_mutant(ClaimBooks, "sending")
def does_not_look_again(original: Any) -> Any:
    def sending(self: Any, uid: str, version: int) -> bool:
        has, self._has_what_it_gave = self._has_what_it_gave, lambda _: True
        try:
            return bool(original(self, uid, version))
        finally:
            self._has_what_it_gave = has

    return sending


@_mutant(writer, "is_protected", (writes, "is_protected", _yes))
def protects_nothing(original: Any) -> Any:
    return _yes(original)


@_mutant(writes, "_patch")
def names_no_version(original: Any) -> Any:
    return _without(original, "resourceVersion")


@_mutant(writes, "_patch")
def names_no_uid(original: Any) -> Any:
    return _without(original, "uid")


def _without(original: Any, field: str) -> Any:
    def patch(*of: Any) -> bytes:
        body = json.loads(original(*of))
        del body["metadata"][field]
        return json.dumps(body).encode()

    return patch


@_mutant(writer, "allocation")
def reserves_for_nobody(original: Any) -> Any:
    def allocation(*of: Any, **more: Any) -> bytes:
        body = json.loads(original(*of, **more))
        del body["status"]["reservedFor"]
        return json.dumps(body).encode()

    return allocation


@_mutant(writer, "allocation")
def copies_no_settings(original: Any) -> Any:
    def allocation(claim: Any, asked: Any, cards: Any, device_class: Any, **more: Any) -> bytes:
        device_class.spec = None
        return bytes(original(claim, asked, cards, device_class, **more))

    return allocation


@_mutant(writer, "allocation")
def gives_all_to_the_first_request(original: Any) -> Any:
    def allocation(claim: Any, asked: Any, *of: Any, **more: Any) -> bytes:
        parts = [each._replace(request=asked.parts[0].request) for each in asked.parts]
        return bytes(original(claim, ClaimRequest(tuple(parts)), *of, **more))

    return allocation


# -- who writes, and when -------------------------------------------------------------------------


@_mutant(ClaimWriter, "_may_write_until")
def writes_without_leading(original: Any) -> Any:
    del original
    return lambda self: self._clock() + 1.0


@_mutant(ClaimWriter, "_may_write_until")
def writes_until_its_term_is_over(original: Any) -> Any:
    del original

    def may_write_until(self: Any) -> float | None:
        until: float = self._leads_until()
        return None if self._not_ready() or self._clock() > until else until

    return may_write_until


@_mutant(Allocator, "settled")
def gives_the_lease_back_too_soon(original: Any) -> Any:
    return _yes(original)


@_mutant(Readiness, "_relist_wanted")
def leads_with_old_books(original: Any) -> Any:
    return _nothing(original)


# -- what must go on ------------------------------------------------------------------------------


@_mutant(ClaimWriter, "settle")
def leaves_doubts(original: Any) -> Any:
    return _nothing(original)


@_mutant(ClaimBooks, "claim_gone")
def loses_the_name_to_the_dead(original: Any) -> Any:
    def claim_gone(self: Any, uid: str) -> None:
        claim = self._claims.get(uid)
        original(self, uid)
        if claim is not None:
            self._by_name.pop((claim.metadata.namespace, claim.metadata.name), None)

    return claim_gone


@_mutant(Allocator, "_allocate")
def goes_where_it_was_taken_back(original: Any) -> Any:
    def allocate(self: Any, case: Any, tries: Any, *of: Any) -> None:
        tries.nodes.clear()
        original(self, case, tries, *of)

    return allocate


@_mutant(WaitingPods, "apply")
def sees_no_later_pods(original: Any) -> Any:
    del original
    return lambda self, event: None


@_mutant(ClaimBooks, "forget")
def keeps_what_was_refused(original: Any) -> Any:
    return _nothing(original)


# -- gangs ----------------------------------------------------------------------------------------


@_mutant(Gang, "needed")
def gives_a_gang_out_in_pieces(original: Any) -> Any:
    del original
    return lambda self, given: 0


@_mutant(GroupMembers, "without_claims")
def counts_who_waits_twice(original: Any) -> Any:
    del original
    return lambda self, group: self._groups.get(group, {}).keys()


@_mutant(ClaimWriter, "withdraw")
def keeps_what_a_gang_has_in_part(original: Any) -> Any:
    return _nothing(original)


@_mutant(ClaimWriter, "sweep")
def leaves_what_nobody_has_reserved(original: Any) -> Any:
    return _nothing(original)
