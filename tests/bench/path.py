"""How far a reader follows one pod: the functions and files that each verb goes through.

One pod that asks for a GPU, on three nodes, with a single managed resource. Every call of a
function in the package is counted, in the order of the calls: from the bytes that the client's
connection receives to the answer in its outbox, and for bind with the client of the API server. The
caches are warm: another pod has gone the same way before. One more line says how the package is
cut: functions for each 1,000 lines, and lines that import.

Run as `python -m tests.bench.path [--calls VERB]`; a second. `--calls` prints the calls of one verb
in their order, to find functions that could be nearer together.
"""

import argparse
import ast
import contextlib
import json
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gunicorn.config import Config
from gunicorn.glogging import Logger

import gpushare
from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.daemon.callers import Callers
from gpushare.explain.pod import explain_pod
from gpushare.extender.door.app import Routes, build_app
from gpushare.extender.door.connection import Connection
from gpushare.extender.door.worker import BufferedThreadWorker
from gpushare.extender.follow.watch_handlers import PodEventHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.kube.client import KubeClient, connect
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import PODS
from tests.support.scripted_api import BOUND
from tests.unit.core.clusters import node
from tests.unit.extender.kit import pod_json
from tests.unit.extender.scripted_extender import Heard

ROOT = Path(gpushare.__file__).parent
NODES = ("big", "small", "tiny")
POLICY = "device-bestfit"


class Calls:
    """The calls of functions of the package, in order, while the context lasts."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        self._frames: list[FrameType] = []

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        # A generator that goes on is no new call, and a comprehension belongs to its function.
        if code.co_name.startswith("<") or any(
            frame is noted_frame for noted_frame in self._frames
        ):
            return
        self._frames.append(frame)
        self.codes.append(code)

    @property
    def files(self) -> list[str]:
        """The file of each call."""
        return [str(Path(code.co_filename).relative_to(ROOT)) for code in self.codes]

    def row(self, verb: str) -> str:
        """The figures in the table."""
        files = self.files
        functions, changes = (
            len(set(self.codes)),
            sum(one != two for one, two in pairwise(files)),
        )
        return f"{verb:12} {functions:9} {len(self.codes):6} {len(set(files)):6} {changes:8}"


class _BindingTaker(BaseHTTPRequestHandler):
    """An API server that takes every Binding, on a connection that stays open."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(BOUND)))
        self.end_headers()
        self.wfile.write(BOUND)

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextlib.contextmanager
def api_client() -> Iterator[KubeClient]:
    """Yield a client of an API server on loopback."""
    server = HTTPServer(("127.0.0.1", 0), _BindingTaker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        client = connect(file.name, pool_size=1, user_agent="path")
        try:
            yield client
        finally:
            client.close()
            server.shutdown()
            server.server_close()


class Door:
    """A worker of the extender in this thread, and one client's connection."""

    def __init__(self, service: Service) -> None:
        config = Config()
        config.set("threads", 4)
        config.set("keepalive", 120)
        config.set("http_parser", "python")
        self._worker = BufferedThreadWorker(1, 1, [], None, 30, config, Logger(config))
        self._worker.wsgi = build_app(service, Routes(), 1 << 20, Callers())  # type: ignore[assignment]
        self._worker.linger = 0.0
        server_end, self._client = socket.socketpair()
        self._connection = Connection(config, server_end, ("127.0.0.1", 4), ("127.0.0.1", 5))

    def send(self, verb: str, body: bytes) -> None:
        """Send the request of a verb to the worker's socket."""
        head = (
            f"POST /gpushare-scheduler/{verb} HTTP/1.1\r\nHost: 127.0.0.1:32766\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._client.sendall(head.encode() + body)

    def serve(self) -> None:
        """Answer the request that was sent."""
        assert self._connection.receive()
        assert self._worker.handle(self._connection)

    def answer(self) -> Any:
        """Return the document that the client was answered."""
        head, _, body = self._client.recv(1 << 20).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return json.loads(body)

    def close(self) -> None:
        """Close both ends."""
        self._connection.close()
        self._client.close()
        self._worker.tmp.close()


def measured() -> dict[str, Calls]:
    """Return the calls of each verb, by name."""
    resource = ManagedResource(
        ALIYUN, Ledger(Pairing.OFF), {POLICY: Ranking(load_policy(POLICY))}, POLICY
    )
    resources = ManagedResources((resource,))
    for name, units in zip(NODES, (16, 8, 2), strict=True):
        resource.ledger.node_changed(node(name, units, units))
    calls: dict[str, Calls] = {}
    with api_client() as client:
        service = Service(
            resources,
            Binder(client, resources, lambda: float("inf")),
            not_ready=str,
            bind_slots=BindSlots(8),
            recipients=Recipients(event_messages=EventMessages(Heard(), resources, "GiB")),
        )
        door = Door(service)
        handler = PodEventHandler(resources)

        def follow(verb: str, document: Any) -> None:
            door.send(verb, _body(document))
            with Calls() as calls[verb]:
                door.serve()
            answer = door.answer()
            assert isinstance(answer, list) or not answer["Error"], answer

        # The first pod fills the caches and is not counted.
        for name in ("first", "second"):
            pod = pod_json(name, 4)
            args = {"Pod": pod, "NodeNames": list(NODES)}
            uid, namespace = pod["metadata"]["uid"], pod["metadata"]["namespace"]
            bind = {"PodName": name, "PodNamespace": namespace, "PodUID": uid, "Node": "small"}
            pending_pod = PODS.decode_answer(_body(pod), namespace, name)
            event = PODS.decode_event(_body({"type": "ADDED", "object": pod}))
            with Calls() as calls["pod event"]:
                handler.apply(event)
            follow("filter", args)
            follow("prioritize", args)
            with Calls() as calls["explain"]:
                explain_pod(pending_pod, sources=[resource], unit="GiB")
            follow("bind", bind)
        door.close()
    return calls


def _body(value: Any) -> bytes:
    """In Go's format."""
    return json.dumps(value, separators=(",", ":")).encode()


def cut() -> tuple[float, float, int]:
    """How the package is cut: functions for each 1,000 lines, imports in % of the lines, lines."""
    functions = imports = lines = 0
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        lines += text.count("\n")
        for part in ast.walk(ast.parse(text)):
            functions += isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
            if isinstance(part, ast.Import | ast.ImportFrom):
                imports += (part.end_lineno or part.lineno) - part.lineno + 1
    return 1000 * functions / lines, 100 * imports / lines, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", metavar="VERB", help="print the calls of this verb")
    with_calls = parser.parse_args().calls
    calls_by_verb = measured()
    if with_calls:
        for code, file in zip(
            calls_by_verb[with_calls].codes, calls_by_verb[with_calls].files, strict=True
        ):
            print(f"{file}:{code.co_firstlineno} {code.co_qualname}")
        return
    print(f"{'':12} {'functions':>9} {'calls':>6} {'files':>6} {'changes':>8}")
    for verb, calls in calls_by_verb.items():
        print(calls.row(verb))
    functions, imports, lines = cut()
    print(
        f"{functions:.1f} functions for each 1,000 lines, imports {imports:.1f} % of {lines} lines"
    )


if __name__ == "__main__":
    main()
