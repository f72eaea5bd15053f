"""The trace of one scheduling cycle of one pod, stage by stage, and the last cycles of all.

A trace is text or JSON; the stages have kube-scheduler's names. A file of cycles has one JSON
object per line.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare_localcluster.scheduler.cycle import CycleError, Decision, FitError, Scores
from gpushare_localcluster.scheduler.framework import Code, Status
from gpushare_localcluster.scheduler.objects import Json, PodView

_WIDTH = 10


@dataclass(frozen=True)
class CycleTrace:
    """One cycle.

    rejected: the status of infeasible nodes. scores: of feasible nodes, by source. node: the chosen
    one, "" for none. outcome: of the binding, or why the pod is pending. skipped, unscored: the
    plug-ins with Skip at PreFilter and PreScore. waits: the plug-ins that delayed the binding at
    Permit, with the longest wait in seconds.
    """

    pod: PodView
    outcome: Status
    node: str = ""
    rejected: Mapping[str, Status] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    skipped: frozenset[str] = frozenset()
    unscored: frozenset[str] = frozenset()
    waits: Mapping[str, float] = field(default_factory=dict)

    def document(self) -> Json:
        """Return the cycle as a JSON object."""
        return {
            "pod": self.pod.key,
            "schedulerName": self.pod.scheduler_name,
            "skippedFilters": sorted(self.skipped),
            "filter": {
                node: {
                    "plugin": status.plugin,
                    "code": status.code.value,
                    "reasons": list(status.reasons),
                }
                for node, status in sorted(self.rejected.items())
            },
            "skippedScores": sorted(self.unscored),
            "score": {who: dict(node_scores) for who, node_scores in self.scores.items()},
            "node": self.node or None,
            "permitWaits": dict(self.waits),
            "outcome": {
                "code": self.outcome.code.value,
                "by": self.outcome.plugin,
                "message": self.outcome.message,
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the cycle as lines of text, in the order of the stages."""
        yield f"cycle of {self.pod.key} by {self.pod.scheduler_name}"
        if self.skipped:
            yield _line("PreFilter", f"not for this pod: {', '.join(sorted(self.skipped))}")
        for node, status in sorted(self.rejected.items()):
            yield _line("Filter", f"not {node}: {status.message} ({status.plugin})")
        if self.unscored:
            yield _line("PreScore", f"not for this pod: {', '.join(sorted(self.unscored))}")
        nodes = {node for node_scores in self.scores.values() for node in node_scores}
        for node in sorted(nodes):
            parts = {
                who: node_scores[node]
                for who, node_scores in self.scores.items()
                if node_scores.get(node)
            }
            sums = " + ".join(f"{who} {score}" for who, score in parts.items())
            yield _line("Score", f"{node} {sum(parts.values())}" + (f" = {sums}" if sums else ""))
        if self.node:
            yield _line("Chosen", self.node)
        for who, longest in self.waits.items():
            yield _line("Permit", f"wait for {who}, at most {longest:g} s")
        if self.outcome.ok:
            yield _line("Bind", f"by {self.outcome.plugin}")
        else:
            stage = self.outcome.plugin if self.node else "Waits"
            yield _line(stage or "Bind", self.outcome.message)


Tracer = Callable[[CycleTrace], None]


def waiting(pod: PodView, error: FitError | CycleError) -> CycleTrace:
    """Return the cycle of a pod without a node, or with a failed decision."""
    if isinstance(error, FitError):
        return CycleTrace(pod, Status(Code.UNSCHEDULABLE, (str(error),)), rejected=error.statuses)
    return CycleTrace(pod, Status(Code.ERROR, (str(error),)))


def decided(decision: Decision, outcome: Status) -> CycleTrace:
    """Return the cycle of a pod with a chosen node, and the outcome."""
    return CycleTrace(
        pod=decision.pod,
        outcome=outcome,
        node=decision.node,
        rejected=decision.statuses,
        scores=decision.details,
        skipped=decision.state.skip_filter,
        unscored=decision.state.skip_score,
        waits=decision.state.waits,
    )


def _line(stage: str, text: str) -> str:
    return f"  {stage.ljust(_WIDTH)} {text}"


@contextlib.contextmanager
def cycle_log(file: Path | None) -> Iterator[Tracer]:
    """Yield a function that writes a cycle, from any thread; without a file it does nothing.

    Raises SettingsError for a file that cannot be written.
    """
    if file is None:
        yield lambda _cycle: None
        return
    lock = threading.Lock()
    try:
        out = file.open("w", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}") from error

    def write(cycle: CycleTrace) -> None:
        with lock:
            print(json.dumps(cycle.document()), file=out, flush=True)

    with out:
        yield write
