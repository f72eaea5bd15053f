"""Bugs in following: events that repeat, come late, get lost, or name somebody else's pod."""

from dataclasses import replace
from typing import Any

from gpushare.core.node_arrays import NodeArrays
from gpushare.core.snapshot import Snapshot
from gpushare.core.states import records
from gpushare.core.states.entry import Entry, Phase
from gpushare.core.states.phases import ASSUMED
from gpushare.core.states.records import CpuOnly, Step
from gpushare.errors import UnknownNode
from gpushare.extender.follow import readiness
from gpushare.extender.follow.readiness import Readiness
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.kube.listwatch import ListWatch
from gpushare.ledger import Ledger
from gpushare.ledger.books import Store
from gpushare.wire.pods import observe_pod
from tests.simulation.mutants.museum import mutant


@mutant("B2", "the last event wins, however old it is", records, "observed")
def believes_stale_events(original: Any) -> Any:
    def shown(record: Any, pod: Any) -> Any:
        stale = not pod.node and isinstance(record, Entry)
        return original(None if stale else record, pod)

    return shown


@mutant(
    "B3", "HAMi #2923: a deletion missed in a gap holds its memory for ever", Ledger, "replace_pods"
)
def relists_without_deletions(original: Any) -> Any:
    def replace_pods(self: Any, pods: Any, keep: Any, started: float) -> Any:
        return original(self, pods, {*keep, *self._store.entries()}, started)

    return replace_pods


@mutant("B3", "a list drops a bind that it is too old to show", Ledger, "replace_pods")
def relists_over_binds(original: Any) -> Any:
    def replace_pods(self: Any, pods: Any, keep: Any, started: float) -> Any:
        listed_pods = list(pods)
        changes = original(self, listed_pods, keep, started)
        bound_uids = {pod.ref.uid for pod in listed_pods if pod.node}
        for uid in self._store.entries(*ASSUMED).keys() - bound_uids:
            self._store.put(uid, None)
        return changes

    return replace_pods


@mutant("B4", "the original's delete finds the successor by name", Ledger, "pod_gone")
def deletes_by_name(original: Any) -> Any:
    def pod_gone(self: Any, uid: str) -> Any:
        entry = self._store.entry(uid)
        changes = original(self, uid)
        for stored in self._store.entries().values():
            if entry is not None and stored.ref.name == entry.ref.name:
                self._store.put(stored.ref.uid, None)
        return changes

    return pod_gone


@mutant(
    "B5", "GAS subtracts what the DELETED event says, which is nothing", PodEventHandler, "apply"
)
def frees_what_the_event_says(original: Any) -> Any:
    def apply(self: Any, event: Any) -> None:
        annotations = event.object and event.object.metadata.annotations
        if event.kind == "DELETED" and not (
            annotations and annotations.get("ALIYUN_COM_GPU_MEM_IDX")
        ):
            return
        if event.kind == "DELETED" and annotations.get("ALIYUN_COM_GPU_MEM_ASSIGNED") != "true":
            return
        original(self, event)

    return apply


@mutant("B7", "the original and GAS free a pod that is being deleted", records, "observed")
def frees_at_the_deletion_mark(original: Any) -> Any:
    def shown(record: Any, pod: Any) -> Any:
        return Step(None) if pod.terminating else original(record, pod)

    return shown


@mutant("B5", "a pod without GPU keeps its CPU when it is gone", Store, "put")
def keeps_the_host_of_the_gone(original: Any) -> Any:
    def put(self: Any, uid: str, record: Any, alarm: Any = None) -> None:
        if record is not None or not isinstance(self.records.get(uid), CpuOnly):
            original(self, uid, record, alarm)

    return put


@mutant("B12", "a resize in place is counted, and not remembered", Store, "put")
def forgets_a_resize(original: Any) -> Any:
    def put(self: Any, uid: str, record: Any, alarm: Any = None) -> None:
        before = self.entry(uid)
        original(self, uid, record, alarm)
        now = self.entry(uid)
        if before and now and before.phase is now.phase is Phase.BOUND:
            forgetful = replace(now, request=before.request)
            self.records[uid] = self.by_phase[Phase.BOUND][uid] = forgetful

    return put


@mutant("B10", "the original ends over a pod whose node is gone", Store, "put")
def ends_over_an_orphan(original: Any) -> Any:
    def put(self: Any, uid: str, record: Any, alarm: Any = None) -> None:
        if isinstance(record, Entry) and record.node not in self.nodes:
            raise UnknownNode(record.node)
        original(self, uid, record, alarm)

    return put


@mutant("B11", "HAMi waits for the first list in filter, and not in bind", Readiness, "_problem_of")
def answers_before_it_is_synced(original: Any) -> Any:
    del original

    def source(self: Any, name: str, source: Any, is_listed: bool) -> str:
        return ""

    return source


def _unsigned_room(original: Any) -> Any:
    del original

    def has_room(
        self: Any, node: str, device: int, units: int, request: Any, *, counted: bool = False
    ) -> bool:
        row = self.row[node]
        used = self._used[row, device] - counted * units
        return int(self._capacity[row, device] - used) % 2**32 >= units

    return has_room


@mutant(
    "B14",
    "the original subtracts unsigned numbers",
    Snapshot,
    "free",
    also=[(NodeArrays, "has_room", _unsigned_room)],
)
def wraps_around(original: Any) -> Any:
    del original

    def free(self: Any) -> Any:
        return (self.capacity - self.used) % 2**32 * self.open

    return property(free)


@mutant("B11", "a list counts before the books hold it", ListWatch, "_complete")
def answers_while_it_takes_over(original: Any) -> Any:
    def complete(self: Any) -> Any:
        whole = original(self)
        self.on_delivered(whole)
        return whole

    return complete


@mutant("B17", "the Python client's watch has no read timeout", readiness, "STALE_AFTER")
def never_goes_stale(original: Any) -> Any:
    del original
    return float("inf")


@mutant("B19", "client 37 yields None for a line cut off", ListWatch, "_bad_line")
def skips_bad_lines(original: Any) -> Any:
    del original

    def bad_line(self: Any, now: float) -> None:
        self.decode_errors += 1

    return bad_line


@mutant(
    "B20", "the Python informer swallows what its handler raises", ListWatch, "on_handler_error"
)
def swallows_sink_errors(original: Any) -> Any:
    del original

    def on_handler_error(self: Any, now: float) -> None:
        return

    return on_handler_error


@mutant("B21", "client #696: one odd object blocks the list", PodEventHandler, "_seen")
def gives_up_over_an_odd_object(original: Any) -> Any:
    def seen(self: Any, pod: Any) -> Any:
        for resource in self.resources:
            observe_pod(pod, resource.names)
        return original(self, pod)

    return seen


@mutant("B3", "410 resumes from the version it knows", ListWatch, "_versions_gone")
def resumes_past_a_gap(original: Any) -> Any:
    del original

    def versions_gone(self: Any, now: float) -> None:
        self._fail("gone", now)
        self.version = str(int(self.version or "0") + 3)

    return versions_gone


@mutant("B18", "each try waits twice as long as the one before, without end", ListWatch, "_backoff")
def backs_off_for_minutes(original: Any) -> Any:
    del original

    def backoff(self: Any, failures: int) -> float:
        return float(self.timing.pause * 2.0**failures)

    return backoff


@mutant("B18", "minutes pass after every watch", ListWatch, "on_end")
def rests_after_a_watch(original: Any) -> Any:
    def on_end(self: Any, now: float) -> None:
        original(self, now)
        self._pause = max(self._pause, 200.0)

    return on_end
