"""The verb of each request: the API server without sockets.

Knows paths, methods and subresources. Answers are values, so that a simulation can send the same
requests as a client over HTTP.
"""

from collections.abc import Callable

from gpushare_localcluster.api import reading, scale, writing
from gpushare_localcluster.api.calls import Call, Response, Target, target_of
from gpushare_localcluster.api.podlogs import PodLogs
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.resources import PODS
from gpushare_localcluster.api.status import bad_request, method_not_allowed, no_such_path

Verb = Callable[[Registry, Target, Call], Response]

ITEM: dict[str, Verb] = {
    "GET": reading.get,
    "PUT": writing.replace,
    "PATCH": writing.patch,
    "DELETE": writing.delete,
}
COLLECTION: dict[str, Verb] = {
    "GET": reading.listing,
    "POST": writing.create,
    "DELETE": writing.delete_collection,
}
STATUS: dict[str, Verb] = {
    "GET": reading.get,
    "PUT": writing.replace,
    "PATCH": writing.patch,
}
SCALE: dict[str, Verb] = {"GET": scale.get, "PUT": scale.write, "PATCH": scale.write}


class Rest:
    """The resource paths of the API over a registry; `bookmark_every` is in seconds."""

    def __init__(self, registry: Registry, logs: PodLogs, bookmark_every: float) -> None:
        """Serve the objects of the registry."""
        self._registry = registry
        self._bookmark_every = bookmark_every
        self._pod_verbs: dict[str, dict[str, Verb]] = {
            **{name: {"GET": _no, "POST": _no} for name in ("attach", "exec", "portforward")},
            "ephemeralcontainers": {"GET": reading.get, "PATCH": _no},
            "binding": {"POST": writing.bind},
            "eviction": {"POST": writing.evict},
            "log": {"GET": logs.answer},
        }

    def answer(self, group: str, version: str, path: str, call: Call) -> Response:
        """Return the answer to a request for a resource. Raises StatusError: every refusal."""
        target = target_of(group, version, path)
        if call.method == "GET" and call.flag("watch") and not target.name:
            return reading.watch(self._registry, target, call, self._bookmark_every)
        verb = self._verbs(target).get(call.method)
        if verb is None or (not target.name and not _listed(target, call)):
            raise method_not_allowed(call.method)
        return verb(self._registry, target, call)

    def _verbs(self, target: Target) -> dict[str, Verb]:
        if not target.name:
            return COLLECTION
        if not target.subresource:
            return ITEM
        if target.subresource == "status" and target.resource.status:
            return STATUS
        if target.subresource == "scale" and target.resource.scale:
            return SCALE
        if target.resource is PODS and target.subresource in self._pod_verbs:
            return self._pod_verbs[target.subresource]
        raise no_such_path()


def _no(registry: Registry, target: Target, call: Call) -> Response:
    """Refuse a subresource that needs the processes of a container."""
    del call
    registry.get(target.resource, target.home, target.name)
    reason = "its containers are not processes, they only report that they run"
    raise bad_request(f"the local cluster has no {target.subresource}: {reason}")


def _listed(target: Target, call: Call) -> bool:
    names = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
    return names[call.method] in target.resource.verbs
