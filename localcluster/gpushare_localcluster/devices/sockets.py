"""The kubelet's sockets: device plug-ins register, and whoever asks is shown the devices given.

Real gRPC on real unix sockets: deviceplugin/v1beta1 and podresources/v1. Each plug-in that has
registered is followed on a socket of its own; the one that registered last is asked.
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
# Else a stream has two threads, and the one that reads it looks ten times a second.
_IN_ITS_THREAD = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
_STOP_SECONDS = 5.0

_AnswerT = TypeVar("_AnswerT", bound=Message)


class Sockets:
    """The sockets in a folder; its path is short, as a socket's has 107 characters at most.

    changed: called after each change of `devices`, by any thread.
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
        """The health of each device by its id, as the plug-in tells it."""
        self.registered = 0
        """How many times a plug-in has registered since the start."""
        self._changed = on_change
        self._random = random.Random(seed)
        self._news = threading.Condition()
        self._servers: list[grpc.Server] = []
        self._clients: dict[str, grpc.Channel] = {}

    def start(self) -> None:
        """Listen; sockets of plug-ins from before are removed, as the kubelet does it."""
        self.plugins.mkdir(parents=True, exist_ok=True)
        for path in self.plugins.glob("*.sock"):
            path.unlink()
        register = {"Register": (self._register, pb.RegisterRequest)}
        self._serve(self.plugins / "kubelet.sock", "v1beta1.Registration", register)
        pod_resources = {"List": (self._list, pb.Empty)}
        self._serve(self.pod_resources, "v1.PodResourcesLister", pod_resources)

    def stop(self) -> None:
        """Close all sockets; what was given stays on record."""
        # First: a plug-in that is dropped registers again at once, not with a kubelet that ends.
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
        """Return the plug-in's answer. Raises AdmissionError where there is none to ask, RpcError
        where it refuses.
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
        """Return the ids in an order that means nothing: the kubelet keeps them in sets."""
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
        """Return the plug-ins to drop when this one has ended: only itself (kubernetes#135437)."""
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
