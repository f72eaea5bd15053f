"""The metrics for Prometheus. Gauges are computed at each scrape, from one snapshot.

Without `detail` no pod or namespace stands in a label, so there are no more series than nodes and
devices. Any pod of the cluster may be able to ask: all callers together cost at most a thirtieth of
the time.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import prometheus_client

from gpushare import __version__
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.shadow.shadow import Shadow
from gpushare.extender.tell import written_metrics
from gpushare.extender.tell.written_metrics import (
    Labels,
    Samples,
    counts_by,
    families_text,
    family_text,
)

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_ALARMS = ("placement_edited", "bound_by_another", "binding_lost")
_REUSE_FACTOR = 29.0
"""A text is reused for this many times the seconds of making the text."""
_LONGEST = 15.0
"""Upper bound of the seconds of reuse: a pause of the process while it made a text counts too."""

_HELP = {
    "ready": "1 where the process answers; none is 1: GPU pods wait, see /readyz?verbose",
    "leader": "1 where the process leads; of several one does",
    "pending_without_call_seconds": "How long the oldest pod waits that kube-scheduler never asked"
    " about; minutes: gpushare doctor says why it does not call us",
    "bound_unassigned_seconds": "How long the longest waits that no device plug-in has served;"
    " minutes: gpushare doctor names its node",
    "audits_total": "Audits of the books",
    "audit_age_seconds": "Since the last audit; a process that does not lead makes none",
    "audit_findings": "Mistakes that the last audit found; other than 0: report them with the log",
    "audit_findings_total": "Mistakes found so far; report them with the log",
    "audit_healed_total": "Of the mistakes found, those put on the safe side",
    "gate_groups": "Groups whose pods wait at bind for each other",
    "gate_pods": "Pods that wait at bind for the others of their group; they have a place",
    "gate_whole_total": "Groups, or further pods of whole groups, whose Bindings were sent at once",
    "gate_timeouts_total": "Waits of groups that ended by time: they were not whole",
    "gate_yields_total": "Waits of groups that ended for a better group that needed their places",
    "gate_torn_total": "Groups of which the API server refused some Bindings and took others",
    "bind_conflicts_total": "Bindings that the API server refused with 409, as another came first",
    "events_written_total": "Events written",
    "events_dropped_total": "Events not written: too many at once, or refused; the log says which",
    "scheduler_wakes_total": "Nodes written on, so that kube-scheduler tries a waiting pod again",
    "scale_down_kept_nodes": "Nodes that autoscalers are asked to leave alone, as the watch shows",
    "scale_down_failed_writes_total": "Writes on such nodes that failed; the log names the node",
    "placeholders_created_total": "Placeholders created by this process",
    "placeholders_deleted_total": "Placeholders deleted by this process",
    "placeholders_failed_writes_total": "Writes of placeholders that failed; see the log",
    "kueue_ready_total": "Judgements of workloads of Kueue whose pods all have devices",
    "kueue_retry_total": "Judgements of workloads without; Kueue tries these again",
    "kueue_failed_writes_total": "Writes of admission checks that failed; see the log",
    "moves_total": "Pods that were moved so that another fits",
    "moves_refused_total": "Evictions that the API server refused; the log says why",
    "moves_left": "Evictions that are left of the budget of this hour, as last read",
    "reservations": "Pods for which a node is reserved",
    "reservations_total": "Reservations made by this process",
    "reservations_given_up_total": "Reservations whose free place kube-scheduler did not use: look"
    " at the pod's affinity to pods, spread, volumes and host ports",
    "learned_pods_total": "Pods that policies are made for, seen since the start",
    "refits_total": "Policies made anew",
    "refit_failures_total": "Policies that could not be made, so the old ones stay; see the log",
    "refit_duration_seconds": "How long making policies took the last time",
    "refit_age_seconds": "Since policies were made; 0: never yet",
    "trials_total": "Trials of the policy auto",
    "trial_failures_total": "Trials that failed, so that the policy stays; see the log",
    "log_lines_dropped_total": "Log lines that nobody read in time",
}
"""The meaning of each value of the process, and advice; by name without `gpushare_`."""
_OF_A_COLLECTION = {
    "synced": "1 when {} have been listed; 0: see /readyz?verbose and the rights",
    "age_seconds": "Since the API server last said something about {}; 150 is too long",
    "relists_total": "Whole lists read of {}",
    "decode_errors_total": "Objects among {} that could not be read; the log names them",
}


@dataclass(eq=False)
class Metrics:
    """The registry of one process.

    unit_bytes: bytes of a memory unit. state: further values by name (readiness, watches), read at
    each scrape; names that end in _total are counters, other names gauges. detail: memory by
    `devices` alone, by `namespaces` too, or by `pods` as well. shadow: the shadow policy. claims:
    the view of claims, None if claims are not followed. stopped_moves: the number of stopped plans
    of moves by reason. placeholders: the number of placeholders by namespace; empty while the
    option is off. gpu_seconds: the text of the counters of GPU-seconds.
    """

    resources: ManagedResources
    unit_bytes: int
    state: Callable[[], Mapping[str, float]]
    clock: Callable[[], float] = time.monotonic
    _: KW_ONLY
    detail: str = "devices"
    shadow: Shadow | None = None
    claims: ClaimsView | None = None
    stopped_moves: Callable[[], Mapping[str, int]] = dict
    placeholders: Callable[[], Mapping[str, int]] = dict
    gpu_seconds: Callable[[], bytes] = bytes

    def __post_init__(self) -> None:
        self._devices = written_metrics.DeviceMetrics(self.unit_bytes)
        self._scraping = threading.Lock()
        self._text = b""
        self._fresh_until = float("-inf")
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library types most, not this
        self._registry = prometheus_client.CollectorRegistry()
        self._requests = prometheus_client.Counter(
            "gpushare_requests_total",
            "Calls answered, by verb and outcome; the log has a line for each",
            ("verb", "outcome"),
            registry=self._registry,
        )
        self._rejected = prometheus_client.Counter(
            "gpushare_filter_rejected_nodes_total",
            "Nodes that filter did not let through, by reason; gpushare explain says more of a pod",
            ("reason",),
            registry=self._registry,
        )
        self._seconds = prometheus_client.Histogram(
            "gpushare_request_duration_seconds",
            "Time to answer a call, by verb; a bind includes one or two calls of the API server",
            ("verb",),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def observe(self, verb: str, outcome: str, seconds: float) -> None:
        """Count a call."""
        self._requests.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    def rejected(self, reasons: Mapping[str, int]) -> None:
        """Count nodes that filter did not let through."""
        for reason, nodes in reasons.items():
            self._rejected.labels(reason).inc(nodes)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format; the text may be some seconds old."""
        with self._scraping:
            begin = self.clock()
            if begin >= self._fresh_until:
                claims = self.claims.source if self.claims is not None else None
                all_resources = [*self.resources, *([claims] if claims else [])]
                devices = self._devices.text(all_resources)
                usage = written_metrics.usage_metrics(
                    self.resources, self.unit_bytes, self.detail, claims
                )
                usage += written_metrics.shadow_metrics(self.shadow, self.unit_bytes)
                usage += written_metrics.claims_metrics(self.claims) + self.gpu_seconds()
                usage += "".join(self._state_families()).encode()
                self._text = devices + usage + prometheus_client.generate_latest(self._registry)
                end = self.clock()
                self._fresh_until = end + min(_LONGEST, (end - begin) * _REUSE_FACTOR)
            return self._text

    def _state_families(self) -> Iterator[str]:
        """Yield everything but devices that is a state rather than an event."""
        yield families_text(_OF_BOOKS, _books_samples(self.resources))
        yield families_text(_OF_POLICIES, _policies_samples(self.resources))
        for label, counts, name, text in (
            ("why", self.stopped_moves(), "gpushare_moves_stopped_total", _STOPPED),
            ("namespace", self.placeholders(), "gpushare_placeholders", _PLACEHOLDERS),
        ):
            if counts:
                yield family_text(name, text, counts_by(label, counts))
        yield from _state_text(self.state())


