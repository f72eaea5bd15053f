"""The table of served kinds: those that kube-scheduler 1.22-1.37, kubectl and the controllers use.

Knows names and verbs only, and the documents of discovery that are made of them; there is no
aggregated document: clients that ask for it read the plain lists as well. A kind without behaviour
is one row. A kube-scheduler would wait for ever in its cache sync for an absent row, since 404
means "not yet" there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.status import no_such_path

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
"""Verbs in the order of discovery in a real server."""

NAME_FIELDS = ("metadata.name", "metadata.namespace")
_REFERENCE_FIELDS = (
    *("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"),
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
    def api_version(self) -> str:
        """The `apiVersion` of the objects."""
        return f"{self.group}/{self.version}" if self.group else self.version


_TABLE = """
v1
    bindings Binding createOnly
    configmaps ConfigMap cm
    endpoints Endpoints ep putCreates
    events Event ev putCreates
    namespaces Namespace ns cluster status noCollection
    nodes Node no cluster status
    persistentvolumeclaims PersistentVolumeClaim pvc status
    persistentvolumes PersistentVolume pv cluster status
    pods Pod po all status
    replicationcontrollers ReplicationController rc
    secrets Secret
    serviceaccounts ServiceAccount sa
    services Service svc all status putCreates
apps/v1
    daemonsets DaemonSet ds workload
    deployments Deployment deploy workload scale
    replicasets ReplicaSet rs workload scale
    statefulsets StatefulSet sts workload scale
batch/v1
    jobs Job workload
jobset.x-k8s.io/v1alpha2
    jobsets JobSet workload
leaderworkerset.x-k8s.io/v1
    leaderworkersets LeaderWorkerSet lws workload
kueue.x-k8s.io/v1beta2
    admissionchecks AdmissionCheck cluster status
    resourceflavors ResourceFlavor cluster
    workloads Workload wl status
authentication.k8s.io/v1
    selfsubjectreviews SelfSubjectReview cluster createOnly
authorization.k8s.io/v1
    selfsubjectaccessreviews SelfSubjectAccessReview cluster createOnly
coordination.k8s.io/v1
    leases Lease versioned putCreates
events.k8s.io/v1
    events Event ev putCreates storage=events
policy/v1
    poddisruptionbudgets PodDisruptionBudget pdb status versioned
scheduling.k8s.io/v1
    priorityclasses PriorityClass pc cluster
rbac.authorization.k8s.io/v1
    clusterroles ClusterRole cluster anyName
    clusterrolebindings ClusterRoleBinding cluster anyName
    roles Role anyName
    rolebindings RoleBinding anyName
admissionregistration.k8s.io/v1
    validatingadmissionpolicies ValidatingAdmissionPolicy cluster
    validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster
networking.k8s.io/v1
    networkpolicies NetworkPolicy netpol
resource.k8s.io/v1
    deviceclasses DeviceClass cluster
    devicetaintrules DeviceTaintRule cluster
    resourceclaims ResourceClaim status
    resourceclaimtemplates ResourceClaimTemplate
    resourceslices ResourceSlice cluster
storage.k8s.io/v1
    csidrivers CSIDriver cluster
    csinodes CSINode cluster
    csistoragecapacities CSIStorageCapacity
    storageclasses StorageClass sc cluster
    volumeattachments VolumeAttachment cluster
storage.k8s.io/v1beta1
    csistoragecapacities CSIStorageCapacity storage=csistoragecapacities.v1beta1.storage.k8s.io
"""
"""API versions, and in each: plural, kind, then short names and words of `_WORDS`.

