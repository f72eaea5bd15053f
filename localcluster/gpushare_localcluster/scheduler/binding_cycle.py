"""The binding cycle after a decision; it runs beside the next decisions.

Permit's wait, PreBind, Bind (by the first interested extender that binds, else by a plug-in) and
PostBind. Knows no queue and no cache: the caller cleans up after a failure.
"""

import logging
from dataclasses import replace

from gpushare_localcluster.scheduler.cycle import Decision
from gpushare_localcluster.scheduler.framework import SUCCESS, Status
from gpushare_localcluster.scheduler.handle import Handle

log = logging.getLogger(__name__)


class BindingCycle:
    """Binds decided pods."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def run(self, decision: Decision) -> Status:
        """Return Success for a bound pod, else the objection."""
        pod, state, node = decision.pod, decision.state, decision.node
        framework = self._handle.profiles[pod.scheduler_name]
        status = self._wait_on_permit(decision)
        if status.ok:
            status = framework.run_pre_bind(state, pod, node)
        if status.ok:
            status = self._bind(decision)
        if status.ok:
            framework.run_post_bind(state, pod, node)
        return status

    def _wait_on_permit(self, decision: Decision) -> Status:
        waiting_pod = self._handle.waiting_pods.get(decision.pod.uid)
        if waiting_pod is None:
            return SUCCESS
        try:
            return waiting_pod.wait()
        finally:
            self._handle.waiting_pods.remove(decision.pod.uid)

    def _bind(self, decision: Decision) -> Status:
        pod = decision.pod
        for extender in self._handle.extenders:
            if extender.is_binder and extender.is_interested(pod):
                status = extender.bind(pod, decision.node)
                if status.ok or not extender.config.ignorable:
                    return replace(status, plugin=extender.name)
                log.warning("bind skipped url=%s error=%s", extender.name, status.message)
        framework = self._handle.profiles[pod.scheduler_name]
        return framework.run_bind(decision.state, pod, decision.node)
