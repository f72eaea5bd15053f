"""Carry out a plan of `gpushare defrag`: one eviction at a time, each only while the plan holds.

Before each move the cluster is listed and planned again, with every rule. After the move the pod's
replacement must run on the planned node. Otherwise the run stops; finished moves stay. The API
server checks budgets, and each eviction names the pod by uid and resourceVersion, so that it cannot
hit another pod. Each move is recorded before the eviction in the record of the extender's moves, so
that no other process moves pods meanwhile (wire/moves.py).

Tested in `tests/unit/cli/test_defrag_apply.py`.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from gpushare.cli.cluster import NOT_ENDED, items
from gpushare.cli.facts import mapping, text
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.listed_cluster import ListedResource
from gpushare.core.model import PodRef
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, GpuShareError, MessageError
from gpushare.explain.defrag import DefragAnswer, Hole, MoveRules, PodMove, Rule
from gpushare.wire.kept import MOVES
from gpushare.wire.moves import MoveRecord, eviction, may_succeed, pod_path, record_of
from gpushare.wire.objects import OWNED_PODS, Metadata, OwnedPod, Owner
from gpushare.wire.pods import controller_of

_POLL = 2.0
"""Seconds between reads of one namespace."""
_PAUSE = 10.0
"""Seconds between lists of the whole cluster."""
_FORBIDDEN = 403
_TOO_MANY = 429
_WRONG = (400, 401, 405, 422)
"""Statuses that a retry does not change."""


@dataclass(frozen=True, slots=True)
class Look:
    """A listed cluster, and the plan for it."""

    books: ListedResource
    rules: MoveRules
    name: str
    hole: Hole
    pod: PodRef | None
    """The pending pod, or None for a place without a pod."""
    answer: DefragAnswer


@dataclass(slots=True)
class RunOutcome:
    """The outcome of a run."""

    remaining: list[PodMove]
    finished: list[tuple[PodMove, str]] = field(default_factory=list)
    """The finished moves, each with the name of the replacement pod."""
    evicted: PodMove | None = None
    """The move of an evicted pod without a running replacement."""
    unsettled: PodMove | None = None
    """The move with an eviction that had no answer."""
    bound_node: str = ""
    """The node of the pod that was pending, or ""."""
    stopped: str = ""
    """Why the run stopped, or ""."""
    interrupted: bool = False

    @property
    def untouched(self) -> list[PodMove]:
        """The remaining moves without an eviction."""
        return [move for move in self.remaining if move not in (self.evicted, self.unsettled)]


class _Halted(GpuShareError):
    """The run stops."""


class _Refused(GpuShareError):
    """An eviction was refused, and may be retried on a new list of the cluster."""


class _Record:
    """The record of moves in a ConfigMap of this namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl = kubectl
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._settled: set[str] = set()

    def begin(self, ref: PodRef) -> None:
        """Record that the pod is evicted next. Raises _Refused while another process moves pods."""
        record, now = self._read(), time.time()
        earlier = record.under_way(now)
        if earlier is not None:
            raise _Refused(f"{earlier.pod} is being moved by another process")
        try:
            self._write(record.sent(ref.uid, str(ref), now))
        except ApiConflict as error:
            raise _Refused("another process moves pods, too") from error

    def settle(self, uid: str) -> None:
        """Record the end of the move."""
        self._settled.add(uid)
        # If the write fails, other processes wait until the record is stale.
        with suppress(ApiError, MessageError):
            self._write(self._read())

    def withdraw(self, uid: str) -> None:
        """Record that nothing was evicted."""
        with suppress(ApiError, MessageError):
            self._write(self._read().withdrawn(uid))

    def _read(self) -> MoveRecord:
        """Return the record, with the ends of this run's moves."""
        try:
            document = self._kubectl.get(f"{self._maps}/{MOVES}")
        except ApiNotFound:
            return MoveRecord()
        record = record_of(document, time.time())
        for uid in self._settled:
            record = record.settled(uid)
        return record

    def _write(self, record: MoveRecord) -> None:
        if record.version:
            self._kubectl.replace(f"{self._maps}/{MOVES}", record.document())
        else:
            self._kubectl.create(self._maps, record.document())


