"""Check of compute: what nodes advertise and what kube-scheduler is told of it must go together.

Pure. The extender counts the compute of each pod that it is asked about, whatever the file says.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator

from gpushare.doctor.checks.scheduler_file import entry_of
from gpushare.doctor.facts import Facts, Unread
from gpushare.doctor.finding import Finding, count, fail, ok, skip, some, warn

_NAME = "compute"


def check_compute(facts: Facts) -> Iterator[Finding]:
    """Yield the finding about compute."""
    cores = facts.names.cores
    if isinstance(facts.nodes, Unread):
        yield skip(_NAME, f"which nodes advertise {cores} is told by the nodes")
        return
    entry = entry_of(facts)
    if entry is None:
        yield skip(_NAME, f"who counts {cores} is in kube-scheduler's file (--scheduler-config)")
        return
    managed = {item.name: item.ignored_by_scheduler for item in entry.managed_resources}
    advertising = [node.name for node in facts.nodes if node.cores]
    # Every pod comes to an extender that manages no resource in particular.
    comes, ignored = not managed or cores in managed, managed.get(cores, False)
    if not advertising:
        yield _not_advertised(facts, ignored=ignored)
    elif ignored:
        yield fail(
            _NAME,
            f"{some(advertising)}: the kubelet counts {cores} there, and kube-scheduler does not"
            " (ignoredByScheduler: true): where its sum is used up, a pod is bound all the same and"
            f" fails (OutOf{cores})",
            f"say ignoredByScheduler: false for {cores}; or start the device plug-in with"
            " --no-advertise-cores and remove the resource from the status of the nodes",
        )
    elif not comes:
        yield _not_managed(facts, advertising)
    else:
        sharing = sum(node.shares for node in facts.nodes)
        yield ok(
            _NAME,
            f"{cores} is advertised by {len(advertising)} of {count(sharing, 'node')} that"
            f" {'shares' if sharing == 1 else 'share'} devices, and kube-scheduler counts it",
        )


def _not_managed(facts: Facts, advertising: list[str]) -> Finding:
    """Return the finding where pods that ask for compute alone never come to the extender."""
    cores = facts.names.cores
    what = (
        f"{some(advertising)}: {cores} is advertised there, and managedResources of the extender"
        " does not name it, so a pod that asks for compute and no memory runs without any device"
    )
    todo = f"add name: {cores} with ignoredByScheduler: false to managedResources"
    running = [pod for pod, node in facts.known_pods.cores_alone if node]
    if running:
        return fail(_NAME, f"{what}: {some(running)}", todo + ", then delete such pods")
    return warn(_NAME, what, todo)


def _not_advertised(facts: Facts, *, ignored: bool) -> Finding:
    cores = facts.names.cores
    asking = [pod for pod in facts.known_pods.gpu if pod.request.cores]
    if not asking:
        return ok(_NAME, f"no node advertises {cores}, and no pod asks for it")
    if ignored:
        return ok(_NAME, f"{cores} is counted by the extender alone: no node advertises it")
    waiting = [pod.name for pod in asking if not pod.node and not pod.gated]
    if not waiting:
        return ok(_NAME, f"no node advertises {cores}, and no pod waits for it")
    return fail(
        _NAME,
        f"{some(waiting)}: waits for ever, as kube-scheduler counts {cores} and no node"
        " advertises it",
        f"name {cores} in managedResources with ignoredByScheduler: false, then start our device"
        " plug-in without --no-advertise-cores; where another one runs, say ignoredByScheduler:"
        " true instead",
    )
