"""A request to the API server, its answer, and the target of a path, as values.

Knows the shape of Kubernetes URLs; knows no sockets and no verbs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpushare_localcluster.api.objects import Object, from_json, to_json
from gpushare_localcluster.api.resources import NAMESPACES, Resource, find
from gpushare_localcluster.api.status import bad_request, no_such_path

JSON = "application/json"


class Connection(Protocol):
    """The client of a request, as a stream needs to know it."""

    def alive(self) -> bool:
        """Return whether the client is connected and the server runs."""
        ...

    def stopping(self) -> bool:
        """Return whether the server is stopping."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request; header values are empty where the client sent none."""

    method: str
    query: Mapping[str, str]
    accept: str
    content_type: str
    body: bytes
    connection: Connection

    def flag(self, name: str) -> bool:
        """Return whether a query parameter is set to true."""
        return self.query.get(name, "").lower() in {"true", "1"}

    def number(self, name: str) -> int:
        """Return a query parameter as a count, 0 for an absent one. Raises StatusError: 400."""
        text = self.query.get(name, "")
        if not text:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise bad_request(f"query parameter {name} must be a number, not {text!r}")
        return int(text)

    @property
    def dry_run(self) -> bool:
        """Whether the server checks and answers the request without storing anything."""
        value = self.query.get("dryRun", "")
        if value not in {"", "All"}:
            raise bad_request(f"Invalid value for dryRun: {value!r}")
        return value == "All"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: a whole body, or an iterator of pieces for a stream, with warnings."""

    status: int
    body: bytes | Iterator[bytes]
    content_type: str = JSON
    warnings: tuple[str, ...] = ()


def json_answer(body: Object, status: int = 200) -> Response:
    """Return an answer with one JSON object."""
    return Response(status, to_json(body))


def decode(body: bytes) -> object:
    """Return a decoded JSON body. Raises StatusError: 400 for anything that is not JSON."""
    try:
        return from_json(body)
    except ValueError as error:
        raise bad_request(f"the body of the request is not JSON: {error}") from error


def decode_object(body: bytes) -> Object:
    """Return a decoded JSON object; null is an empty one, as Go decodes it.

    Raises StatusError: 400.
    """
    value = decode(body)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request("the body of the request must be a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a path; `namespace` None: all namespaces; `name` "": a collection."""

    resource: Resource
    namespace: str | None
    name: str = ""
    subresource: str = ""

    @property
    def home(self) -> str:
        """The namespace of a single object, empty for a cluster-wide one."""
        return self.namespace or ""


def target_of(group: str, version: str, path: str) -> Target:
    """Return the target of the path after the API version. Raises StatusError: 404."""
    parts = path.strip("/").split("/")
    namespace = None
    if parts[0] == NAMESPACES.plural and len(parts) > 2 and find(group, version, parts[2]):
        namespace, parts = parts[1], parts[2:]
    resource = find(group, version, parts[0])
    if resource is None or len(parts) > 3:
        raise no_such_path()
    name, subresource = (*parts[1:], "", "")[:2]
    misplaced = resource.namespaced and namespace is None and name
    if misplaced or (namespace is not None and not resource.namespaced):
        raise no_such_path()
    return Target(resource, namespace, name, subresource)
