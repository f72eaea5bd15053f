"""The table of served kinds: those that kube-scheduler 1.22-1.37, kubectl and the controllers use.

Knows names and verbs only, and the documents of discovery that are made of them; there is no
aggregated document: clients that ask for it read the plain lists as well. A kind without behaviour
is one row. A kube-scheduler would wait for ever in its cache sync for an absent row, since 404
means "not yet" there.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.status import no_such_path

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""Verbs in the order of discovery in a real server."""

NAME_FIELDS = ("metadata.name", "metadata.namespace")
REFERENCE_FIELDS = (
    "kind",
    "namespace",
    "name",
    "uid",
    "apiVersion",
    "resourceVersion",
    "fieldPath",
)


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind in one API version.

    `storage` names the table in the store: two resources with the same table are two forms of the
    same objects. `fields` are the supported field selectors besides name and namespace.
    `blind_update`: a PUT without resourceVersion is accepted (not for Leases, since two candidates
    would both lead). `put_creates`: a PUT of an absent object creates it. `generation`:
    `metadata.generation` counts changes of the spec. `scale`: the subresource `scale` exists.
    `any_name`: names may be any path segment, as in RBAC (`system:x`).
    """

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    fields: tuple[str, ...] = ()
    storage: str = ""
    blind_update: bool = True
    put_creates: bool = False
    generation: bool = False
    scale: bool = False
    any_name: bool = False
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def table(self) -> str:
        """The name of the table in the store, and of the resource in messages."""
        return self.storage or self.qualified

    @property
    def qualified(self) -> str:
        """The plural with its group, as messages of a real server name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def singular(self) -> str:
        """The singular that kubectl accepts."""
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        """The `apiVersion` of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of the API version, without a leading slash."""
        return f"apis/{self.group}/{self.version}" if self.group else f"api/{self.version}"


def _event_fields(reference: str, component: str) -> tuple[str, ...]:
    reference_fields = tuple(f"{reference}.{field}" for field in REFERENCE_FIELDS)
    return (*reference_fields, "reason", "type", "action", component)


def _cluster_wide(plural: str, kind: str, group: str, *short_names: str) -> Resource:
    return Resource(plural, kind, group, namespaced=False, short_names=short_names)


def _core() -> Iterable[Resource]:
    yield Resource("bindings", "Binding", verbs=("create",))
    yield Resource("configmaps", "ConfigMap", short_names=("cm",))
    yield Resource("endpoints", "Endpoints", short_names=("ep",), put_creates=True)
    yield Resource(
        "events",
        "Event",
        short_names=("ev",),
        fields=_event_fields("involvedObject", "reportingComponent"),
        put_creates=True,
    )
    yield Resource(
        "namespaces",
        "Namespace",
        namespaced=False,
        short_names=("ns",),
        status=True,
        fields=("status.phase",),
        verbs=tuple(verb for verb in ALL_VERBS if verb != "deletecollection"),
    )
    yield Resource(
        "nodes",
        "Node",
        namespaced=False,
        short_names=("no",),
        status=True,
        fields=("spec.unschedulable",),
    )
    kind = "PersistentVolumeClaim"
    yield Resource("persistentvolumeclaims", kind, short_names=("pvc",), status=True)
    kind = "PersistentVolume"
    yield Resource("persistentvolumes", kind, namespaced=False, short_names=("pv",), status=True)
    yield Resource(
        "pods",
        "Pod",
        short_names=("po",),
        categories=("all",),
        status=True,
        fields=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    )
    yield Resource("replicationcontrollers", "ReplicationController", short_names=("rc",))
    yield Resource("secrets", "Secret", fields=("type",))
    yield Resource("serviceaccounts", "ServiceAccount", short_names=("sa",))
    yield Resource(
        "services",
        "Service",
        short_names=("svc",),
        categories=("all",),
        status=True,
        put_creates=True,
    )


def _workload(plural: str, kind: str, group: str, *short_names: str, scale: bool) -> Resource:
    return Resource(
        plural,
        kind,
        group,
        short_names=short_names,
        categories=("all",),
        status=True,
        generation=True,
        scale=scale,
    )


def _workloads() -> Iterable[Resource]:
    yield _workload("daemonsets", "DaemonSet", "apps", "ds", scale=False)
    yield _workload("deployments", "Deployment", "apps", "deploy", scale=True)
    yield _workload("replicasets", "ReplicaSet", "apps", "rs", scale=True)
    yield _workload("statefulsets", "StatefulSet", "apps", "sts", scale=True)
    yield _workload("jobs", "Job", "batch", scale=False)


def _sets_of_groups() -> Iterable[Resource]:
    """Yield the kinds that are custom resources in a real cluster."""
    jobs = _workload("jobsets", "JobSet", "jobset.x-k8s.io", scale=False)
    yield replace(jobs, version="v1alpha2")
    group = "leaderworkerset.x-k8s.io"
    yield _workload("leaderworkersets", "LeaderWorkerSet", group, "lws", scale=False)


def _kueue() -> Iterable[Resource]:
    """Yield the kinds of Kueue that the extender reads."""
    group, version = "kueue.x-k8s.io", "v1beta2"
    yield Resource("admissionchecks", "AdmissionCheck", group, version, False, status=True)
    yield Resource("resourceflavors", "ResourceFlavor", group, version, False)
    yield Resource("workloads", "Workload", group, version, short_names=("wl",), status=True)


