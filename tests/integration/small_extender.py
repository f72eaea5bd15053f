"""A tiny real HTTP extender for tests of the scheduler: it answers as a test says, and binds."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpushare_localcluster.client import ApiClient

Json = dict[str, Any]


class SmallExtender(ThreadingHTTPServer):
    """Accepts every node, scores all alike and binds, unless a verb's answer is replaced."""

    daemon_threads = True

    def __init__(self, api: ApiClient) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api
        self.calls: list[tuple[str, Json]] = []
        self.answers: dict[str, Callable[[Json], Any]] = {
            "filter": lambda args: {"NodeNames": args["NodeNames"], "Error": ""},
            "prioritize": lambda args: [{"Host": n, "Score": 1} for n in args["NodeNames"]],
            "bind": self.bind,
        }

    def handle_error(self, request: object, client_address: object) -> None:
        """A scheduler that stops in the middle of a call is no failure."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/gpu"

    def verbs(self, pod: str) -> list[str]:
        """The verbs called for a pod, in order."""
        return [verb for verb, args in self.calls if _pod_name(args) == pod]

    def bind(self, args: Json) -> Json:
        """Write the Binding, with an annotation, as a device extender does."""
        meta = {
            "name": args["PodName"],
            "namespace": args["PodNamespace"],
            "uid": args["PodUID"],
            "annotations": {"device": "0"},
        }
        path = f"/api/v1/namespaces/{args['PodNamespace']}/pods/{args['PodName']}/binding"
        target = {"kind": "Node", "name": args["Node"]}
        self.api.create(
            path, {"kind": "Binding", "apiVersion": "v1", "metadata": meta, "target": target}
        )
        return {"Error": ""}


@contextmanager
def small_extender(api_url: str) -> Iterator[SmallExtender]:
    """The extender, serving while the context is open."""
    api = ApiClient(api_url, user_agent="small-extender")
    with SmallExtender(api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            api.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SmallExtender

    def do_POST(self) -> None:
        args = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        verb = self.path.rpartition("/")[2]
        self.server.calls.append((verb, args))
        body = json.dumps(self.server.answers[verb](args)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- inherited name
        pass


def _pod_name(args: Json) -> str:
    return str(args["PodName"] if "PodName" in args else args["Pod"]["metadata"]["name"])
