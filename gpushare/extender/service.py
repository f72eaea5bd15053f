"""The verbs: bytes in, bytes out. gate -> decode -> ledger -> decide -> encode.

Knows no HTTP; every method may be called from many threads at once. Filter and prioritize
read a snapshot and change nothing. One log line for each decision.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpushare.core.decide import best_node, filter_nodes, score_nodes
from gpushare.core.model import Request
from gpushare.core.victims import Preemptor, Victims
from gpushare.errors import MessageError, NotReady, UnknownNode, WireError
from gpushare.extender.binder import Answer as BindAnswer
from gpushare.extender.binder import Asked
from gpushare.extender.binds import Binder
from gpushare.extender.books import Books, Library
from gpushare.extender.preempting import Covering, no_budgets, trim_candidates
from gpushare.wire.extender import (
    BindArgs,
    FilterArgs,
    decode_bind,
    decode_filter,
    encode_bind,
    encode_filter,
    encode_priorities,
)
from gpushare.wire.inspect import encode_inspect
from gpushare.wire.pods import may_preempt, pod_ref, priority_of
from gpushare.wire.preempt import PreemptArgs, decode_preempt, encode_preempt

log = logging.getLogger("gpushare.decision")

_REMEMBERED = 20_000
"""Pods remembered from filter for their bind; the oldest go first and are then read from the API.
"""

Observe = Callable[[str, str, float], None]
"""Told of every call: verb, outcome (one word), seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an answer, and one word for metrics."""

    body: bytes
    outcome: str


class Service:
    """The extender's verbs.

    not_ready: the reason not to answer now, or "". best_only: filter answers its best node alone.
    most_binds: binds that may be under way at once; they wait for the API server, and would
    otherwise hold every thread when it is slow. covering: what is known of disruption budgets.
    """

    def __init__(
        self,
        library: Library,
        binder: Binder,
        *,
        not_ready: Callable[[], str],
        best_only: bool,
        most_binds: int,
        observe: Observe,
        covering: Covering = no_budgets,
    ) -> None:
        self._library = library
        self._binder = binder
        self._not_ready = not_ready
        self._best_only = best_only
        self._binds = threading.BoundedSemaphore(most_binds)
        self._observe = observe
        self._covering = covering
        self._remembered: dict[str, Asked | None] = {}

    def filter(self, body: bytes) -> bytes:
        """The answer to filter; whatever is wrong stands in its Error."""
        return self._timed("filter", self._filter, body)

    def prioritize(self, body: bytes) -> bytes:
        """The answer to prioritize. Raises MessageError or NotReady: it has no field for errors."""
        return self._timed("prioritize", self._prioritize, body)

    def bind(self, body: bytes) -> bytes:
        """The answer to bind; whatever is wrong stands in its Error."""
        return self._timed("bind", self._bind, body)

    def preempt(self, body: bytes) -> bytes:
        """The answer to preempt. Raises MessageError or NotReady: it has no field for errors."""
        return self._timed("preempt", self._preempt, body)

    def inspect(self, node: str | None, resource: str | None) -> str:
        """The inspect document of one node or of all.

        Raises UnknownNode for a node or resource that is not in the books, NotReady before they
        are.
        """
        self._must_be_ready()
        books = self._library.find(resource) if resource else next(iter(self._library))
        if books is None:
            raise UnknownNode(f"resource {resource!r} is not managed here")
        return encode_inspect(books.ledger.dump(node))

    def _timed(self, verb: str, work: Callable[[bytes], Answer], body: bytes) -> bytes:
        start = time.perf_counter()
        outcome = "failed"
        try:
            answer = work(body)
            outcome = answer.outcome
            return answer.body
        except MessageError:
            outcome = "malformed"
            raise
        except NotReady:
            outcome = "not_ready"
            raise
        finally:
            self._observe(verb, outcome, time.perf_counter() - start)

    def _must_be_ready(self) -> None:
        reason = self._not_ready()
        if reason:
            raise NotReady(f"gpushare is not ready: {reason}")

    def _filter(self, body: bytes) -> Answer:
        try:
            args = decode_filter(body)
        except MessageError as error:
            return Answer(encode_filter(None, error=f"gpushare: {error}"), "malformed")
        try:
            self._must_be_ready()
        except NotReady as error:
            return Answer(encode_filter(args, error=str(error)), "not_ready")
        try:
            asked = self._library.judge(args.pod)
        except WireError as error:
            # No node will ever do; an Error would have the scheduler try again and again.
            log.info("filter pod=%s refused: %s", _name(args), error)
            refused = dict.fromkeys(args.names, str(error))
            return Answer(encode_filter(args, unresolvable=refused), "refused")
        self._remember(args, asked)
        if asked is None:
            return Answer(encode_filter(args, fit=args.names), "plain")
        return self._filter_by(args, *asked)

    def _filter_by(self, args: FilterArgs, books: Books, request: Request) -> Answer:
        snapshot = books.ledger.snapshot()
        verdict = filter_nodes(snapshot, args.names, request)
        fit = verdict.fit
        if self._best_only and len(fit) > 1:
            best = best_node(snapshot, fit, request, books.ranking(request))
            fit = fit if best is None else (best,)
        busy = {name: why.value for name, why in verdict.failed.items() if why.resolvable}
        never = {name: why.value for name, why in verdict.failed.items() if not why.resolvable}
        busy.update((name, f'node "{name}" not found') for name in verdict.unknown)
        log.info(
            "filter pod=%s units=%d devices=%d fit=%d busy=%d never=%d unknown=%d",
            _name(args),
            request.units,
            request.devices,
            len(verdict.fit),
            len(busy) - len(verdict.unknown),
            len(never),
            len(verdict.unknown),
        )
        return Answer(encode_filter(args, fit, busy, never), "fit" if fit else "no_fit")

    def _prioritize(self, body: bytes) -> Answer:
        args = decode_filter(body)
        self._must_be_ready()
        try:
            asked = self._library.judge(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        if asked is None:
            return Answer(encode_priorities((name, 0) for name in args.names), "plain")
        books, request = asked
        snapshot = books.ledger.snapshot()
        scores = score_nodes(snapshot, args.names, request, books.ranking(request))
        return Answer(encode_priorities(scores), "scored")

    def _preempt(self, body: bytes) -> Answer:
        args = decode_preempt(body)
        self._must_be_ready()
        try:
            asked = self._library.judge(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        if asked is None:
            return Answer(encode_preempt(args.victims), "plain")
        books, request = asked
        left: dict[str, Victims] = {}
        if may_preempt(args.pod):
            preemptor = Preemptor(request, priority_of(args.pod), books.counted)
            left = trim_candidates(books.ledger, preemptor, args.victims, self._covering)
        log.info(
            "preempt pod=%s units=%d devices=%d candidates=%d left=%d changed=%d",
            _name(args),
            request.units,
            request.devices,
            len(args.victims),
            len(left),
            sum(those != args.victims[node] for node, those in left.items()),
        )
        return Answer(encode_preempt(left), "victims" if left else "no_victims")

    def _bind(self, body: bytes) -> Answer:
        try:
            args = decode_bind(body)
            self._must_be_ready()
        except MessageError as error:
            return Answer(encode_bind(f"gpushare: {error}"), "malformed")
        except NotReady as error:
            return Answer(encode_bind(str(error)), "not_ready")
        if not self._binds.acquire(blocking=False):
            return Answer(encode_bind("gpushare: too many binds are under way"), "busy")
        try:
            answer = self._run_bind(args)
        finally:
            self._binds.release()
        return Answer(encode_bind(answer.error), answer.reason)

    def _run_bind(self, args: BindArgs) -> BindAnswer:
        uid = args.ref.uid
        # One look: a filter of the same pod may take it out and put it in again meanwhile, and a
        # pod taken for one that asks for nothing would be bound without a charge.
        try:
            known, asked = True, self._remembered[uid]
        except KeyError:
            known, asked = False, None
        answer = self._binder.bind(args.ref, args.node, known, asked)
        if answer.error:
            log.info("bind pod=%s node=%s refused: %s", args.ref, args.node, answer.error)
        else:
            self._remembered.pop(uid, None)
            log.info("bind pod=%s node=%s devices=%s", args.ref, args.node, self._devices(uid))
        return answer

    def _devices(self, uid: str) -> str:
        """What the pod was given, as "0:4,1:4" (device:units); "-" for a pod without GPU."""
        for books in self._library:
            entry = books.ledger.standing(uid)
            if entry is not None and entry.placement is not None:
                return ",".join(f"{device}:{units}" for device, units in entry.placement)
        return "-"

    def _remember(self, args: FilterArgs, asked: Asked | None) -> None:
        """Keep what the pod asks for: its bind follows, and then needs no read of the pod."""
        uid = args.pod.metadata.uid if args.pod.metadata else None
        if not uid:
            return
        self._remembered.pop(uid, None)
        self._remembered[uid] = asked
        while len(self._remembered) > _REMEMBERED:
            try:
                self._remembered.pop(next(iter(self._remembered)), None)
            except (StopIteration, RuntimeError):  # another thread is doing the same
                return


def _name(args: FilterArgs | PreemptArgs) -> str:
    try:
        return str(pod_ref(args.pod))
    except MessageError:
        return "?"
