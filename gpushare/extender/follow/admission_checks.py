"""Answers the AdmissionChecks of Kueue: whether all pods of a workload have devices at once.

Kueue reserves quota by sums. For a workload with quota and a pending check of ours this module asks
the books (explain/admission.py), and writes Ready, or Retry with the reason: then Kueue gives the
quota back and tries again after a time that grows with each Retry. A Kueue that keeps the quota
meanwhile gets help. Once the books have room for a workload that this process has refused, this
module ends that wait. After a restart or a change of the leader, Kueue ends the wait.

The watch alone shows what was promised: a workload with our Ready keeps places for its pods that do
not exist yet, as long as it has quota. Each patch has the resourceVersion that was judged, so after
an answer to a patch the watch shows another version. A verdict with unknown outcome keeps its
promise and is sent again as it was.

Tested in `tests/unit/extender/follow/test_admission_checks.py`, and with a real Kueue in
`tests/e2e/test_kueue.py`.
"""

import contextlib
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from gpushare.core.policy import load_policy
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.explain.admission import AdmissionJudge, KeptPlace
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.write_right import REFUSED, WriteRight
from gpushare.extender.managed_resources import ManagedResources
from gpushare.kube.api import Calls, merge_patch
from gpushare.logline import Line
from gpushare.turns import in_turns
from gpushare.wire import kueue
from gpushare.wire.kueue import WorkloadPods, WorkloadRecord

log = logging.getLogger("gpushare.kueue")

FIRST_WAIT = 5
"""Seconds until Kueue tries a workload again after the first Retry; each time twice as long."""
LONGEST_WAIT = 300
_MOST_DOUBLINGS = 6

_EVERY = 1.0
_ROUND = 1.0
"""Seconds of a round for judgements, and again for reasons: the next round has newer books."""
_REST = 9.0
"""A rest is this many times as long as the CPU time of the last judgement; so is the pause after a
round, by the CPU time of the round."""
_MAX_REST = 5.0
_PATIENCE = 600.0
"""Seconds that a pending pod of an admitted workload keeps a free place; kube-scheduler tries a
refused pod again within 300. So long without a judgement, and the time begins anew."""
_SHORT_PATIENCE = 30.0
"""Seconds that another pending pod does: kube-scheduler's longest back-off is 10."""
_TIMEOUT = 5.0
_MOST_TEXT = 1000
"""Characters of the reason in a message."""
_ON_HOSTS = (
    "Kueue has chosen nodes by sums, and chooses the same again: let the lowest level of the"
    " Topology be above kubernetes.io/hostname, such as a rack"
)


@dataclass(frozen=True, slots=True)
class KueueObjects:
    """The objects of Kueue that the watch shows."""

    workloads: Shown[WorkloadRecord] = field(default_factory=Shown)
    checks: Shown[kueue.CheckRecord] = field(default_factory=Shown)
    flavors: Shown[kueue.Flavor] = field(default_factory=Shown)
    pods: Shown[kueue.AdmittedPod] = field(default_factory=Shown)
    """By uid."""


@dataclass(frozen=True, slots=True)
class _SentVerdict:
    """A verdict that was sent. version: the resourceVersion of the workload that was judged."""

    version: str
    state: str
    body: bytes
    is_settled: bool = False
    """Whether the API server has answered: then the watch shows another version soon."""


