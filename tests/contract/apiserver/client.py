"""A plain client for the API-server suite: status and JSON, nothing hidden.

Knows HTTP and TLS only, so that the suite can run on any Kubernetes API server, by URL, token and
the file of the certificate.
"""

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
DEADLINE = 10.0


@dataclass(frozen=True)
class ApiReply:
    status: int
    body: Json
    headers: dict[str, str]

    @property
    def meta(self) -> Json:
        result: Json = self.body["metadata"]
        return result

    @property
    def version(self) -> str:
        return str(self.meta["resourceVersion"])


class Stream:
    """An open watch: events one by one, none later than the deadline."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response

    def next(self) -> Json:
        line = self.response.readline()
        assert line, "the watch has ended"
        event: Json = json.loads(line)
        return event

    def take(self, count: int) -> list[tuple[str, str]]:
        events = [self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]

    def ended(self) -> bool:
        return self.response.readline() == b""


class Api:
    """Requests to one API server, each on a new connection."""

    def __init__(self, url: str, *, token: str = "", ca: str = "") -> None:
        self.url = url
        self.address = urllib.parse.urlsplit(url).netloc
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.tls = ssl.create_default_context(cafile=ca) if ca else None

    def connect(self) -> http.client.HTTPConnection:
        if self.tls:
            return http.client.HTTPSConnection(self.address, timeout=DEADLINE, context=self.tls)
        return http.client.HTTPConnection(self.address, timeout=DEADLINE)

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        raw: bytes | None = None,
        **query: object,
    ) -> ApiReply:
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        headers = self.headers | ({"Accept": accept} if accept else {})
        if data is not None:
            headers["Content-Type"] = content_type
        connection = self.connect()
        try:
            connection.request(method, with_query(path, query), data, headers)
            response = connection.getresponse()
            text = response.read()
            kind = response.headers.get("Content-Type", "")
            # kube-apiserver calls the index of its OpenAPI documents plain text.
            is_json = "json" in kind
            result = json.loads(text) if is_json else {"text": text.decode()}
            return ApiReply(response.status, result, dict(response.headers))
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> ApiReply:
        return self.call("GET", path, **query)  # type: ignore[arg-type]  # query values only

    def create(self, path: str, body: object, **query: object) -> ApiReply:
        reply = self.call("POST", path, body, **query)  # type: ignore[arg-type]  # query values only
        assert reply.status == 201, reply.body
        return reply

    def patch(self, path: str, body: object, content_type: str = MERGE) -> ApiReply:
        return self.call("PATCH", path, body, content_type=content_type)

    def delete(self, path: str, body: object = None) -> ApiReply:
        return self.call("DELETE", path, body)

    @contextmanager
    def watch(
        self, path: str, *, accept: str = "application/json", **query: object
    ) -> Iterator[Stream]:
        connection = self.connect()
        target = with_query(path, {"watch": "true", **query})
        connection.request("GET", target, headers=self.headers | {"Accept": accept})
        response = connection.getresponse()
        try:
            assert response.status == 200, response.read()
            yield Stream(response)
        finally:
            response.close()
            connection.close()


def with_query(path: str, query: dict[str, object]) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path
