"""A device plug-in that guesses the pod by size, as the original does.

It serves the oldest pending pod of the node (by ASSUME_TIME) with the same total, gives the
container the index in the pod's annotation, and marks the pod ASSIGNED. So it mixes up pods of one
size if the kubelet admits pods in another order than that of the bindings, which tests must detect.
Knows a part of the kubelet's API v1beta1; nothing of our code.

python -m tests.e2e.plugin_by_size NODE FOLDER URL CA TOKEN DEVICES UNITS
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from tests.contract.apiserver.client import Api, Json
from tests.e2e.objects import COUNT, MEM, NODES

_NOTE = "ALIYUN_COM_GPU_MEM"
_SOCKET = "by-size.sock"


class Pods:
    """The pods of one node, on the API server."""

    def __init__(self, node: str, api: Api) -> None:
        self._node, self._api = node, api

    def pending(self, units: int) -> list[Json]:
        """Pods that wait for so many units on this node, the oldest binding first."""
        selector = f"spec.nodeName={self._node},status.phase=Pending"
        entry = [
            pod
            for pod in self._api.get("/api/v1/pods", fieldSelector=selector).body["items"]
            if pod["metadata"].get("annotations", {}).get(f"{_NOTE}_ASSIGNED") == "false"
            and units == sum(_limit(container) for container in pod["spec"]["containers"])
        ]
        return sorted(entry, key=lambda pod: int(_note(pod, "ASSUME_TIME")))

    def mark(self, pod: Json) -> None:
        """Note that the pod has been served."""
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._api.patch(path, {"metadata": {"annotations": {f"{_NOTE}_ASSIGNED": "true"}}})

    def say_count(self, devices: int) -> None:
        """Write how many devices the node has."""
        amount = {COUNT: str(devices)}
        body = {"status": {"capacity": amount, "allocatable": amount}}
        self._api.patch(f"{NODES}/{self._node}/status", body)


class PluginBySize:
    """The service for the kubelet; ids are UUID-_-0, UUID-_-1, ... for each unit of each device."""

    def __init__(self, pods: Pods, devices: int, units: int) -> None:
        self._pods = pods
        self._units = units
        self._ids = [f"GPU-{device}-_-{unit}" for device in range(devices) for unit in range(units)]
        self._one_at_a_time = threading.Lock()

    def list_and_watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"".join(field(1, text(1, item) + text(2, "Healthy")) for item in self._ids)
        ended = threading.Event()
        if context.add_callback(ended.set):
            ended.wait()

    def allocate(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        containers = [fields(item)[1] for item in fields(request)[1]]
        total = sum(map(len, containers))
        with self._one_at_a_time:
            pod = next(iter(self._pods.pending(total)), None)
            index = _note(pod, "IDX") if pod else "-1"
            if pod:
                self._pods.mark(pod)
        answer = b""
        for ids in containers:
            env = {
                "NVIDIA_VISIBLE_DEVICES": index if pod else f"no-gpu-has-{total}GiB-to-run",
                f"{_NOTE}_IDX": index,
                f"{_NOTE}_POD": str(total),
                f"{_NOTE}_CONTAINER": str(len(ids)),
                f"{_NOTE}_DEV": str(self._units),
            }
            entries = (field(1, text(1, name) + text(2, value)) for name, value in env.items())
            answer += field(1, b"".join(entries))
        return answer


def serve(plugin: PluginBySize, folder: Path) -> grpc.Server:
    """Serve the kubelet on a socket in the folder of plug-ins."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods = {
        "GetDevicePluginOptions": unary(lambda _request, _context: b""),
        "ListAndWatch": stream(plugin.list_and_watch),
        "Allocate": unary(plugin.allocate),
    }
    server = grpc.server(ThreadPoolExecutor(8))
    handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
    server.add_generic_rpc_handlers((handler,))
    (folder / _SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{folder / _SOCKET}")
    server.start()
    return server


def register(folder: Path) -> None:
    """Tell the kubelet where to call."""
    with grpc.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
        call = channel.unary_unary("/v1beta1.Registration/Register", bytes, bytes)
        call(text(1, "v1beta1") + text(2, _SOCKET) + text(3, MEM), timeout=20)


def field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that has a length: text, bytes or a message."""
    length, encoded = len(content), b""
    while length > 0x7F:
        encoded += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + content


def text(number: int, content: str) -> bytes:
    return field(number, content.encode())


def fields(message: bytes) -> dict[int, list[bytes]]:
    """The fields of a message that has none but such with a length, by number."""
    result: dict[int, list[bytes]] = {}
    at = 0
    while at < len(message):
        number, at = message[at] >> 3, at + 1
        length = shift = 0
        while True:
            byte, at = message[at], at + 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        result.setdefault(number, []).append(message[at : at + length])
        at += length
    return result


def _limit(container: Json) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(MEM, 0))


def _note(pod: Json, name: str) -> str:
    return str(pod["metadata"]["annotations"][f"{_NOTE}_{name}"])


def main(arguments: list[str]) -> None:
    node, folder, url, ca, token, devices, units = arguments
    pods = Pods(node, Api(url, token=token, ca=ca))
    server = serve(PluginBySize(pods, int(devices), int(units)), Path(folder))
    register(Path(folder))
    pods.say_count(int(devices))
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1:])
