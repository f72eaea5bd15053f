"""A stand-in for the API server in the speed benches: lists as large as asked, binds that take a
while.

A process of its own, so that its CPU time is not counted against the extender. Watches stay silent,
but for the Bindings of pods that wait: those show them on their node, as the API server does.
Run as `python -m tests.bench.speed_api_server PORT JSON`, JSON with nodes, devices, units, pods,
gpu_pods, waiting, delay_ms.
"""

import asyncio
import json
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

_TAKEN = b'{"kind":"Status","status":"Success"}'
_NO_API = b'{"kind":"Status","status":"Failure","reason":"NotFound","code":404}'
_PAGE = 500


def _node(number: int, options: dict[str, Any]) -> dict[str, Any]:
    amounts = {
        "aliyun.com/gpu-mem": str(options["devices"] * options["units"]),
        "aliyun.com/gpu-count": str(options["devices"]),
        "cpu": "96",
        "memory": "768Gi",
        "pods": "110",
    }
    return {
        "metadata": {"name": node_name(number), "resourceVersion": "1"},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def node_name(number: int) -> str:
    """As long as the names clouds give."""
    return f"node-{number:05d}.cluster.local"


def _pod(number: int, options: dict[str, Any]) -> dict[str, Any]:
    """About 2.5 KB, as pods with their managedFields are."""
    gpu = number % (options["pods"] // max(options["gpu_pods"], 1)) == 0
    amounts = {"cpu": "500m", "memory": "1Gi"} | ({"aliyun.com/gpu-mem": "1"} if gpu else {})
    fields: dict[str, object] = {f"f:field-{index}": {} for index in range(60)}
    device = str(number % options["devices"])
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "default",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"ALIYUN_COM_GPU_MEM_IDX": device} if gpu else {},
            "managedFields": [{"manager": "kubelet", "fieldsV1": fields}],
        },
        "spec": {
            "nodeName": node_name(number % options["nodes"]),
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/image:tag",
                    "env": [{"name": f"VAR_{index}", "value": "x" * 20} for index in range(20)],
                    "resources": {"limits": amounts, "requests": amounts},
                }
            ],
        },
        "status": {"phase": "Running"},
    }


def waiting_pod(number: int) -> dict[str, Any]:
    """A pod without a node, about 3 KB; they ask for 1, 2, 4 and 8 units in turn."""
    pod = _pod(number, {"pods": 1, "gpu_pods": 1, "devices": 1, "nodes": 1})
    metadata, spec = pod["metadata"], pod["spec"]
    del spec["nodeName"], metadata["annotations"]
    metadata |= {"name": f"waiting-{number}", "uid": f"11111111-0000-4000-8000-{number:012d}"}
    metadata["labels"] = {"app": "bench", "pod-template-hash": "5d4f8c7b9"}
    spec |= {"schedulerName": "default-scheduler", "priority": 0, "restartPolicy": "Always"}
    amounts = {"cpu": "500m", "memory": "1Gi", "aliyun.com/gpu-mem": str(2 ** (number % 4))}
    spec["containers"][0]["resources"] = {"limits": amounts, "requests": amounts}
    pod["status"] = {"phase": "Pending", "qosClass": "Guaranteed"}
    return pod


def _bound(body: bytes, version: int) -> bytes:
    """The watch event of a Binding for a pending pod."""
    sent = json.loads(body)
    pod = waiting_pod(int(sent["metadata"]["name"].rpartition("-")[2]))
    pod["metadata"] |= {
        "resourceVersion": str(version),
        "annotations": sent["metadata"].get("annotations", {}),
    }
    pod["spec"]["nodeName"] = sent["target"]["name"]
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    return json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"


def _pages(kind: str, items: list[dict[str, Any]]) -> list[bytes]:
    pages = []
    for start in range(0, max(len(items), 1), _PAGE):
        following = str(start // _PAGE + 1) if start + _PAGE < len(items) else ""
        meta = {"resourceVersion": "1", "continue": following}
        page = {"kind": f"{kind}List", "metadata": meta, "items": items[start : start + _PAGE]}
        pages.append(json.dumps(page).encode())
    return pages


class BindConnection(asyncio.Protocol):
    """One client: lists by page, watches, and writes answered after the delay."""

    delay_s = 0.0
    version = 1
    watching_pods: set["BindConnection"] = set()  # noqa: RUF012 -- of all connections
    pages: dict[str, list[bytes]] = {}  # noqa: RUF012 -- set once, before the server starts

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head := self._data.find(b"\r\n\r\n")) >= 0:
            lines = self._data[:head].split(b"\r\n")
            length = next(
                (int(x[15:]) for x in lines if x.lower().startswith(b"content-length:")), 0
            )
            if len(self._data) < head + 4 + length:
                return
            body = self._data[head + 4 : head + 4 + length]
            self._data = self._data[head + 4 + length :]
            method, target = lines[0].decode().split(" ")[:2]
            self._serve(method, target, body)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.watching_pods.discard(self)

    def _serve(self, method: str, target: str, body: bytes) -> None:
        url = urlsplit(target)
        query = parse_qs(url.query)
        if method != "GET":
            loop = asyncio.get_running_loop()
            loop.call_later(self.delay_s, self._answer, _TAKEN, 201)
            if url.path.endswith("/binding") and "/waiting-" in url.path:
                loop.call_later(self.delay_s, self._show, body)
        elif url.path.startswith("/apis/"):
            self._answer(_NO_API, 404)
        elif "watch" in query:
            self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            if url.path.endswith("/pods"):
                self.watching_pods.add(self)
        else:
            pages = self.pages.get(url.path.rpartition("/")[2], _pages("ConfigMap", []))
            self._answer(pages[int(query.get("continue", ["0"])[0])], 200)

    def _show(self, binding: bytes) -> None:
        """Tell all who watch pods."""
        BindConnection.version += 1
        event = _bound(binding, BindConnection.version)
        for watcher in self.watching_pods:
            watcher._transport.write(b"%x\r\n%s\r\n" % (len(event), event))  # noqa: SLF001

    def _answer(self, body: bytes, status: int) -> None:
        if not self._transport.is_closing():
            head = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        BindConnection, "127.0.0.1", port, backlog=512
    )
    await server.serve_forever()


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    BindConnection.delay_s = given["delay_ms"] / 1000
    BindConnection.pages = {
        "nodes": _pages("Node", [_node(number, given) for number in range(given["nodes"])]),
        "pods": _pages(
            "Pod",
            [_pod(number, given) for number in range(given["pods"])]
            + [waiting_pod(number) for number in range(given.get("waiting", 0))],
        ),
    }
    asyncio.run(_serve(int(sys.argv[1])))
