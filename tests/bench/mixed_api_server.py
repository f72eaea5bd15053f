"""A stand-in for the API server in the mixed-load bench: 20 ms a write, and a stream of pod events.

Knows only enough HTTP to answer a Go-like client; a process of its own, so that its CPU time is not
counted against the service under load.
Run as `python mixed_api_server.py PORT DELAY_MS EVENTS_PER_S`.
"""

import asyncio
import json
import sys
from typing import Any

_TICK_S = 0.02
_STATUS = b'{"kind":"Status","apiVersion":"v1","status":"Success","code":201}'
_CREATED = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
) % (len(_STATUS), _STATUS)


def _event(number: int) -> bytes:
    """One watch event of about 3 KB: the size of a pod with its managedFields."""
    pod = {
        "metadata": {
            "name": f"pod-{number % 5000}",
            "namespace": "default",
            "uid": f"uid-{number % 5000}",
            "resourceVersion": str(number),
            "annotations": {"ALIYUN_COM_GPU_MEM_IDX": str(number % 8)},
            "managedFields": [
                {"manager": "kubelet", "fieldsV1": {f"f:field-{i}": {} for i in range(60)}}
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 5000:05d}.cluster.local",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.com/team/image:tag",
                    "env": [{"name": f"VAR_{i}", "value": "x" * 20} for i in range(20)],
                    "resources": {"limits": {"aliyun.com/gpu-mem": "2"}},
                }
            ],
        },
        "status": {"phase": "Running"},
    }
    return json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"


class Connection(asyncio.Protocol):
    """One client; a GET is a watch that never ends, anything else is a write that takes a while."""

    delay_s = 0.02
    events_per_s = 500.0
    events: tuple[bytes, ...] = ()

    def __init__(self) -> None:
        self._data = b""
        self._watch: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (head := self._data.find(b"\r\n\r\n")) >= 0:
            lines = self._data[:head].lower().split(b"\r\n")
            length = next((int(x[15:]) for x in lines if x.startswith(b"content-length:")), 0)
            if len(self._data) < head + 4 + length:
                return
            self._data = self._data[head + 4 + length :]
            if lines[0].startswith(b"get"):
                self._watch = asyncio.get_running_loop().create_task(self._stream())
            else:
                asyncio.get_running_loop().call_later(self.delay_s, self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch:
            self._watch.cancel()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(_CREATED)

    async def _stream(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        start, sent_events = loop.time(), 0
        while not self._transport.is_closing():
            due = int((loop.time() - start) * self.events_per_s)
            for number in range(sent_events, due):
                line = self.events[number % len(self.events)]
                self._transport.write(b"%x\r\n%s\r\n" % (len(line), line))
            sent_events = due
            await asyncio.sleep(_TICK_S)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", port, backlog=512
    )
    await server.serve_forever()


if __name__ == "__main__":
    Connection.delay_s = float(sys.argv[2]) / 1000
    Connection.events_per_s = float(sys.argv[3])
    Connection.events = tuple(_event(number) for number in range(2000))
    asyncio.run(_serve(int(sys.argv[1])))
