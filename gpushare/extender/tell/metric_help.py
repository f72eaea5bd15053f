"""What each state of the process means as a metric, and what to do about it: Prometheus' HELP.

Tested in `tests/unit/extender/tell/test_metrics.py`.
"""

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
    "bind_conflicts_total": "Bindings that the API server refused with 409, as another came first",
    "events_written_total": "Events written",
    "events_dropped_total": "Events not written: too many at once, or refused; the log says which",
    "scheduler_wakes_total": "Nodes written on, so that kube-scheduler tries a waiting pod again",
    "scale_down_kept_nodes": "Nodes that autoscalers are asked to leave alone, as the watch shows",
    "scale_down_failed_writes_total": "Writes on such nodes that failed; the log names the node",
    "placeholders_created_total": "Placeholders created by this process",
    "placeholders_deleted_total": "Placeholders deleted by this process",
    "placeholders_failed_writes_total": "Writes of placeholders that failed; see the log",
    "moves_total": "Pods that were moved so that another fits",
    "moves_refused_total": "Evictions that the API server refused; the log says why",
    "moves_left": "Evictions that are left of the budget of this hour, as last read",
    "learned_pods_total": "Pods that policies are made for, seen since the start",
    "refits_total": "Policies made anew",
    "refit_failures_total": "Policies that could not be made, so the old ones stay; see the log",
    "refit_duration_seconds": "How long making policies took the last time",
    "refit_age_seconds": "Since policies were made; 0: never yet",
    "trials_total": "Trials of the policy auto",
    "trial_failures_total": "Trials that failed, so that the policy stays; see the log",
    "log_lines_dropped_total": "Log lines that nobody read in time",
}
_OF_A_COLLECTION = {
    "synced": "1 when {} have been listed; 0: see /readyz?verbose and the rights",
    "age_seconds": "Since the API server last said something about {}; 150 is too long",
    "relists_total": "Whole lists read of {}",
    "decode_errors_total": "Objects among {} that could not be read; the log names them",
}


def help_of(name: str) -> str:
    """Return the text for a value of the process, by its name without `gpushare_`."""
    if name in _HELP:
        return _HELP[name]
    collection, _, value = name.partition("_")
    text = _OF_A_COLLECTION.get(value)
    return text.format(collection) if text else name.replace("_", " ")
