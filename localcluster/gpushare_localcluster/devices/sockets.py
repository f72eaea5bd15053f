"""The sockets of the kubelet: registration of device plug-ins, and pod-resources.

Real gRPC on real unix sockets: deviceplugin/v1beta1 and podresources/v1. Each registered plug-in is
watched on its own socket; the last one gets the calls.
"""

import random
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.experimental
from google.protobuf.message import Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare_localcluster.devices.admission import AdmissionError

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

_LARGEST_LIST = 4 << 20
_CONNECT_SECONDS = 10.0
_CALL_SECONDS = 20.0
# Otherwise a stream has two threads, and the reading thread polls ten times a second.
_IN_ITS_THREAD = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
_STOP_SECONDS = 5.0

_AnswerT = TypeVar("_AnswerT", bound=Message)


class Sockets:
    """The sockets in a folder; the path must be short, as a socket path has at most 107 characters.

    on_change: called after each change of `devices`, by any thread.
    """

    def __init__(
        self,
        folder: Path,
        resource: str,
        on_change: Callable[[], None] = lambda: None,
        seed: int = 0,
    ) -> None:
        self.folder = folder
        self.plugins = folder / "plugins"
        self.pod_resources = folder / "pr.sock"
        self.resource = resource
        self.devices: dict[str, str] = {}
        """The health of each device by id, as reported by the plug-in."""
        self.registered = 0
        """The number of registrations since the start."""
        self._changed = on_change
        self._random = random.Random(seed)
        self._news = threading.Condition()
        self._servers: list[grpc.Server] = []
        self._clients: dict[str, grpc.Channel] = {}

    def start(self) -> None:
        """Listen; as in the kubelet, old sockets of plug-ins are removed."""
        self.plugins.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.glob("*.sock"):
            path.unlink()
        register = {"Register": (self._register, pb.RegisterRequest)}
        self._serve(self.plugins / "kubelet.sock", "v1beta1.Registration", register)
        pod_resources = {"List": (self._list, pb.Empty)}
        self._serve(self.pod_resources, "v1.PodResourcesLister", pod_resources)

    def stop(self) -> None:
        """Close all sockets; the checkpoint stays."""
        # Servers stop first: a disconnected plug-in registers again at once.
        for server in self._servers:
            server.stop(0).wait(_STOP_SECONDS)
        self._servers.clear()
        clients, self._clients = self._clients, {}
        for channel in list(clients.values()):
            channel.close()
        self._take(dict.fromkeys(self.devices, UNHEALTHY))
        self.devices = {}
        self.registered = 0

    def call(self, method: str, request: Message, answer: type[_AnswerT]) -> _AnswerT:
        """Return the plug-in's answer.

        Raises AdmissionError without a plug-in, RpcError for a refusal.
        """
        if not self._clients:
            raise AdmissionError("unknown Device Plugin")
        *_, channel = self._clients.values()
        call: Callable[..., _AnswerT] = channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}", type(request).SerializeToString, answer.FromString
        )
        return call(request, timeout=_CALL_SECONDS)

    def listed(self) -> Iterable[pb.PodResources]:
        """Return the pods with the devices of their containers."""
        return ()

    def shuffled(self, ids: Collection[str]) -> list[str]:
        """Return the ids in random order, as the kubelet keeps ids in sets."""
        return sorted(sorted(ids), key=lambda _: self._random.random())

    def _serve(self, path: Path, service: str, methods: dict[str, Any]) -> None:
        path.unlink(missing_ok=True)
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                call, request.FromString, lambda message: message.SerializeToString()
            )
            for name, (call, request) in methods.items()
        }
        server = grpc.server(ThreadPoolExecutor(4, "kubelet socket"))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{path}")
        server.start()
        self._servers.append(server)

    def _register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        if request.version != "v1beta1" or request.resource_name != self.resource:
            description = f"{request.resource_name} by {request.version}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no room for {description}")
        clients = self._clients
        options = [("grpc.max_receive_message_length", _LARGEST_LIST), _IN_ITS_THREAD]
        channel = grpc.insecure_channel(f"unix:{self.plugins / request.endpoint}", options)
        grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
        if clients is not self._clients:
            channel.close()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the kubelet has ended")
        if request.endpoint in clients:
            context.abort(grpc.StatusCode.UNKNOWN, "device plugin already connected")
        clients[request.endpoint] = channel
        follow = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            pb.Empty.SerializeToString,
            pb.ListAndWatchResponse.FromString,
        )
        arguments = (clients, request.endpoint, follow(pb.Empty()))
        threading.Thread(target=self._follow, args=arguments, daemon=True).start()
        with self._news:
            self.registered += 1
            self._news.notify_all()
        return pb.Empty()

    def _follow(self, clients: dict[str, grpc.Channel], endpoint: str, stream: Any) -> None:  # noqa: ANN401 -- gRPC's
        with suppress(grpc.RpcError):
            for answer in stream:
                if clients is not self._clients:
                    break
                self._take({device.ID: device.health for device in answer.devices})
        ended = self._gone_with(endpoint, clients)
        channels = [channel for name in ended if (channel := clients.pop(name, None))]
        for channel in channels:
            channel.close()
        if channels and not clients and clients is self._clients:
            self._take(dict.fromkeys(self.devices, UNHEALTHY))

    def _gone_with(self, endpoint: str, clients: Collection[str]) -> list[str]:
        """Return the plug-ins to disconnect after this one ended: this one (kubernetes#135437)."""
        del clients
        return [endpoint]

    def _take(self, devices: dict[str, str]) -> None:
        with self._news:
            self.devices = devices
            self._news.notify_all()
        self._changed()

    def _list(
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> pb.ListPodResourcesResponse:
        del request, context
        return pb.ListPodResourcesResponse(pod_resources=self.listed())
