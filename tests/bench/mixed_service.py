"""The service of the mixed-load bench: one gunicorn process with the shape of ours and stub logic.

Same libraries and same kinds of work as the real service (decode, numpy over 5,000 x 8, a lock, one
write to an API server, a watch thread, a probe listener), none of its rules; so a change of
threads, pools and time-outs can be judged before and without them. Run with one JSON argument.
"""

import collections
import contextlib
import http.client
import itertools
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import flask
import msgspec
import numpy as np
import urllib3
from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from gpushare.extender.door.worker import BufferedThreadWorker

NODES, DEVICES = 5000, 8
_JOB_S = 0.09
_JOB_EVERY_S = 1.0
_SLICE_S = 0.002


class Meta(msgspec.Struct):
    name: str
    uid: str = ""
    namespace: str = "default"
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct):
    nodeName: str = ""  # noqa: N815 -- the wire's spelling


class StubPod(msgspec.Struct):
    metadata: Meta
    spec: Spec = msgspec.field(default_factory=Spec)


class FilterArgs(msgspec.Struct):
    StubPod: StubPod
    NodeNames: list[str]


class FilterResult(msgspec.Struct):
    NodeNames: list[str]
    FailedNodes: dict[str, str]
    Error: str = ""


class BindArgs(msgspec.Struct):
    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class Event(msgspec.Struct):
    type: str
    object: StubPod


