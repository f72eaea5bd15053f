"""A stand-in for a Prometheus: it answers as its HTTP API is documented, by parts of the query."""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import parse_qs

from tests.unit.kube.scripted_server import ScriptedServer, Seen, answer, scripted_server

Samples = Sequence[tuple[Mapping[str, str], float | str]]


def vector(samples: Samples, *warnings: str) -> bytes:
    """The body of an answer to an instant query."""
    result = [{"metric": dict(labels), "value": [1.7e9, str(value)]} for labels, value in samples]
    document = {"status": "success", "data": {"resultType": "vector", "result": result}}
    return json.dumps(document | ({"warnings": warnings} if warnings else {})).encode()


def queries(server: ScriptedServer) -> list[str]:
    """The queries so far."""
    return [parse_qs(seen.body.decode())["query"][0] for seen in server.seen]


@contextmanager
def prometheus_server(by_part: Mapping[str, Samples]) -> Iterator[ScriptedServer]:
    """Yield a server with an answer for each query that contains the part; [] for another query.

    Of several parts in a query the first one of the mapping counts.
    """

    def script(connection: socket.socket, seen: Seen) -> bool:
        (query,) = parse_qs(seen.body.decode())["query"]
        samples = next((samples for part, samples in by_part.items() if part in query), ())
        connection.sendall(answer(200, vector(samples)))
        return True

    with scripted_server() as server:
        server.script = script
        yield server
