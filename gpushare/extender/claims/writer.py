"""Writes to claims, each while this process leads for longer than it may take; and their templates.

An allocation whose outcome is unknown keeps its charge. It is settled by another write, of an
annotation: after that one it cannot land any more, and the answer shows whether it has.

Nothing is allocated while the fence is not there that keeps everybody else from allocating the
driver's devices.

What a gang has that cannot be completed is taken back, and what nobody uses. In two writes, as a
pod with all its devices may be bound at any moment: kube-scheduler writes nothing more to a claim
that is reserved for the pod. The first write takes the reservation. Who binds the pod after that
reserves anew; that changes the claim, and it stays. If nobody has within UNRESERVED seconds, the
second write, which demands the same version, takes the devices.

Tested in `tests/unit/extender/claims/test_allocator.py`,
`tests/unit/extender/claims/test_gangs.py` and `tests/unit/extender/claims/test_templates.py`.
"""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

from gpushare.core.model import PodRef
from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiTooLarge,
    ApiUnavailable,
    InvariantError,
    WireError,
)
from gpushare.extender.claims.books import ClaimBooks, claim_ref, version_of
from gpushare.extender.claims.cases import Case, WaitingPod
from gpushare.extender.claims.handlers import WaitingPods
from gpushare.extender.claims.view import Given, Journal
from gpushare.extender.follow.rounds import Rounds
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.kube.api import Calls
from gpushare.logline import Line
from gpushare.wire.dra.claims import CLASS, claim_request, is_protected, kept_claim
from gpushare.wire.dra.fence import BINDINGS, POLICIES, unfenced
from gpushare.wire.dra.objects import RESOURCE_CLAIMS, DeviceClass, ResourceClaim
from gpushare.wire.dra.slices import SliceCard
from gpushare.wire.dra.templates import SizedTemplate
from gpushare.wire.dra.writes import allocation, protection, release, settlement, withdrawal

log = logging.getLogger("gpushare.claims")

DRA = "/apis/resource.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_TIMEOUT = 3.0
"""Seconds that a call may take. A write begins within the rest of BUDGET after leadership was
checked, so it ends while this process leads."""
UNRESERVED = 20.0
"""Seconds that an allocation stays which is reserved for nobody. kube-scheduler, which reserves
before it binds, takes far less; a pod that waits at Permit waits for its gang."""
_SWEEP_EVERY = 5.0
"""Seconds between looks at all allocations."""
_LOOK_EVERY, _LOOK_AGAIN = 60.0, 5.0
"""Seconds until the fence is looked at again, and until then where it was not there."""

EVERY = 0.5
"""Seconds between rounds of templates."""
AGAIN = 10.0
"""Seconds until a template is tried again of which a pod still waits for its claim."""