class StubResource:
    """The stub ledger: arrays behind one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.row = {f"node-{i:05d}.cluster.local": i for i in range(NODES)}
        self.used = np.random.default_rng(1).integers(0, 17, (NODES, DEVICES))
        self.events = 0

    def fitting(self, names: list[str]) -> FilterResult:
        with self.lock:
            used = self.used.copy()
        rows = np.fromiter(map(self.row.__getitem__, names), np.int64, len(names))
        fits = np.any(used[rows] <= 14, axis=1)
        failed = dict.fromkeys(itertools.compress(names, (~fits).tolist()), "no device has room")
        return FilterResult(list(itertools.compress(names, fits.tolist())), failed)

    def assume(self, node: str) -> int:
        with self.lock:
            row = self.used[self.row[node]]
            device = int(np.argmin(row))
            row[device] = (row[device] + 1) % 15
            return device

    def apply(self, event: Event) -> None:
        with self.lock:
            row = self.row[event.object.spec.nodeName]
            device = int(event.object.metadata.annotations["ALIYUN_COM_GPU_MEM_IDX"])
            self.used[row, device] = (self.used[row, device] + 1) % 15
            self.events += 1


class RawPool:
    """Kept-alive http.client connections, at most `size` of them."""

    def __init__(self, port: int, size: int) -> None:
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(http.client.HTTPConnection("127.0.0.1", port, timeout=5))

    def post(self, path: str, body: bytes) -> int:
        connection = self._idle.get()
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            self._idle.put(connection)


class Urllib3Pool:
    """The pool under the official kubernetes client, used without its generated layers."""

    def __init__(self, port: int, size: int) -> None:
        self._pool = urllib3.HTTPConnectionPool(
            "127.0.0.1", port, maxsize=size, block=True, timeout=5, retries=False
        )

    def post(self, path: str, body: bytes) -> int:
        headers = {"Content-Type": "application/json"}
        return self._pool.urlopen("POST", path, body, headers).status


def make_app(books: StubResource, pool: RawPool | Urllib3Pool) -> flask.Flask:
    app = flask.Flask("bench")
    args, bind_args = msgspec.json.Decoder(FilterArgs), msgspec.json.Decoder(BindArgs)

    @app.post("/filter")
    def filter_nodes() -> flask.Response:
        result = books.fitting(args.decode(flask.request.get_data()).NodeNames)
        return flask.Response(msgspec.json.encode(result), mimetype="application/json")

    @app.post("/bind")
    def bind() -> flask.Response:
        body = bind_args.decode(flask.request.get_data())
        annotations = {"ALIYUN_COM_GPU_MEM_IDX": str(books.assume(body.Node))}
        meta = {"name": body.PodName, "uid": body.PodUID, "annotations": annotations}
        binding = {"metadata": meta, "target": {"kind": "Node", "name": body.Node}}
        path = f"/api/v1/namespaces/{body.PodNamespace}/pods/{body.PodName}/binding"
        status = pool.post(path, msgspec.json.encode(binding))
        error = "" if status == 201 else f"status {status}"
        return flask.Response(msgspec.json.encode({"Error": error}), mimetype="application/json")

    @app.post("/echo")
    def echo() -> flask.Response:
        return flask.Response(flask.request.get_data(), mimetype="application/json")

    return app


def _watch(books: StubResource, port: int) -> None:
    decoder = msgspec.json.Decoder(Event)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/v1/pods?watch=1")
    for line in connection.getresponse():
        books.apply(decoder.decode(line))


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(i * i for i in range(200))


def _refit_sliced() -> None:
    for _ in range(int(_JOB_S / _SLICE_S)):
        _burn(_SLICE_S)
        time.sleep(_SLICE_S)  # not sleep(0): a thread that waits for the lock must get its turn


def _subprocess_refit() -> Callable[[], None]:
    child = subprocess.Popen(
        [sys.executable, __file__, "child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def refit() -> None:
        assert child.stdin
        assert child.stdout
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()

    return refit


def _child() -> None:
    for _ in sys.stdin:
        _burn(_JOB_S)
        print(flush=True)


def _repeat(job: Callable[[], None]) -> None:
    while True:
        time.sleep(_JOB_EVERY_S)
        job()


class Probe(BaseHTTPRequestHandler):
    timeout = 5

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the stdlib's name
        """Nothing: stalled clients would fill the log with a line each."""


class ProbeServer(ThreadingHTTPServer):
    """A thread a connection; when too many are open, the oldest one is cut."""

    request_queue_size = 128  # the default of 5 drops SYNs under attack: probes wait 1 s and more
    most_open = 64

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Probe)
        self._open: collections.deque[Any] = collections.deque()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        if len(self._open) > self.most_open:
            with contextlib.suppress(OSError, IndexError):
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with contextlib.suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)


class StubService(BaseApplication):
    """gunicorn, told everything by one dictionary and nothing by the environment."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.books = StubResource()
        pool = RawPool if options["client"] == "http.client" else Urllib3Pool
        self.pool = pool(options["api_port"], options["pool"])
        super().__init__()

    def load_config(self) -> None:
        worker = {"buffered": BufferedThreadWorker, "gthread": ThreadWorker}
        settings = {
            "bind": f"127.0.0.1:{self.options['port']}",
            "workers": 1,
            "worker_class": worker[self.options["worker"]],
            "threads": self.options["threads"],
            "keepalive": 120,
            "backlog": 2048,
            "worker_connections": 2048,
            "graceful_timeout": 10,
            "control_socket_disable": True,
            "loglevel": "warning",
            "post_worker_init": self.start_threads,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return make_app(self.books, self.pool)

    def start_threads(self, worker: object) -> None:
        del worker
        sys.setswitchinterval(self.options["switch_ms"] / 1000)
        jobs = {"thread": lambda: _burn(_JOB_S), "sliced": _refit_sliced}
        kind = self.options["job"]
        if kind != "none":
            job = _subprocess_refit() if kind == "subprocess" else jobs[kind]
            threading.Thread(target=_repeat, args=(job,), daemon=True).start()
        watch_args = (self.books, self.options["api_port"])
        threading.Thread(target=_watch, args=watch_args, daemon=True).start()
        probes = ProbeServer(self.options["probe_port"])
        threading.Thread(target=probes.serve_forever, daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "child":
        _child()
    else:
        StubService(json.loads(sys.argv[1])).run()