JobSets, LeaderWorkerSets and the kinds of Kueue are custom resources in a real cluster.
kube-scheduler 1.22 and 1.23 know only the beta of CSIStorageCapacity.
"""

_WORDS: dict[str, dict[str, Any]] = {
    "all": {"categories": ("all",)},
    "anyName": {"any_name": True},
    "cluster": {"namespaced": False},
    "createOnly": {"verbs": ("create",)},
    "noCollection": {"verbs": tuple(verb for verb in ALL_VERBS if verb != "deletecollection")},
    "putCreates": {"put_creates": True},
    "scale": {"scale": True},
    "status": {"status": True},
    "versioned": {"blind_update": False},
    "workload": {"categories": ("all",), "status": True, "generation": True},
}


def _event_fields(reference: str, component: str) -> tuple[str, ...]:
    reference_fields = (f"{reference}.{field}" for field in _REFERENCE_FIELDS)
    return (*reference_fields, "reason", "type", "action", component)


_FIELDS: dict[str, tuple[str, ...]] = {
    "v1 events": _event_fields("involvedObject", "reportingComponent"),
    "events.k8s.io/v1 events": _event_fields("regarding", "reportingController"),
    "v1 namespaces": ("status.phase",),
    "v1 nodes": ("spec.unschedulable",),
    "v1 pods": (
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    "v1 secrets": ("type",),
    "resource.k8s.io/v1 resourceslices": ("spec.nodeName", "spec.driver"),
}


def _rows() -> Iterator[Resource]:
    api_version = ""
    for line in _TABLE.strip().splitlines():
        if not line.startswith(" "):
            api_version = line
            continue
        plural, kind, *words = line.split()
        options: dict[str, Any] = {"fields": _FIELDS.get(f"{api_version} {plural}", ())}
        for word in words:
            name, _, value = word.partition("=")
            options |= {name: value} if value else _WORDS.get(word, {"short_names": (word,)})
        group, _, version = api_version.rpartition("/")
        yield Resource(plural, kind, group, version, **options)


RESOURCES = tuple(_rows())
"""Every served resource, core first."""

_BY_PATH = {(row.group, row.version, row.plural): row for row in RESOURCES}


def find(group: str, version: str, plural: str) -> Resource | None:
    """Return the row of a resource, None for an unknown one."""
    return _BY_PATH.get((group, version, plural))


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

_STATUS_VERBS = ("get", "patch", "update")
_POD_SUBRESOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "binding": ("Binding", ("create",)),
    "eviction": ("Eviction", ("create",)),
    "log": ("Pod", ("get",)),
}


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


def groups() -> list[Object]:
    """Return the groups, each with its versions, as `/apis` and `/apis/GROUP` show them."""
    served: dict[str, list[Object]] = {}
    for row in RESOURCES:
        version = {"groupVersion": row.api_version, "version": row.version}
        if row.group and version not in served.setdefault(row.group, []):
            served[row.group].append(version)
    return [
        {"name": name, "versions": versions, "preferredVersion": versions[0]}
        for name, versions in served.items()
    ]


def resource_list(name: str, api_version: str) -> Object:
    """Return the document at `/api/VERSION` or `/apis/GROUP/VERSION`. Raises StatusError: 404."""
    resources: list[Object] = []
    for row in RESOURCES:
        if (row.group, row.version) == (name, api_version):
            resources += _entries(row)
    if not resources:
        raise no_such_path()
    group_version = f"{name}/{api_version}" if name else api_version
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version}
    return {**head, "resources": resources}


def _entries(row: Resource) -> Iterator[Object]:
    """Yield the entry of a resource, and those of its subresources."""
    entry: Object = {
        "name": row.plural,
        "singularName": row.kind.lower(),
        "namespaced": row.namespaced,
        "kind": row.kind,
        "verbs": list(row.verbs),
    }
    lists = {"shortNames": list(row.short_names), "categories": list(row.categories)}
    yield {**entry, **{field: names for field, names in lists.items() if names}}
    parts = dict(_POD_SUBRESOURCES) if (row.group, row.plural) == ("", "pods") else {}
    parts |= {"status": (row.kind, _STATUS_VERBS)} if row.status else {}
    parts |= {"scale": ("Scale", _STATUS_VERBS)} if row.scale else {}
    for name, (kind, verbs) in parts.items():
        part = {"name": f"{row.plural}/{name}", "singularName": "", "kind": kind}
        part |= {"group": "autoscaling", "version": "v1"} if kind == "Scale" else {}
        yield {**part, "namespaced": row.namespaced, "verbs": list(verbs)}
