"""The local cluster's device manager with the faults of kubelets: older ones, and as ordered."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import grpc

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare_localcluster.devices.manager import HEALTHY, ContainerGrant, DeviceManager
from tests.support.waiting import PATIENCE

Json = dict[str, Any]

RESOURCE = "aliyun.com/gpu-mem"


class FakeKubelet(DeviceManager):
    """One kubelet. folder: short, as a socket's path has at most 107 characters.

    pods_api: as from 1.37 on. lists: whether pod-resources answers. shows_ended: as before 1.34.
    take_preferred: no kubelet leaves preferred ids; by this one the answer shows that it need not.
    one_plugin: as before kubernetes#135437: when a plug-in ends, it drops the one that registered
    last, which may be another. gaps: how often no device was healthy. refuses: how many
    registrations it refuses next.
    """

    def __init__(self, folder: Path, *, pods_api: bool = False) -> None:
        self.gaps = 0
        super().__init__(folder, RESOURCE)
        self.plugins.mkdir(exist_ok=True)
        self.pods_socket = folder / "pods.sock"
        self.pods_api = pods_api
        self.lists = True
        self.shows_ended = False
        self.take_preferred = True
        self.one_plugin = False
        self.refuses = 0

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        super().start()
        if self.pods_api:
            methods = {"ListPods": (self._list_pods, pb.Empty)}
            self._serve(self.pods_socket, "v1alpha1.Pods", methods)

    def restart(self) -> None:
        """Start again; the pods come anew from the API server, see `add`."""
        self.stop()
        self.pods, self._reusable = {}, ("", set())
        self.start()

    def drop_plugins(self) -> None:
        """Follow no plug-in any more, as after the registration of another one."""
        for channel in list(self._clients.values()):
            channel.close()

    def wait(self, true: Callable[[], bool], condition: str, seconds: float = PATIENCE) -> None:
        with self._news:
            assert self._news.wait_for(true, seconds), condition

    def wait_advertised(self, count: int) -> None:
        def well() -> int:
            return sum(health == HEALTHY for health in self.devices.values())

        self.wait(lambda: well() == count, f"{count} healthy devices")

    def hold(self, pod: Json, container: str, ids: list[str], envs: dict[str, str]) -> None:
        """Have a container on record that another plug-in was asked for."""
        uid = pod["metadata"]["uid"]
        response = pb.ContainerAllocateResponse(envs=envs).SerializeToString()
        with self._admission:
            self.pods[uid] = pod
            self.grants.append(ContainerGrant(uid, container, frozenset(ids), response))
            self.write_checkpoint()

    # -- differences from a kubelet ----------------------------------------------------------------

    def shown(self) -> Mapping[str, Json]:
        return dict(self.pods) if self.shows_ended else super().shown()

    def _preferred(self, free: set[str], chosen: set[str], needed: int) -> list[str]:
        preferred = super()._preferred(free, chosen, needed)
        return preferred if self.take_preferred else []

    def _register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        assert request.options.pre_start_required
        assert request.options.get_preferred_allocation_available
        if self.refuses:
            self.refuses -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return super()._register(request, context)

    def _gone_with(self, endpoint: str, clients: Collection[str]) -> list[str]:
        return [*clients] if self.one_plugin else super()._gone_with(endpoint, clients)

    def _take(self, devices: dict[str, str]) -> None:
        self.gaps += bool(devices) and HEALTHY not in devices.values()
        super()._take(devices)

    def _list(
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        if not self.lists:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return super()._list(request, context)

    def _list_pods(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.ListPodsResponse:
        pods = [_message(pod).SerializeToString() for pod in list(self.pods.values())]
        return pb.ListPodsResponse(pods=pods)


def _message(pod: Json) -> pb.Pod:
    """The pod in the form that a kubelet sends."""
    meta, spec = pod["metadata"], pod["spec"]

    def container(item: Json) -> pb.Container:
        limits = (item.get("resources") or {}).get("limits") or {}
        return pb.Container(
            name=item["name"],
            resources=pb.ResourceRequirements(
                limits={name: pb.Quantity(string=str(amount)) for name, amount in limits.items()}
            ),
            restart_policy=item.get("restartPolicy", ""),
        )

    return pb.Pod(
        metadata=pb.ObjectMeta(
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            annotations=meta.get("annotations") or {},
            deletion_timestamp=pb.Time(seconds=1) if meta.get("deletionTimestamp") else None,
        ),
        spec=pb.PodSpec(
            containers=map(container, spec["containers"]),
            init_containers=map(container, spec.get("initContainers") or ()),
            node_name=spec.get("nodeName", ""),
            node_selector=spec.get("nodeSelector") or {},
        ),
        status=pb.PodStatus(phase="Pending"),
    )