class DefragRun:
    """One run of a plan.

    look: lists the cluster, and plans with at most this number of moves. namespace: of the record
    of moves. wait: seconds. say: prints a line.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        first: Look,
        look: Callable[[int], Look],
        *,
        namespace: str,
        wait: float,
        say: Callable[[str], None],
    ) -> None:
        self._kubectl, self._record = kubectl, _Record(kubectl, namespace)
        self._node, self._pod = first.answer.node, first.pod
        self._look = look
        self._wait = wait
        self._say = say
        self._all = len(first.answer.moves)
        self._done = RunOutcome(list(first.answer.moves))
        self._announced: set[PodRef] = set()

    def outcome(self) -> RunOutcome:
        """Carry the plan out while it holds; return the outcome."""
        try:
            self._carry_out()
        except GpuShareError as error:
            self._done.stopped = str(error)
        except KeyboardInterrupt:
            self._done.stopped, self._done.interrupted = "ended by Ctrl-C", True
            # One read tells whether the interrupted eviction was made.
            move = self._done.unsettled
            with suppress(GpuShareError, KeyboardInterrupt):
                if move is not None and self._is_gone_now(move.entry.ref):
                    self._done.evicted, self._done.unsettled = move, None
        return self._done

    def _carry_out(self) -> None:
        outcome = self._done
        refused_until: float | None = None
        while outcome.remaining:
            look = self._holding()
            outcome.remaining = list(look.answer.moves) if look else []
            if not (look and outcome.remaining):
                self._say("The room is open: what was left of the plan need not move.")
                break
            move = outcome.remaining[0]
            try:
                self._move(move, look.books.pods[move.entry.ref.uid])
            except _Refused as refused:
                now = time.monotonic()
                if refused_until is None:
                    refused_until = now + self._wait
                    self._say(f"{refused}; it is tried again")
                if now >= refused_until:
                    raise _Halted(f"{refused}, for {self._wait:g} seconds") from refused
                time.sleep(_PAUSE)
            else:
                refused_until = None
        self._check_room()

    # -- before a move ------------------------------------------------------------------------

    def _holding(self) -> Look | None:
        """Return the cluster, with a plan that agrees with the remaining moves.

        None if the pending pod has its room already. Waits for an exhausted budget: the pod of the
        last move may count as disrupted a little longer. Raises _Stopped.
        """
        remaining = {move.entry.ref.uid for move in self._done.remaining}
        until, announced = time.monotonic() + self._wait, False
        while True:
            node = self._node_of_waiting(self._pod) if self._pod else ""
            if node == self._node:
                return None
            if node:
                self._done.bound_node = node
                raise _Halted(f"pod {self._pod} is bound to {node} already")
            look = self._look(len(remaining))
            answer = look.answer
            moves = {move.entry.ref.uid for move in answer.moves}
            if answer.node and (not moves or (answer.node == self._node and moves <= remaining)):
                return look
            spent, reason = self._why_not(look)
            if spent is None or time.monotonic() >= until:
                raise _Halted(f"the rest of the plan holds no longer: {reason}")
            if not announced:
                self._say(f"{spent}: {Rule.SPENT.value}; waiting for it")
                announced = True
            time.sleep(_PAUSE)

    def _why_not(self, look: Look) -> tuple[PodRef | None, str]:
        """Return (a remaining pod that only its budget keeps, why the plan does not hold)."""
        spent, reason = None, ""
        for move in self._done.remaining:
            ref = move.entry.ref
            entry = look.books.ledger.entry(ref.uid)
            rule = look.rules.judge(entry).rule if entry else None
            if rule is Rule.SPENT:
                spent = spent or ref
            if entry is None or entry.node != self._node:
                reason = reason or f"{ref} is gone"
            elif rule is not None:
                reason = reason or f"{ref}: {rule.value}"
        if look.answer.node:
            reason = reason or f"now the fewest moves are others, on {look.answer.node}"
        return spent, reason or f"it does not open the room on {self._node} any more"

    def _node_of_waiting(self, ref: PodRef) -> str:
        """Return the node of the pod, "" while pending. Raises _Stopped if the pod is gone."""
        try:
            pod = self._kubectl.get(pod_path(ref))
        except ApiNotFound:
            pod = {}
        metadata = mapping(pod.get("metadata"))
        if metadata.get("uid") != ref.uid or metadata.get("deletionTimestamp"):
            raise _Halted(f"pod {ref}, for which it is done, is gone")
        return text(mapping(pod.get("spec")).get("nodeName"))

    # -- a move -------------------------------------------------------------------------------

    def _move(self, move: PodMove, pod: OwnedPod) -> None:
        """Evict the pod, and wait until its replacement runs on the planned node."""
        ref, outcome = move.entry.ref, self._done
        label = f"move {len(outcome.finished) + 1} of {self._all}"
        before = self._pods(ref.namespace)
        if ref not in self._announced:
            self._announced.add(ref)
            self._say(f"{label}: evicting {ref} from {move.entry.node}, for {move.node}")
        self._begin(ref)
        try:
            self._evict(move, (pod.metadata or Metadata()).resource_version or "")
        except GpuShareError:
            if outcome.unsettled is None:
                self._record.withdraw(ref.uid)
            raise
        outcome.evicted, outcome.unsettled = move, None
        outcome.remaining.remove(move)
        name = self._successor(move, controller_of(pod) or Owner(), frozenset(before))
        outcome.finished.append((move, name))
        outcome.evicted = None
        self._record.settle(ref.uid)
        self._say(f"{label}: {name} runs on {move.node}")

    def _begin(self, ref: PodRef) -> None:
        """Record the eviction. Raises _Stopped if the account may not write the record."""
        try:
            self._record.begin(ref)
        except ApiError as error:
            if error.status == _FORBIDDEN:
                raise _Halted(
                    f"ConfigMap {MOVES}, in which moves are written down, may not be read and"
                    f" written; docs/defrag.md shows the rights that --apply needs ({error})"
                ) from error
            raise

    def _evict(self, move: PodMove, version: str) -> None:
        """Evict the pod. After an unclear answer read the pod, and send the same eviction again: it
        cannot hit another pod.
        """
        ref = move.entry.ref
        body = eviction(ref, version)
        until, unclear = time.monotonic() + self._wait, False
        self._done.unsettled = move
        while True:
            try:
                self._kubectl.create(f"{pod_path(ref)}/eviction", body)
            except ApiError as error:
                if not (unclear and isinstance(error, (ApiConflict, ApiNotFound))):
                    self._check_unclear(ref, error)
                    if not unclear:
                        self._say(f"The eviction of {ref} had no clear answer; it is read: {error}")
                if self._is_gone(ref):
                    return
                if isinstance(error, (ApiConflict, ApiNotFound)):
                    self._refuse(f"{ref} has changed since it was looked at")
                if time.monotonic() >= until:
                    raise _Halted(f"{ref} is not evicted: {error}") from error
                unclear = True
            else:
                return
            time.sleep(_POLL)

    def _check_unclear(self, ref: PodRef, error: ApiError) -> None:
        """Raise the error that a clear answer means."""
        if error.status == _FORBIDDEN:
            self._done.unsettled = None
            raise _Halted(
                f"pods/eviction may not be created in namespace {ref.namespace}; docs/defrag.md"
                f" shows the rights that --apply needs ({error})"
            )
        if error.status in _WRONG:
            self._done.unsettled = None
            raise error
        if error.status == _TOO_MANY:
            self._refuse(f"{ref} is not evicted now: {error}")
        if isinstance(error, (ApiConflict, ApiNotFound)):
            self._refuse(f"{ref} has changed since it was looked at")

    def _refuse(self, reason: str) -> NoReturn:
        self._done.unsettled = None
        raise _Refused(reason)

    def _is_gone(self, ref: PodRef) -> bool:
        """Return whether the pod is gone or being deleted; read until that is known."""
        until = time.monotonic() + self._wait
        while True:
            try:
                return self._is_gone_now(ref)
            except ApiError as error:
                if time.monotonic() >= until:
                    raise _Halted(f"whether {ref} was evicted is not known: {error}") from error
            time.sleep(_POLL)

    def _is_gone_now(self, ref: PodRef) -> bool:
        try:
            metadata = mapping(self._kubectl.get(pod_path(ref)).get("metadata"))
        except ApiNotFound:
            return True
        return metadata.get("uid") != ref.uid or bool(metadata.get("deletionTimestamp"))

    # -- after a move -------------------------------------------------------------------------

    def _successor(self, move: PodMove, owner: Owner, before: frozenset[str]) -> str:
        """Return the name of the replacement pod that runs on the planned node.

        The evicted pod must be gone: it holds its devices until then. Raises _Stopped.
        """
        ref = move.entry.ref
        until, state = time.monotonic() + self._wait, ""
        while True:
            try:
                pods = self._pods(ref.namespace)
                state = f"{ref} is still ending" if ref.uid in pods else "no pod came in its stead"
                for uid, pod in pods.items():
                    metadata = pod.metadata or Metadata()
                    if (
                        uid in before
                        or metadata.deletion_timestamp
                        or not may_succeed(pod, owner, ref.name)
                    ):
                        continue
                    name = f"{ref.namespace}/{metadata.name}"
                    node = (pod.spec and pod.spec.node_name) or ""
                    if node not in ("", move.node):
                        raise _Halted(f"{name} landed on {node}, not on {move.node}")
                    phase = (pod.status and pod.status.phase) or "Pending"
                    if node and phase == "Running" and ref.uid not in pods:
                        return name
                    if ref.uid not in pods:
                        place = f"on {node}" if node else "and waits for a node"
                        state = f"{name} is {phase} {place}"
            except ApiError as error:
                state = str(error)
            if time.monotonic() >= until:
                raise _Halted(f"{ref} does not run again after {self._wait:g} seconds: {state}")
            time.sleep(_POLL)

    def _check_room(self) -> None:
        """Wait until the pending pod is bound; without a pod, check that there is room."""
        if self._pod is None:
            answer = self._look(1).answer
            if not answer.node or answer.moves:
                raise _Halted("all was moved, but there is no room: something else took it")
            return
        until = time.monotonic() + self._wait
        while not (node := self._node_of_waiting(self._pod)):
            if time.monotonic() >= until:
                raise _Halted(f"the room is open, but pod {self._pod} is not bound")
            time.sleep(_POLL)
        self._done.bound_node = node

    def _pods(self, namespace: str) -> dict[str, OwnedPod]:
        """Return the pods of a namespace that have not ended, by uid."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        pods = items(self._kubectl, path, OWNED_PODS, NOT_ENDED, [])
        return {(pod.metadata and pod.metadata.uid) or "": pod for pod in pods}
