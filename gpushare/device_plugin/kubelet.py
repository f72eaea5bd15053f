"""The kubelet's sockets: registration, the kubelet's pods and their devices; also the checkpoint.

Knows gRPC as a client. A failed call is a KubeletError that names the socket; a malformed
checkpoint, or an answer in it, is a MessageError.

Tested in `tests/unit/device_plugin/test_allocator.py` and
`tests/unit/device_plugin/test_start_check.py`.
"""

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.identity import CheckpointEntry, PodDevices
from gpushare.errors import GpuShareError, MessageError
from gpushare.wire.objects import Container, Metadata, Pod, PodSpec, PodStatus, Resources

SOCKET = "kubelet.sock"
"""The kubelet's own socket in the folder of device plug-ins."""

CHECKPOINT = "kubelet_internal_checkpoint"
"""The kubelet's own record in that folder."""

_LARGEST = 16 * 1024 * 1024
_LONGEST_CHECKPOINT = 64 * 1024 * 1024
"""Bytes of the kubelet's record that are read; a longer one is cut off, and so is no JSON."""
_REGISTER_SECONDS = 10.0
_LIST_SECONDS = 0.8

_MessageT = TypeVar("_MessageT", bound=Message)


class KubeletError(GpuShareError):
    """A socket of the kubelet does not answer, or against the API."""


class Channel:
    """Calls on one unix socket, connected at the first call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def call(
        self, method: str, request: Message, answer: type[_MessageT], seconds: float
    ) -> _MessageT:
        """Return the answer to a call. Raises KubeletError."""
        with self._lock:
            if self._channel is None:
                options = [("grpc.max_receive_message_length", _LARGEST), *NO_PROXY]
                self._channel = grpc.insecure_channel(f"unix:{self.path}", options)
            channel = self._channel
        call: Callable[..., _MessageT] = channel.unary_unary(
            method, type(request).SerializeToString, answer.FromString
        )
        try:
            return call(request, timeout=seconds)
        except ValueError as error:  # another call has closed the channel
            raise KubeletError(f"{self.path}: {method}: {error}") from error
        except grpc.RpcError as error:
            self.close()
            rpc_error: Any = error  # an RpcError is a Call as well
            reason = str(error)
            with contextlib.suppress(AttributeError):
                reason = f"{rpc_error.code().name}: {rpc_error.details()}"
            raise KubeletError(f"{self.path}: {method}: {reason}") from error

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


NO_PROXY = [("grpc.enable_http_proxy", 0)]
"""Options that keep gRPC from a proxy, which no unix socket has."""


OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
"""Which optional calls the kubelet is to make."""


def register(folder: Path, endpoint: str, resource: str) -> None:
    """Tell the kubelet that the resource is served on the socket `endpoint` of the folder.

    The kubelet connects at once. Raises KubeletError.
    """
    channel = Channel(folder / SOCKET)
    request = pb.RegisterRequest(
        version="v1beta1", endpoint=endpoint, resource_name=resource, options=OPTIONS
    )
    try:
        channel.call("/v1beta1.Registration/Register", request, pb.Empty, _REGISTER_SECONDS)
    finally:
        channel.close()


class PodResources(Channel):
    """The ids of containers in the kubelet's pod-resources API (podresources/v1)."""

    def __init__(self, socket: Path, resource: str) -> None:
        super().__init__(socket)
        self._resource = resource

    def pod_devices(self) -> PodDevices:
        """Return all pods. Raises KubeletError."""
        answer = self.call(
            "/v1.PodResourcesLister/List", pb.Empty(), pb.ListPodResourcesResponse, _LIST_SECONDS
        )
        return {
            (pod.namespace, pod.name): {
                container.name: frozenset(
                    device
                    for devices in container.devices
                    if devices.resource_name == self._resource
                    for device in devices.device_ids
                )
                for container in pod.containers
            }
            for pod in answer.pod_resources
        }


class PodsApi(Channel):
    """The pods that the kubelet manages (pods/v1alpha1, on by default from 1.37 on)."""

    def pods(self) -> Iterable[Pod]:
        """Return all pods; none if there is no such socket. Raises KubeletError."""
        if not self.path.exists():
            return ()
        answer = self.call(
            "/v1alpha1.Pods/ListPods", pb.Empty(), pb.ListPodsResponse, _LIST_SECONDS
        )
        try:
            return [_pod(pb.Pod.FromString(message)) for message in answer.pods]
        except DecodeError as error:
            raise KubeletError(f"{self.path}: a pod cannot be read: {error}") from error


def read_checkpoint(folder: Path, resource: str) -> tuple[CheckpointEntry, ...]:
    """Return the kubelet's record of a resource. Raises KubeletError, MessageError.

    A private format of the kubelet (k8s.io/kubernetes pkg/kubelet/cm/devicemanager/checkpoint),
    unchanged since 1.20: JSON with answers of Allocate as bytes of the message. Unlike the
    kubelet's API, the record has the pods' uids and plain init containers. A kubelet without any
    served device has no record.
    """
    try:
        with (folder / CHECKPOINT).open("rb") as file:
            text = file.read(_LONGEST_CHECKPOINT)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise KubeletError(f"{folder / CHECKPOINT} cannot be read: {error}") from error
    entries = []
    try:
        document: Any = json.loads(text)
        for item in document["Data"]["PodDeviceEntries"] or ():
            if item["ResourceName"] != resource:
                continue
            ids = item["DeviceIDs"] or {}
            # By NUMA node; a list alone before 1.20.
            groups = ids.values() if isinstance(ids, dict) else (ids,)
            entry = CheckpointEntry(
                str(item["PodUID"]),
                str(item["ContainerName"]),
                frozenset(str(device) for group in groups for device in group),
                base64.b64decode(item.get("AllocResp") or ""),
            )
            entries.append(entry)
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise MessageError(f"{CHECKPOINT}: {type(error).__name__}: {error}") from error
    return tuple(entries)


def parse_answer(data: bytes) -> pb.ContainerAllocateResponse:
    """Return the answer for a container, from the kubelet's record. Raises MessageError."""
    try:
        return pb.ContainerAllocateResponse.FromString(data)
    except DecodeError as error:
        raise MessageError(f"{CHECKPOINT}: AllocResp cannot be read: {error}") from error


def _pod(message: pb.Pod) -> Pod:
    """Return the pod as the API server's JSON would be decoded."""
    meta, status = message.metadata, message.status
    # Nobody needs the times, only whether a time is set.
    deleted, started = meta.HasField("deletion_timestamp"), status.HasField("start_time")
    return Pod(
        Metadata(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            deletion_timestamp="deleted" if deleted else None,
            labels=dict(meta.labels),
            annotations=dict(meta.annotations),
        ),
        PodSpec(
            node_name=message.spec.node_name,
            node_selector=dict(message.spec.node_selector),
            containers=[_container(container) for container in message.spec.containers],
            init_containers=[_container(container) for container in message.spec.init_containers],
        ),
        PodStatus(phase=status.phase, start_time="started" if started else None),
    )


def _container(message: pb.Container) -> Container:
    resources = message.resources
    return Container(
        name=message.name,
        resources=Resources(
            limits={name: quantity.string for name, quantity in resources.limits.items()},
            requests={name: quantity.string for name, quantity in resources.requests.items()},
        ),
        restart_policy=message.restart_policy or None,
    )
