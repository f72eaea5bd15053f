"""The gRPC server that the kubelet calls: deviceplugin/v1beta1 on a unix socket.

Knows gRPC as a server, and the wording of errors. A refusal reaches the user in the pod's status,
as the kubelet fails the pod with that text.

Tested in `tests/unit/device_plugin/test_registration.py`.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.allocator import Allocator, Served
from gpushare.device_plugin.cards import ORIGINAL_IDS, NodeCards, device_id
from gpushare.device_plugin.health import Health
from gpushare.device_plugin.kubelet import NO_PROXY, OPTIONS
from gpushare.errors import GpuShareError, RequestRefused
from gpushare.logline import Line

log = logging.getLogger("gpushare.server")

THREADS = 16
SAYS = "gpushare: "
"""The beginning of our errors; the kubelet writes an error into the pod's status."""

_LOOK_SECONDS = 30.0
"""Seconds until a stream checks whether it is still open; the end of the call wakes the stream
earlier.
"""

Observe = Callable[[str, str, float], None]
"""Called for each call: the name, "ok" or "refused" or "failed", and the seconds."""


@dataclass(eq=False)
class PluginServer:
    """Serves one socket, from `start` to `stop`; can be started again.

    check: checks that the container of these ids may start. answer: returns the answer for a served
    container. Both raise RequestRefused.
    """

    socket: Path
    health: Health
    allocator: Allocator
    check: Callable[[list[str]], None]
    _: KW_ONLY
    answer: Callable[[Served], pb.ContainerAllocateResponse]
    observe: Observe

    def __post_init__(self) -> None:
        self.ids = ORIGINAL_IDS
        """The form of the ids of units; the original's until the checkpoint has been read."""
        self._server: grpc.Server | None = None
        self._watchers = 0
        self.was_watched = False
        """Whether a kubelet has called ListAndWatch since `start`."""
        self._watched_changed: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    @property
    def watched(self) -> bool:
        """Whether a kubelet follows the list of devices."""
        return self._watchers > 0

    def start(self, watched_changed: Callable[[], None] = lambda: None) -> None:
        """Listen on the socket. Raises OSError if the socket cannot be created.

        watched_changed: called when a kubelet begins or stops to follow the list of devices.
        """
        pool = ThreadPoolExecutor(THREADS, "kubelet calls")
        server = grpc.server(pool, options=NO_PROXY)
        methods = {
            "GetDevicePluginOptions": self._unary(self._get_device_plugin_options, pb.Empty),
            "GetPreferredAllocation": self._unary(
                self._get_preferred_allocation, pb.PreferredAllocationRequest
            ),
            "Allocate": self._unary(self._allocate, pb.AllocateRequest),
            "PreStartContainer": self._unary(
                self._pre_start_container, pb.PreStartContainerRequest
            ),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch, pb.Empty.FromString, pb.ListAndWatchResponse.SerializeToString
            ),
        }
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
        server.add_generic_rpc_handlers((handler,))
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:  # gRPC's own, with no word of the reason
            raise OSError(f"{self.socket} cannot be listened on: {error}") from error
        self._watched_changed = watched_changed
        self.was_watched = False
        server.start()
        self._server = server

    def stop(self) -> None:
        """Close the socket; the kubelet then counts all devices as unhealthy."""
        server, self._server = self._server, None
        if server is not None:
            stopped = server.stop(grace=1.0)
            self.health.wake()
            stopped.wait(5.0)

    def _unary(
        self, call: Callable[[Any], Message], request: type[Message]
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return the gRPC handler of the call: errors as status codes, and counted."""
        name = getattr(call, "__name__", "").strip("_")

        def handle(request: Any, context: grpc.ServicerContext) -> Message:  # noqa: ANN401
            began = time.monotonic()
            outcome = "failed"
            try:
                message = call(request)
                outcome = "ok"
            except RequestRefused as error:
                outcome = "refused"
                log.warning(Line("refused", call=name, error=error))
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{SAYS}{error}")
            except GpuShareError as error:
                log.warning(Line("failed", call=name, error=error))
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{SAYS}{error}")
            finally:
                self.observe(name, outcome, time.monotonic() - began)
            return message

        return grpc.unary_unary_rpc_method_handler(
            handle, request.FromString, lambda message: message.SerializeToString()
        )

    def _get_device_plugin_options(self, request: pb.Empty) -> pb.DevicePluginOptions:
        del request
        return OPTIONS

    def _list_and_watch(
        self, request: pb.Empty, context: grpc.ServicerContext
    ) -> Iterator[pb.ListAndWatchResponse]:
        """Send all devices, and again after each change."""
        del request
        server = self._server
        context.add_callback(self.health.wake)
        self._count_watcher(1)
        try:
            sent_cards: NodeCards | None = None
            while True:
                cards, version = self.health.now()
                if not context.is_active() or server is not self._server:
                    return
                if cards != sent_cards:
                    yield devices_message(cards, self.ids)
                    sent_cards = cards
                self.health.wait(version, _LOOK_SECONDS)
        finally:
            self._count_watcher(-1)

    def _count_watcher(self, more: int) -> None:
        with self._lock:
            self._watchers += more
            self.was_watched |= more > 0
        self._watched_changed()

    def _get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest
    ) -> pb.PreferredAllocationResponse:
        answers = [
            pb.ContainerPreferredAllocationResponse(
                deviceIDs=self.allocator.prefer(
                    container_request.available_deviceIDs,
                    container_request.must_include_deviceIDs,
                    container_request.allocation_size,
                )
            )
            for container_request in request.container_requests
        ]
        return pb.PreferredAllocationResponse(container_responses=answers)

    def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        answers = [
            self.answer(self.allocator.allocate(container_request.devices_ids))
            for container_request in request.container_requests
        ]
        return pb.AllocateResponse(container_responses=answers)

    def _pre_start_container(self, request: pb.PreStartContainerRequest) -> pb.Empty:
        self.check(list(request.devices_ids))
        return pb.Empty()


def devices_message(cards: NodeCards, ids: str = ORIGINAL_IDS) -> pb.ListAndWatchResponse:
    """Return the list of all units. ids: the form of ids, NVIDIA_IDS or ORIGINAL_IDS."""
    message = pb.ListAndWatchResponse()
    for card in cards.all:
        health = "Healthy" if card.healthy else "Unhealthy"
        topology = None
        if card.numa is not None:
            topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=card.numa)])
        for number in range(card.unit_count):
            name = device_id(card.uuid, number, ids)
            message.devices.add(ID=name, health=health, topology=topology)
    return message