@dataclass(eq=False)
class AdmissionChecks(LoopPart):
    """Answers the checks: `round` once, a started part again and again.

    unit: the memory unit of the cluster. not_ready: why not to act now, or "". is_synced: whether
    the watch has shown all objects of Kueue. wall: seconds since the epoch. cpu_clock: CPU seconds
    of the thread. rest: leaves the interpreter to the verbs for some seconds.
    """

    api: Calls
    resources: ManagedResources
    seen: KueueObjects
    unit: str
    _: KW_ONLY
    not_ready: Callable[[], str]
    is_synced: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    cpu_clock: Callable[[], float] = time.thread_time
    rest: Callable[[float], object] | None = None

    def __post_init__(self) -> None:
        self._policy = load_policy(FALLBACK_POLICY)
        self._right = WriteRight(self.clock)
        # By uid, while the watch shows the version that was judged.
        self._sent: dict[str, _SentVerdict] = {}
        # By uid: the pods of the workloads whose check has got Retry.
        self._refused: dict[str, tuple[WorkloadPods, ...]] = {}
        self._looked_at: object = None
        # By uid, since when a pod that waits for a node has had a place in each judgement.
        self._placed_since: dict[str, float] = {}
        self._judged_at = -math.inf
        # By uid: the version of a workload that waits and has quota still.
        self._kept: dict[str, str] = {}
        # By name of the AdmissionCheck: the version that was patched.
        self._activated: dict[str, str] = {}
        self._verdicts = Counter({kueue.READY: 0, kueue.RETRY: 0})
        self._failed_writes = 0
        self.loop = Loop("kueue", self.step, _EVERY, log=log, failed="admission checks failed")
        self._rest = self.loop.rest if self.rest is None else self.rest

    def state(self) -> dict[str, float]:
        """Return the values for metrics."""
        return {
            "kueue_ready_total": self._verdicts[kueue.READY],
            "kueue_retry_total": self._verdicts[kueue.RETRY],
            "kueue_failed_writes_total": self._failed_writes,
        }

    def step(self) -> float:
        """Make a round; return the pause after it."""
        began = self.cpu_clock()
        self.round()
        return max(_EVERY, self._rest_after(began))

    def round(self) -> None:
        """Answer the pending checks, and end the wait of refused workloads that fit now."""
        if self.not_ready() or not self.is_synced() or self._right.missing:
            return
        checks = self.seen.checks.all()
        self._activate(checks.values())
        workloads = {item.ref.uid: item for item in self.seen.workloads.all().values()}
        self._sent = {
            uid: sent
            for uid, sent in self._sent.items()
            if uid in workloads and workloads[uid].version == sent.version
        }
        self._refused = {uid: pods for uid, pods in self._refused.items() if uid in workloads}
        for uid, sent in list(self._sent.items()):
            if not sent.is_settled and self._may_write():
                self._send(workloads[uid], sent)
        names = checks.keys()
        self._release(workloads.values(), names)
        pending = [
            workload
            for uid, workload in workloads.items()
            if workload.is_reserved
            and uid not in self._sent
            and not self._right.rests(uid)
            and any(kueue.is_pending(check, names) for check in workload.checks)
        ]
        waiting = [
            workload
            for uid in self._refused
            if (workload := workloads[uid]).waits
            and not (workload.is_reserved or self._right.rests(uid))
        ]
        books = [(resource.ledger.version(), resource.holds.version) for resource in self.resources]
        versions = {workload.version for workload in workloads.values()}
        state = books, self.resources.node_states.version, versions
        if not pending and (not waiting or state == self._looked_at):
            return
        if self._judge(workloads.values(), names, _in_order(pending), _in_order(waiting)):
            self._looked_at = state

    def _judge(
        self,
        workloads: Iterable[WorkloadRecord],
        names: Collection[str],
        pending: Sequence[WorkloadRecord],
        waiting: Sequence[WorkloadRecord],
    ) -> bool:
        """Judge these workloads; return whether there was time for all that wait.

        Reasons come last: one takes as long as hundreds of workloads that fit. A round that judges
        a pending workload writes one verdict at least, or no round would.
        """
        existing = defaultdict[str, list[kueue.AdmittedPod]](list)
        for pod in self.seen.pods.all().values():
            existing[pod.workload].append(pod)
        promised = [
            pods
            for workload in workloads
            if self._is_promised(workload, names)
            for pods in self._missing_pods(workload, existing[workload.key]) or ()
        ]
        judge = self._new_judge(promised)
        refused = list[tuple[WorkloadRecord, tuple[WorkloadPods, ...]]]()
        until, began = self.clock() + _ROUND, self.cpu_clock()
        for workload in pending:
            pods = self._missing_pods(workload, existing[workload.key])
            if pods is None:
                continue
            # A check that was added later finds the places of an earlier one promised.
            has_places = self._is_promised(workload, names)
            if workload.mistake or not (has_places or judge.admit(pods)):
                refused.append((workload, pods))
            elif not self._may_write():
                return False
            else:
                text = "all its pods have devices" if pods else "none of its pods needs a device"
                self._answer(workload, names, {"state": kueue.READY, "message": text})
            began = self._have_rest(began)
            if self.clock() > until:
                break
        is_whole = self._wake(judge, waiting, until)
        until = self.clock() + _ROUND
        for workload, pods in refused:
            if not self._may_write():
                return False
            self._refuse(judge, workload, pods, names)
            began = self._have_rest(began)
            if self.clock() > until:
                break
        return is_whole

    def _new_judge(self, promised: Iterable[WorkloadPods]) -> AdmissionJudge:
        """Return a judge by the books and holds as they are now.

        Who leaves a free place unused for too long takes none; outside of Kueue this counts for all
        of the namespace, or a tenant could keep places with one pod after the other.
        """
        now, kept = self.clock(), dict[str, list[KeptPlace]]()
        if now > self._judged_at + _PATIENCE:
            self._placed_since = {}
        admitted = self.seen.pods.all().keys()
        unused = {
            uid
            for uid, since in self._placed_since.items()
            if now >= since + (_PATIENCE if uid in admitted else _SHORT_PATIENCE)
        }
        others = {
            pod.ref.uid: pod.ref.namespace
            for resource in self.resources
            for pod in resource.ledger.waiting()
            if pod.ref.uid not in admitted
        }
        namespaces = {others[uid] for uid in unused & others.keys()}
        unused |= {uid for uid, namespace in others.items() if namespace in namespaces}
        for resource in self.resources:
            resource.holds.expire(now)
            by_pod = dict[str, KeptPlace]()
            for hold in resource.holds.live():
                uid = hold.pod.ref.uid
                shares = hold.reserved.shares if hold.reserved is not None else ()
                is_charged = resource.ledger.entry(uid) is not None
                if not is_charged and (shares or uid not in by_pod):
                    by_pod[uid] = KeptPlace(uid, hold.node, hold.pod.request, shares)
            kept[resource.names.resource] = list(by_pod.values())
        resources = self.resources.resources
        judge = AdmissionJudge(
            resources, self.unit, self._policy, promised, kept=kept, unused=unused
        )
        self._placed_since = {uid: self._placed_since.get(uid, now) for uid in judge.placed}
        self._judged_at = now
        return judge

    def _wake(self, judge: AdmissionJudge, waiting: Iterable[WorkloadRecord], until: float) -> bool:
        """End the wait of workloads that fit; return whether there was time for all."""
        for workload in waiting:
            if not self._may_write() or self.clock() > until:
                return False
            if judge.admit(self._refused[workload.ref.uid]):
                self._requeue(workload)
        return True

    def _may_write(self) -> bool:
        return not (self.not_ready() or self._right.missing)

    def _may_write_of(self, key: str) -> bool:
        """Return whether the object may be written; key: its uid, or the name of a check."""
        return self._may_write() and not self._right.rests(key)

    def _rest_after(self, began: float) -> float:
        """Return the seconds to rest after work since `began`, a time of this thread."""
        return min(_MAX_REST, _REST * (self.cpu_clock() - began))

    def _have_rest(self, began: float) -> float:
        """Rest after work since `began`, a time of this thread; return the time of the thread."""
        self._rest(self._rest_after(began))
        return self.cpu_clock()

    def _activate(self, checks: Iterable[kueue.CheckRecord]) -> None:
        """Say of each AdmissionCheck of ours whether it is answered."""
        for check in checks:
            body = kueue.active_patch(check, self._now())
            is_new = self._activated.get(check.name) != check.version
            if body is not None and is_new and self._may_write_of(check.name):
                with contextlib.suppress(ApiError):
                    self._write(
                        f"{kueue.API}/admissionchecks/{check.name}/status", body, check.name
                    )
                    self._activated[check.name] = check.version

    def _release(self, workloads: Iterable[WorkloadRecord], names: Collection[str]) -> None:
        """Evict the workloads that wait after a Retry and have kept their quota since last time."""
        kept = {
            workload.ref.uid: workload
            for workload in workloads
            if workload.is_reserved
            and workload.waits
            and any(
                check.get("name") in names and check.get("state") == kueue.RETRY
                for check in workload.checks
            )
        }
        for uid, workload in kept.items():
            if self._kept.get(uid) == workload.version and self._may_write_of(uid):
                with contextlib.suppress(ApiError):
                    self._write(
                        _status_path(workload), kueue.release_patch(workload, self._now()), uid
                    )
        self._kept = {uid: workload.version for uid, workload in kept.items()}

    def _is_promised(self, workload: WorkloadRecord, names: Collection[str]) -> bool:
        sent, check = self._sent.get(workload.ref.uid), workload.check(names) or {}
        state = check.get("state") if sent is None else sent.state
        return state == kueue.READY and workload.is_reserved

    def _missing_pods(
        self, workload: WorkloadRecord, own_pods: Iterable[kueue.AdmittedPod]
    ) -> tuple[WorkloadPods, ...] | None:
        """Return the pods that do not exist yet, with the demands of their flavors.

        own_pods: the pods of the workload. None while a flavor is unknown.
        """
        flavors, missing = self.seen.flavors.all(), []
        for pods in workload.pods:
            if not flavors.keys() >= {*pods.flavors}:
                return None
            part = kueue.with_flavors(pods, flavors)
            selector = {*part.demands.node_selector}
            there = sum(
                pod.pod_set == part.pod_set and selector <= pod.node_selector for pod in own_pods
            )
            if there < part.count:
                missing.append(replace(part, count=part.count - there))
        return tuple(missing)

    def _refuse(
        self,
        judge: AdmissionJudge,
        workload: WorkloadRecord,
        pods: tuple[WorkloadPods, ...],
        names: Collection[str],
    ) -> None:
        """Write Retry, with the reason and a wait that grows."""
        reason = workload.mistake
        if not reason:
            reason = judge.reason(pods, workload.ref.namespace) or "its devices are just taken"
            self._refused[workload.ref.uid] = pods
        count = kueue.retries(workload.check(names) or {})
        seconds = FIRST_WAIT << min(count, _MOST_DOUBLINGS)
        verdict = {
            "state": kueue.RETRY,
            "message": "; ".join([reason[:_MOST_TEXT], *[_ON_HOSTS] * workload.on_hosts]),
            "requeueAfterSeconds": min(seconds, LONGEST_WAIT),
        }
        self._answer(workload, names, verdict)

    def _answer(
        self, workload: WorkloadRecord, names: Collection[str], verdict: Mapping[str, Any]
    ) -> None:
        """Write a verdict."""
        body = kueue.verdict_patch(workload, names, verdict, self._now())
        self._send(workload, _SentVerdict(workload.version, verdict["state"], body))

    def _send(self, workload: WorkloadRecord, sent: _SentVerdict) -> None:
        """Send a verdict, and keep it until the watch shows another version of the workload."""
        uid = workload.ref.uid
        self._sent[uid] = sent
        if sent.state == kueue.READY:
            # A later wait is not ours to end, such as the back-off of pods that are not ready.
            self._refused.pop(uid, None)
        try:
            is_taken = self._write(_status_path(workload), sent.body, uid)
        except ApiError as error:
            if error.refusal in REFUSED:
                del self._sent[uid]
            return
        self._sent[uid] = replace(sent, is_settled=True)
        if is_taken:
            self._verdicts[sent.state] += 1
            log.info(Line("workload judged", workload=workload.key, verdict=sent.state))

    def _requeue(self, workload: WorkloadRecord) -> None:
        """End the wait of a refused workload."""
        with contextlib.suppress(ApiError):
            if self._write(_status_path(workload), kueue.requeue_patch(workload), workload.ref.uid):
                del self._refused[workload.ref.uid]
                log.info(Line("workload tried again: it may fit", workload=workload.key))

    def _write(self, path: str, body: bytes, key: str) -> bool:
        """Send a patch; return whether the API server took it. False: the object has changed or is
        gone, and the watch will show it. Raises ApiError for any other failure.
        """
        try:
            merge_patch(self.api, path, body, _TIMEOUT)
        except (ApiConflict, ApiNotFound):
            return False
        except ApiError as error:
            self._failed_writes += 1
            self._right.failed(error, key)
            log.warning(Line("not written", path=path, error=str(error)))
            raise
        self._right.taken(key)
        return True

    def _now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.wall()))


def _status_path(workload: WorkloadRecord) -> str:
    ref = workload.ref
    return f"{kueue.API}/namespaces/{ref.namespace}/workloads/{ref.name}/status"


def _in_order(workloads: Iterable[WorkloadRecord]) -> list[WorkloadRecord]:
    """Return the workloads in turns of namespaces, in each by priority, then the oldest first."""
    ordered = sorted(workloads, key=lambda item: (-item.priority, item.created, item.key))
    return in_turns(ordered, lambda item: item.ref.namespace)
