"""Discovery: the served resources, as kubectl and client-go read them, and `/version`.

Pure, made from the resource table. There is no aggregated document: clients that ask for it read
the plain lists as well.
"""

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.resources import Resource, in_version, versions
from gpushare_localcluster.api.status import no_such_path

OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Content-Type of the empty v2 schema; newer clients reject the "@" of the request."""

STATUS_VERBS = ("get", "patch", "update")
POD_SUBRESOURCES = {
    "binding": ("Binding", ("create",)),
    "eviction": ("Eviction", ("create",)),
    "log": ("Pod", ("get",)),
}
SCALE = {"group": "autoscaling", "version": "v1"}


def version() -> Object:
    """Return the document at `/version`."""
    return {
        "major": "1",
        "minor": "37",
        "gitVersion": "v1.37.0+gpushare-localcluster",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


def core_versions(address: str) -> Object:
    """Return the document at `/api`; `address` is host:port of the server."""
    servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers}


def groups() -> Object:
    """Return the document at `/apis`."""
    entries = [_group(name) for name in versions() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}


def group(name: str) -> Object:
    """Return the document at `/apis/GROUP`. Raises StatusError: 404 for an unknown group."""
    if not name or name not in versions():
        raise no_such_path()
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name)}


def resource_list(name: str, api_version: str) -> Object:
    """Return the document at `/api/VERSION` or `/apis/GROUP/VERSION`.

    Raises StatusError: 404 for an unknown version.
    """
    served = in_version(name, api_version)
    if not served:
        raise no_such_path()
    resources: list[Object] = []
    for row in served:
        resources.append(_resource(row))
        for called, kind, verbs in _subresources(row):
            entry = {"name": f"{row.plural}/{called}", "singularName": "", "kind": kind}
            entry |= SCALE if kind == "Scale" else {}
            resources.append({**entry, "namespaced": row.namespaced, "verbs": list(verbs)})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": served[0].api_version,
        "resources": resources,
    }


def _group(name: str) -> Object:
    served = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in versions()[name]
    ]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def _resource(row: Resource) -> Object:
    entry: Object = {
        "name": row.plural,
        "singularName": row.singular,
        "namespaced": row.namespaced,
        "kind": row.kind,
        "verbs": list(row.verbs),
    }
    if row.short_names:
        entry["shortNames"] = list(row.short_names)
    if row.categories:
        entry["categories"] = list(row.categories)
    return entry


def _subresources(row: Resource) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return name, kind and verbs of each subresource."""
    rows: list[tuple[str, str, tuple[str, ...]]] = []
    if row.status:
        rows.append(("status", row.kind, STATUS_VERBS))
    if row.scale:
        rows.append(("scale", "Scale", STATUS_VERBS))
    if row.root == "api/v1" and row.plural == "pods":
        rows += [(name, kind, verbs) for name, (kind, verbs) in POD_SUBRESOURCES.items()]
    return rows
