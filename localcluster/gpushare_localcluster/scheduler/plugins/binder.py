"""DefaultBinder: binds pods without a binding extender, by a Binding with the pod's UID."""

from gpushare.errors import ApiError
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView


class DefaultBinder(PlainPlugin):
    """Writes a Binding to the API server."""

    name = "DefaultBinder"

    def bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Bind the pod; return Success, or the API server's refusal."""
        if self._handle.api is None:
            return Status(Code.ERROR, ("there is no API server to bind at",))
        body = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"kind": "Node", "name": node_name},
        }
        try:
            self._handle.api.create(f"{pod.path}/binding", body)
        except ApiError as error:
            return Status(Code.ERROR, (str(error),))
        return SUCCESS