def _rights() -> Iterable[Resource]:
    group = "rbac.authorization.k8s.io"
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
        everywhere = kind.startswith("Cluster")
        yield Resource(f"{kind.lower()}s", kind, group, namespaced=not everywhere, any_name=True)
    group = "admissionregistration.k8s.io"
    policy = "ValidatingAdmissionPolicy"
    yield _cluster_wide("validatingadmissionpolicies", policy, group)
    yield _cluster_wide("validatingadmissionpolicybindings", f"{policy}Binding", group)
    yield Resource("networkpolicies", "NetworkPolicy", "networking.k8s.io", short_names=("netpol",))


def _grouped() -> Iterable[Resource]:
    for group, review in (("authentication", "Review"), ("authorization", "AccessReview")):
        kind = f"SelfSubject{review}"
        row = Resource(f"{kind.lower()}s", kind, f"{group}.k8s.io", namespaced=False)
        yield replace(row, verbs=("create",))
    yield Resource("leases", "Lease", "coordination.k8s.io", blind_update=False, put_creates=True)
    yield Resource(
        "events",
        "Event",
        "events.k8s.io",
        short_names=("ev",),
        fields=_event_fields("regarding", "reportingController"),
        put_creates=True,
        storage="events",
    )
    yield Resource(
        "poddisruptionbudgets",
        "PodDisruptionBudget",
        "policy",
        short_names=("pdb",),
        status=True,
        blind_update=False,
    )
    yield _cluster_wide("priorityclasses", "PriorityClass", "scheduling.k8s.io", "pc")


def _dynamic_resources() -> Iterable[Resource]:
    group = "resource.k8s.io"
    yield _cluster_wide("deviceclasses", "DeviceClass", group)
    yield _cluster_wide("devicetaintrules", "DeviceTaintRule", group)
    yield Resource("resourceclaims", "ResourceClaim", group, status=True)
    yield Resource("resourceclaimtemplates", "ResourceClaimTemplate", group)
    yield Resource(
        "resourceslices",
        "ResourceSlice",
        group,
        namespaced=False,
        fields=("spec.nodeName", "spec.driver"),
    )


def _storage() -> Iterable[Resource]:
    group = "storage.k8s.io"
    yield _cluster_wide("csidrivers", "CSIDriver", group)
    yield _cluster_wide("csinodes", "CSINode", group)
    yield Resource("csistoragecapacities", "CSIStorageCapacity", group)
    yield _cluster_wide("storageclasses", "StorageClass", group, "sc")
    yield _cluster_wide("volumeattachments", "VolumeAttachment", group)
    # kube-scheduler 1.22 and 1.23 know only the beta of this one.
    yield Resource(
        "csistoragecapacities",
        "CSIStorageCapacity",
        group,
        version="v1beta1",
        storage="csistoragecapacities.v1beta1.storage.k8s.io",
    )


RESOURCES: tuple[Resource, ...] = (
    *_core(),
    *_workloads(),
    *_sets_of_groups(),
    *_kueue(),
    *_grouped(),
    *_rights(),
    *_dynamic_resources(),
    *_storage(),
)
"""Every served resource, core first."""

_BY_PATH = {(row.group, row.version, row.plural): row for row in RESOURCES}


def find(group: str, version: str, plural: str) -> Resource | None:
    """Return the row of a resource, None for an unknown one."""
    return _BY_PATH.get((group, version, plural))


def versions() -> dict[str, list[str]]:
    """Return the groups (the core one is empty) with their versions, preferred first."""
    by_group: dict[str, list[str]] = {}
    for row in RESOURCES:
        served = by_group.setdefault(row.group, [])
        if row.version not in served:
            served.append(row.version)
    return by_group


def in_version(group: str, version: str) -> list[Resource]:
    """Return the resources of one API version, [] for an unknown one."""
    return [row for row in RESOURCES if (row.group, row.version) == (group, version)]


PODS = _BY_PATH["", "v1", "pods"]
NODES = _BY_PATH["", "v1", "nodes"]
NAMESPACES = _BY_PATH["", "v1", "namespaces"]
EVENTS = _BY_PATH["", "v1", "events"]
JOBS = _BY_PATH["batch", "v1", "jobs"]
NEW_EVENTS = _BY_PATH["events.k8s.io", "v1", "events"]
LEASES = _BY_PATH["coordination.k8s.io", "v1", "leases"]
BUDGETS = _BY_PATH["policy", "v1", "poddisruptionbudgets"]
CLAIMS = _BY_PATH["resource.k8s.io", "v1", "resourceclaims"]
PRIORITY_CLASSES = _BY_PATH["scheduling.k8s.io", "v1", "priorityclasses"]
REVIEWS = {
    _BY_PATH["authentication.k8s.io", "v1", "selfsubjectreviews"]: {
        "userInfo": {"username": "system:anonymous", "groups": ["system:unauthenticated"]}
    },
    _BY_PATH["authorization.k8s.io", "v1", "selfsubjectaccessreviews"]: {"allowed": True},
}
"""Reviews of the caller, with the answer: the server has no users, and allows everything."""


OPENAPI_V2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
"""Content-Type of the empty v2 schema; newer clients reject the "@" of the request."""

STATUS_VERBS = ("get", "patch", "update")
POD_SUBRESOURCES = {
    "binding": ("Binding", ("create",)),
    "eviction": ("Eviction", ("create",)),
    "log": ("Pod", ("get",)),
}
_SCALE = {"group": "autoscaling", "version": "v1"}


def version_document() -> Object:
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


def group_document(name: str) -> Object:
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
            entry |= _SCALE if kind == "Scale" else {}
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
