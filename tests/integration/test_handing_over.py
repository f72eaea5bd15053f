"""A process that leads no more ends its connections, so that callers come to another process.

A Service sends a *connection* to a ready replica; an open connection stays where it is,
and Go uses the connection again and again.
"""

import json
import socket
from contextlib import closing

from tests.badinput.attempt import framed
from tests.integration.cluster import LEASES, Cluster, Json
from tests.integration.conftest import StartExtender
from tests.integration.verbs import filter_args
from tests.support.waiting import poll


class Caller:
    """One kept-alive connection, like kube-scheduler's."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 60)
        self._answers = self._socket.makefile("rb")

    def filter(self, pod: Json, node: str) -> tuple[str, bool]:
        """(the answer's Error, whether the answer announces that the connection ends)."""
        body = json.dumps(filter_args(pod, [node])).encode()
        self._socket.sendall(framed(body, "/gpushare-scheduler/filter"))
        lines = [line.lower() for line in iter(self._answers.readline, b"\r\n") if line]
        (length,) = (int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        error = json.loads(self._answers.read(length))["Error"]
        return str(error), b"connection: close\r\n" in lines

    def ended(self) -> bool:
        """Whether nothing more comes; waits for that."""
        return self._answers.read() == b""

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


def test_who_leads_no_more_ends_the_connections_it_is_called_on(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    cluster.release_lease()
    node, pod = cluster.node(), cluster.pod(1)
    extender = start_extender(leadership="lease")
    extender.wait_ready()
    with closing(Caller(extender.port)) as caller:
        for _ in range(3):
            assert caller.filter(pod, node) == ("", False)

        def taken(lease: Json) -> Json:
            return {**lease, "spec": {**lease["spec"], "holderIdentity": "other"}}

        cluster.change(LEASES, "kube-system", "gpushare-extender", taken)
        poll(lambda: not extender.ready(), "it has seen that another leads")
        error, ends = caller.filter(pod, node)
        assert "another process leads" in error
        assert ends
        assert caller.ended()