_STOPPED = "Plans of moves that were not carried on, by why; the log names the pod"
_PLACEHOLDERS = "Placeholders that there are, as the watch shows"
_OF_BOOKS = {
    "gpushare_pods": "Pods in the books, by state; unplaced: bound without devices, create them"
    " again",
    "gpushare_alarms_total": "Things that should not happen, seen so far; the pods have events that"
    " say what",
    "gpushare_holds": "Pods for which filter keeps a place that is not bound yet",
    "gpushare_holds_lapsed_total": "Such places that nobody bound or nominated in time, and others"
    " may have",
}
_TRIAL = "In the last trial of policies: % of the memory"
_OF_POLICIES = {
    "gpushare_ranking_policy": "1 for the policy that ranks pods which name none",
    "gpushare_ranking_policy_chosen_timestamp_seconds": (
        "Since when the policy auto is this one, Unix time"
    ),
    "gpushare_trial_lead_percent": (
        f"{_TRIAL} that the policy allocates above the best of the others"
    ),
    "gpushare_trial_lead_error_percent": "Standard error of gpushare_trial_lead_percent",
    "gpushare_trial_allocated_percent": f"{_TRIAL} that each would allocate",
    "gpushare_trial_refused_percent": f"{_TRIAL} that each would refuse",
}
"""The help of the gauges of policies."""


