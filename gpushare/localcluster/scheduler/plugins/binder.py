"""DefaultBinder: binds pods that no extender binds, by a Binding that carries the pod's UID."""

from gpushare.errors import ApiError
from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.scheduler.framework import SUCCESS, ClusterEvent, Code, Status
from gpushare.localcluster.scheduler.objects import PodView


class DefaultBinder:
    """Writes a Binding to the API server."""

    name = "DefaultBinder"
    events: frozenset[ClusterEvent] = frozenset()

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def bind(self, pod: PodView, node_name: str) -> Status:
        """Bind the pod; return Success, or the API server's refusal."""
        body = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"kind": "Node", "name": node_name},
        }
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/binding"
        try:
            self._api.create(path, body)
        except ApiError as error:
            return Status(Code.ERROR, (str(error),))
        return SUCCESS
