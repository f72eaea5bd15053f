"""ServerTimeClient: the time by the clock of the server."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gpushare.kube.client import ServerTimeClient
from gpushare.kube.session import ConnectionFlags

_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
users: [{{name: u, user: {{}}}}]
current-context: c
"""


@contextmanager
def dated(folder: Path, date: str | None) -> Iterator[ServerTimeClient]:
    """Return a client of a server with `date` in the header Date."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            if date is not None:
                self.send_header("Date", date)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    file = folder / "kubeconfig"
    file.write_text(_KUBECONFIG.format(port=server.server_port))
    client = ServerTimeClient(ConnectionFlags(str(file)), 1, "test")
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Fri, 15 Jan 2027 08:00:00 GMT", 1_800_000_000.0),
        (None, None),
        ("soon", None),
        ("", None),
    ],
)
def test_the_date_of_the_last_answer_is_kept(
    date: str | None, seconds: float | None, tmp_path: Path
) -> None:
    with dated(tmp_path, date) as client:
        assert client.request("GET", "/version", timeout=10) == b"{}"
        assert client.server_time == seconds