class ClaimWriter:
    """The one that writes to claims, and tells the books what it sends and what came of it.

    The fence is looked at once a minute. Several threads may give, each to another pod; one thread
    calls all else. stopped: no write begins any more.
    """

    def __init__(
        self,
        api: Calls,
        books: ClaimBooks,
        journal: Journal,
        *,
        not_ready: Callable[[], str],
        leads_until: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._books = books
        self._journal = journal
        self._not_ready = not_ready
        self._leads_until = leads_until
        self._clock = clock
        self.stopped = False
        self.fence_problem = "the fence has not been looked at yet"
        """Why nothing may be given out; "" if nothing is in the way."""
        self._fence_due = self._sweep_due = -math.inf
        self._free_since: dict[tuple[str, int], float] = {}
        self._doubts: dict[str, PodRef] = {}
        """The claims of which an allocation got no answer that tells its outcome, by uid."""

    def look_at_fence(self) -> None:
        """Look whether the fence is there, if it is time to."""
        if self._clock() < self._fence_due:
            return
        self._fence_due = self._clock() + _LOOK_EVERY
        try:
            read = partial(self._api.request, "GET", timeout=_TIMEOUT)
            policies = POLICIES.decode_list(read(f"{_ADMISSION}/validatingadmissionpolicies"))
            bindings = BINDINGS.decode_list(read(f"{_ADMISSION}/validatingadmissionpolicybindings"))
            self.fence_problem = unfenced(policies.items, bindings.items, self._books.driver)
        except ApiUnavailable as error:
            # Without an answer it is as it was; allocations would get none either.
            log.warning(Line("fence not looked at", error=str(error)))
        except (ApiError, WireError) as error:
            self.fence_problem = f"the fence cannot be looked at: {str(error)[:200]}"
        if self.fence_problem:
            self._fence_due = self._clock() + _LOOK_AGAIN

    def give(
        self, case: Case, taken: Sequence[tuple[SliceCard, ...]], device_class: DeviceClass
    ) -> bool:
        """Write the cards that were taken for the claims that a pod wants, and give back what is
        not sent; return whether all were sent, and none refused.
        """
        unsent = {claim_ref(claim).uid for claim, _ in case.wanted}
        try:
            protected = [
                (claim if is_protected(claim) else self._protect(claim_ref(claim), claim), asked)
                for claim, asked in case.wanted
            ]
            for (claim, asked), cards in zip(protected, taken, strict=True):
                body = allocation(
                    claim,
                    asked,
                    cards,
                    device_class,
                    pod=case.pod,
                    share_ids=[str(uuid.uuid4()) for _ in cards],
                    now=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                )
                ref = claim_ref(claim)
                not_after = None if self.fence_problem else self._may_write_until()
                if not_after is None or not self._books.sending(ref.uid, version_of(claim)):
                    return False
                unsent.discard(ref.uid)
                given = Given(case.pod, ref, cards, asked)
                if not self._write(given, body, not_after):
                    # Those before it stay allocated: the next try is on their node, or takes back.
                    return False
            return True
        except (ApiError, WireError, InvariantError) as error:
            log.warning(Line("claim not allocated", pod=case.pod, error=str(error)))
        except Exception:
            log.exception(Line("claim not allocated", pod=case.pod))
        finally:
            for uid in unsent:
                self._books.forget(uid)
        return False

    def take_back(self, claim: ResourceClaim, body: bytes) -> bool:
        """Send what takes a claim's devices or reservations; return whether it was sent."""
        not_after = self._may_write_until()
        if not_after is None:
            return False
        ref = claim_ref(claim)
        try:
            self._show(ref, self._patch(ref, body, not_after, "/status"))
            log.info(Line("claim taken back", claim=ref))
        except (ApiError, WireError) as error:
            log.warning(Line("claim not taken back", claim=ref, error=str(error)))
        return True

    def withdraw(self, pods: Iterable[WaitingPod]) -> None:
        """Take the reservations of pods on no node from claims that nobody else has reserved."""
        for pod in pods:
            for name in pod.claims or ():
                claim = self._books.named(pod.ref.namespace, name)
                holders = [each.uid for each in claim.reserved] if claim else []
                if claim is not None and holders == [pod.ref.uid] and _is_ours(claim):
                    self.take_back(claim, withdrawal(claim))

    def sweep(self) -> None:
        """Take back what nobody has reserved for long enough."""
        now = self._clock()
        if now < self._sweep_due:
            return
        self._sweep_due = now + _SWEEP_EVERY
        free = {
            (claim_ref(claim).uid, version_of(claim)): claim
            for claim in self._books.allocated()
            if not claim.reserved and _is_ours(claim)
        }
        self._free_since = {key: self._free_since.get(key, now) for key in free}
        for key, since in self._free_since.items():
            if now >= since + UNRESERVED:
                self.take_back(free[key], release(free[key]))

    def settle(self) -> None:
        """Find out what became of allocations without an answer."""
        in_flight = self._books.in_flight()
        self._journal.settle(in_flight, self._books.is_given_to)
        for uid in [*self._doubts]:
            if uid not in in_flight:
                del self._doubts[uid]
        for ref in list(self._doubts.values()):
            not_after = self._may_write_until()
            if not_after is None:
                return
            try:
                self._show(ref, self._patch(ref, settlement(ref, str(uuid.uuid4())), not_after))
            except ApiError as error:
                # That the claim is gone is told by the watch alone.
                log.warning(Line("allocation in doubt", claim=ref, error=str(error)))

    def _write(self, given: Given, body: bytes, not_after: float) -> bool:
        """Send the allocation, of which the books know; return whether it has landed, or may."""
        ref, cards = given.claim, given.cards
        began = time.monotonic()
        try:
            answer = self._patch(ref, body, not_after, "/status")
            self._journal.wrote("allocated", time.monotonic() - began, given)
            self._show(ref, answer)
        except ApiError as error:
            refused = not isinstance(error, ApiUnavailable | ApiTooLarge)
            if refused:
                # The first and only one that was sent: it never lands.
                self._books.forget(ref.uid)
            outcome = "refused" if refused else "in_doubt"
            self._journal.wrote(outcome, time.monotonic() - began, given)
            log.warning(Line("claim not allocated", claim=ref, error=str(error)))
            return not refused
        finally:
            # Whatever has ended the call, the charge stays until its outcome is known.
            if ref.uid in self._books.in_flight():
                self._doubts[ref.uid] = ref
        devices = ",".join(card.uuid for card in cards)
        log.info(Line("claim", claim=ref, pod=given.pod, node=cards[0].node, devices=devices))
        return True

    def _may_write_until(self) -> float | None:
        """Return when a write may begin at the latest; None if none may."""
        now = self._clock()
        if self.stopped or self._not_ready() or now + BUDGET > self._leads_until():
            return None
        return now + BUDGET - _TIMEOUT

    def _protect(self, ref: PodRef, claim: ResourceClaim) -> ResourceClaim:
        answer = self._patch(ref, protection(claim), self._clock() + _TIMEOUT)
        read = RESOURCE_CLAIMS.decode_answer(answer, ref.namespace, ref.name)
        protected = kept_claim(read, CLASS)
        self._books.claim_changed(protected, read=True)
        return protected

    def _show(self, ref: PodRef, answer: bytes) -> None:
        """Show the books the claim as a write has left it."""
        try:
            claim = RESOURCE_CLAIMS.decode_answer(answer, ref.namespace, ref.name)
            self._books.claim_changed(kept_claim(claim, CLASS), read=True)
        except WireError as error:
            # Who answered is not the API server, so nothing is known.
            log.warning(Line("allocation in doubt", claim=ref, error=str(error)))

    def _patch(self, ref: PodRef, body: bytes, not_after: float, part: str = "") -> bytes:
        return self._api.request(
            "PATCH",
            f"{DRA}/namespaces/{ref.namespace}/resourceclaims/{ref.name}{part}",
            query={"timeout": f"{_TIMEOUT:.3f}s"},
            body=body,
            content_type="application/merge-patch+json",
            timeout=_TIMEOUT,
            not_after=not_after,
        )


def _is_ours(claim: ResourceClaim) -> bool:
    try:
        return claim_request(claim, CLASS) is not None
    except WireError:
        return False


class Templates:
    """Writes the templates that pods name by their size, where they are missing.

    So pods need no template that somebody has made before: the first pod of a size waits for a
    moment, and the controller of claims goes on by itself once the template is there. What is
    written follows from its name alone, so two processes that write it write the same, and one that
    is there already, whoever made it, stays. None is ever deleted.

    Call `round` once, or start `rounds` to repeat it.

    not_ready: why not to write now, or "".
    """

    def __init__(
        self,
        api: Calls,
        waiting: WaitingPods,
        *,
        not_ready: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._waiting = waiting
        self._not_ready = not_ready
        self._clock = clock
        self._due: dict[SizedTemplate, float] = {}
        self.rounds = Rounds("claim templates", self.round, EVERY, EVERY, threading.Event())

    def round(self) -> bool:
        """Write those that pods wait for; return whether all are there."""
        awaited = {pod.template for pod in self._waiting.all().values()} - {None}
        for gone in self._due.keys() - awaited:
            del self._due[gone]
        now = self._clock()
        due = [each for each in awaited if each and self._due.get(each, now) <= now]
        for template in due:
            if self._not_ready():
                return False
            self._due[template] = now + AGAIN
            path = f"{DRA}/namespaces/{template.namespace}/resourceclaimtemplates"
            names = {"namespace": template.namespace, "template": template.name}
            try:
                self._api.request("POST", path, body=template.body(CLASS), timeout=_TIMEOUT)
            except ApiConflict:
                continue
            except ApiError as error:
                log.warning(Line("template of claims not written", **names, error=str(error)))
            else:
                log.info(Line("template of claims written", **names))
        return not due
