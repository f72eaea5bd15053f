"""Carry out a plan of `gpushare defrag`: one eviction at a time, each only while the plan holds.

explain/moves.py decides each step. Before each move the cluster is listed and planned again, with
every rule. The API server checks budgets, and each eviction names the pod by uid and
resourceVersion, so that it cannot hit another pod. Each move is recorded before the eviction in the
record of the extender's moves, so that no other process moves pods meanwhile (wire/moves.py).
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from gpushare.cli.cluster import NOT_ENDED, items
from gpushare.cli.kubectl import Kubectl
from gpushare.cli.listed_cluster import ListedResource
from gpushare.core.model import PodRef
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, GpuShareError, MessageError
from gpushare.explain import moves
from gpushare.explain.defrag import DefragAnswer, Hole, MoveRules, PodMove, Rule
from gpushare.ledger import Ledger
from gpushare.wire.kept import MOVES
from gpushare.wire.moves import MoveRecord, eviction, record_of
from gpushare.wire.objects import PODS, Metadata, Pod
from gpushare.wire.pods import pod_path, read_pod

_POLL = 2.0
"""Seconds between reads of one namespace."""
_PAUSE = 10.0
"""Seconds between lists of the whole cluster."""
_FORBIDDEN = 403


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

    run: moves.Run
    finished: list[tuple[PodMove, str]] = field(default_factory=list)
    """The finished moves, each with the name of the replacement pod."""
    bound_node: str = ""
    """The node of the pod that was pending, or ""."""
    stopped: str = ""
    """Why the run stopped, or ""."""
    interrupted: bool = False

    @property
    def untouched(self) -> list[PodMove]:
        """The remaining moves without an eviction."""
        return [move for move in self.run.unmoved.values() if move is not self.run.sent]


class _Halted(GpuShareError):
    """The run stops."""


class DefragRecord:
    """The record of moves in a ConfigMap of this namespace."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl = kubectl
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._settled: set[str] = set()

    def begin(self, ref: PodRef) -> str:
        """Record that the pod is evicted next; return "", or why another process comes first.

        Raises _Halted if the account may not write the record.
        """
        now = time.time()
        try:
            record = self._read()
            if earlier := record.under_way(now):
                return f"{earlier.pod} is being moved by another process"
            self._write(record.sent(ref.uid, str(ref), now))
        except ApiConflict:
            return "another process moves pods, too"
        except ApiError as error:
            if error.refusal != _FORBIDDEN:
                raise
            raise _Halted(
                f"ConfigMap {MOVES}, in which moves are written down, may not be read and written;"
                f" docs/defrag.md shows the rights that --apply needs ({error})"
            ) from error
        return ""

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

    plan: lists the cluster, and plans with at most this number of moves. namespace: of the record
    of moves. wait: seconds. say: prints a line.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        first: Look,
        plan: Callable[[int], Look],
        *,
        namespace: str,
        wait: float,
        say: Callable[[str], None],
    ) -> None:
        self._kubectl, self._record = kubectl, DefragRecord(kubectl, namespace)
        self._plan = plan
        self._wait = wait
        self._say = say
        self._run = moves.Run(first.pod, first.answer, time.monotonic(), wait)
        self._look = first
        self._observation = moves.Observation()
        self._all = len(first.answer.moves)
        self._outcome = RunOutcome(self._run)
        self._announced: set[PodRef] = set()
        self._error: ApiError | None = None
        """The error of the last read or eviction of the move under way; None after a success."""
        self._refusal = ""
        """Why the API server or another process refused the next eviction, or ""."""
        self._spent: PodRef | None = None
        """The remaining pod whose budget the run waits for."""

    def outcome(self) -> RunOutcome:
        """Carry the plan out while it holds; return the outcome."""
        try:
            self._carry_out()
        except GpuShareError as error:
            self._outcome.stopped = str(error)
        except KeyboardInterrupt:
            self._outcome.stopped, self._outcome.interrupted = "ended by Ctrl-C", True
            # One read tells whether the interrupted eviction was made.
            with suppress(GpuShareError, KeyboardInterrupt):
                if self._run.sent is not None:
                    self._run.step(moves.observe(self._run, self), time.monotonic())
        return self._outcome

    def _carry_out(self) -> None:
        while True:
            step = self._step()
            if isinstance(step, moves.Evict):
                step = self._evict(step.move)
            match step:
                case moves.EvictionEnd(move):
                    self._end_move(move)
                case moves.RoomOpen():
                    self._say("The room is open: what was left of the plan need not move.")
                case moves.Stopped(why):
                    raise _Halted(self._reason(why))
                case moves.PlanDone():
                    return
                case moves.NotEvicted(move):
                    self._record.withdraw(move.entry.ref.uid)
                    time.sleep(_PAUSE)
                case moves.Pause():
                    run = self._run
                    between_moves = run.unmoved and not (run.sent or run.evicted)
                    time.sleep(_PAUSE if between_moves else _POLL)

    def _step(self) -> moves.Step:
        """Observe the cluster, and return the next step.

        While an evicted pod or the outcome of an eviction is awaited, failed reads are repeated.
        """
        run = self._run
        try:
            self._observation = observation = moves.observe(run, self)
        except ApiError as error:
            self._error = error
            if run.sent is None and run.evicted is None:
                raise
            if time.monotonic() < run.until:
                return moves.Pause()
            return moves.Stopped(moves.Stop.UNKNOWN if run.sent else moves.Stop.NOT_RUNNING)
        if run.evicted is not None:
            self._error = None
        self._outcome.bound_node = observation.node or ""
        step = run.step(observation, time.monotonic())
        if observation.spent and isinstance(step, moves.Pause) and self._spent is None:
            self._spent, _ = self._why_not()
            self._say(f"{self._spent}: {Rule.SPENT.value}; waiting for it")
        return step

    # -- reads for the observation ----------------------------------------------------------------

    def pod(self, ref: PodRef) -> Pod | None:
        """Return the pod; None if the pod is gone, or another pod has the name."""
        return read_pod(partial(self._kubectl.request, "GET", query={}), ref)

    def pods_of_owner(self, pod: Pod) -> dict[str, Pod]:
        """Return the pods of the namespace that have not ended, by uid."""
        path = f"/api/v1/namespaces/{(pod.metadata or Metadata()).namespace}/pods"
        pods = items(self._kubectl, path, PODS, NOT_ENDED, [])
        return {(pod.metadata and pod.metadata.uid) or "": pod for pod in pods}

    def look(self, max_moves: int) -> tuple[DefragAnswer, MoveRules, Ledger]:
        """Return a new plan, its rules, and the books."""
        self._look = look = self._plan(max_moves)
        return look.answer, look.rules, look.books.ledger

    # -- a move -----------------------------------------------------------------------------------

    def _evict(self, move: PodMove) -> moves.Step:
        ref, run = move.entry.ref, self._run
        if run.sent is None:
            run.old = old = self._look.books.pods[ref.uid]
            run.before = frozenset(self.pods_of_owner(old)) | {ref.uid}
            if ref not in self._announced:
                self._announced.add(ref)
                place = f"from {move.entry.node}, for {move.node}"
                self._say(f"{self._label()}: evicting {ref} {place}")
            if refusal := self._record.begin(ref):
                self._refuse(refusal)
                return run.answered(move, moves.Answer.POSTPONED, time.monotonic())
        answer = self._send(move)
        step = run.answered(move, answer, time.monotonic())
        if answer is moves.Answer.FORBIDDEN:
            if run.sent is None:
                self._record.withdraw(ref.uid)
            if self._error is not None and self._error.refusal == _FORBIDDEN:
                raise _Halted(
                    f"pods/eviction may not be created in namespace {ref.namespace}; docs/defrag.md"
                    f" shows the rights that --apply needs ({self._error})"
                )
            raise _Halted(str(self._error))
        if answer is moves.Answer.TOO_MANY:
            self._refuse(f"{ref} is not evicted now: {self._error}")
        elif answer is moves.Answer.CHANGED:
            self._refuse(f"{ref} has changed since it was looked at")
        return step

    def _send(self, move: PodMove) -> moves.Answer:
        ref, run = move.entry.ref, self._run
        version = (run.old and run.old.metadata and run.old.metadata.resource_version) or ""
        try:
            self._kubectl.create(f"{pod_path(ref)}/eviction", eviction(ref, version))
        except ApiError as error:
            self._error = error
            answer = moves.answer_of(error)
            if answer is moves.Answer.UNCLEAR and run.sent is None:
                self._say(f"The eviction of {ref} had no clear answer; it is read: {error}")
            return answer
        except KeyboardInterrupt:
            run.answered(move, moves.Answer.UNCLEAR, time.monotonic())
            raise
        return moves.Answer.DONE

    def _refuse(self, refusal: str) -> None:
        if not self._refusal:
            self._say(f"{refusal}; it is tried again")
        self._refusal = refusal

    def _end_move(self, move: PodMove) -> None:
        """Note that the replacement of the pod runs."""
        heir = self._observation.heir
        name = heir.name if heir is not None else ""
        self._say(f"{self._label()}: {name} runs on {move.node}")
        self._outcome.finished.append((move, name))
        self._record.settle(move.entry.ref.uid)
        self._refusal, self._spent = "", None

    def _label(self) -> str:
        return f"move {len(self._outcome.finished) + 1} of {self._all}"

    # -- the end ----------------------------------------------------------------------------------

    def _reason(self, why: moves.Stop) -> str:
        run, observation = self._run, self._observation
        move = run.sent or run.evicted
        ref, seconds = move.entry.ref if move else None, f"{self._wait:g} seconds"
        match why:
            case moves.Stop.POD_GONE:
                return f"pod {run.pod}, for which it is done, is gone"
            case moves.Stop.POD_BOUND:
                return f"pod {run.pod} is bound to {observation.node} already"
            case moves.Stop.REFUSED:
                return f"{self._refusal}, for {seconds}"
            case moves.Stop.UNKNOWN:
                return f"whether {ref} was evicted is not known: {self._error}"
            case moves.Stop.LANDED:
                heir = observation.heir or moves.Heir("", "", "")
                return f"{heir.name} landed on {heir.node}, not on {move.node if move else ''}"
            case moves.Stop.NOT_RUNNING:
                return f"{ref} does not run again after {seconds}: {self._replacement(ref)}"
            case moves.Stop.NOT_BOUND if run.pod is None:
                return "all was moved, but there is no room: something else took it"
            case moves.Stop.NOT_BOUND:
                return f"the room is open, but pod {run.pod} is not bound"
            case _:
                return f"the rest of the plan holds no longer: {self._why_not()[1]}"

    def _replacement(self, ref: PodRef | None) -> str:
        heir = self._observation.heir
        if self._error is not None:
            return str(self._error)
        if not self._observation.ended:
            return f"{ref} is still ending"
        if heir is None:
            return "no pod came in its stead"
        place = f"on {heir.node}" if heir.node else "and waits for a node"
        return f"{heir.name} is {heir.phase} {place}"

    def _why_not(self) -> tuple[PodRef | None, str]:
        """Return (a remaining pod that only its budget keeps, why the plan does not hold)."""
        look, node = self._look, self._run.node
        spent, reason = None, ""
        for move in self._run.unmoved.values():
            ref = move.entry.ref
            entry = look.books.ledger.entry(ref.uid)
            rule = look.rules.judge(entry).rule if entry else None
            if rule is Rule.SPENT:
                spent = spent or ref
            if entry is None or entry.node != node:
                reason = reason or f"{ref} is gone"
            elif rule is not None:
                reason = reason or f"{ref}: {rule.value}"
        if look.answer.node:
            reason = reason or f"now the fewest moves are others, on {look.answer.node}"
        return spent, reason or f"it does not open the room on {node} any more"