def _state_text(state: Mapping[str, float]) -> Iterator[str]:
    """Yield the families of the values of the process."""
    yield family_text("gpushare_build_info", "Version", {(("version", __version__),): 1})
    for name, value in state.items():
        collection, _, of_it = name.partition("_")
        text = _HELP.get(name) or _OF_A_COLLECTION.get(of_it, "").format(collection)
        yield family_text(f"gpushare_{name}", text or name.replace("_", " "), {(): value})


def _books_samples(resources: ManagedResources) -> Sequence[Samples]:
    """Return the samples of _OF_BOOKS."""
    pods: dict[Labels, float] = {}
    alarms: dict[Labels, float] = {}
    for managed_resource in resources:
        of_resource = ("resource", managed_resource.names.resource)
        for name, count in managed_resource.ledger.counts().items():
            if name in _ALARMS:
                alarms[("kind", name), of_resource] = count
            elif name != "nodes":
                pods[of_resource, ("state", name)] = count
    holds = {(("resource", item.names.resource),): item.holds for item in resources}
    lapsed: Samples = {labels: of_resource.lapsed_total for labels, of_resource in holds.items()}
    held: Samples = {labels: len(of_resource.by_key) for labels, of_resource in holds.items()}
    return pods, alarms, held, lapsed


def _policies_samples(resources: ManagedResources) -> Sequence[Samples]:
    """Return the samples of _OF_POLICIES."""
    samples = [dict[Labels, float]() for _ in _OF_POLICIES]
    ranks, since, lead, error, allocated, refused = samples
    for managed_resource in resources:
        resource, choice = ("resource", managed_resource.names.resource), managed_resource.choice
        ranks[("policy", managed_resource.ranking_policy), resource] = 1
        if choice is None:
            continue
        chosen = ("policy", choice.policy), resource
        since[chosen] = choice.since
        if choice.second:
            lead[*chosen, ("second", choice.second)] = choice.lead
            error[chosen] = choice.error
        for name, measured in choice.allocated.items():
            allocated[("policy", name), resource] = measured
            refused[("policy", name), resource] = choice.refused_percent[name]
    return samples
