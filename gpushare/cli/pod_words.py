"""Find the pods that the words of a command line name: a pod, a workload, or labels.

A workload names pods by its selector, as in `kubectl logs deploy/web`. Reads through kubectl.
"""

from collections.abc import Iterator, Mapping

from gpushare.cli.facts import Fields, elements, mapping, text
from gpushare.cli.kubectl import Kubectl
from gpushare.errors import MessageError, SettingsError
from gpushare.wire.fields import NAME
from gpushare.wire.objects import PODS, Pod
from gpushare.wire.pods import has_ended, pod_ref

PodName = tuple[str, str]
"""Namespace and name."""

_KINDS = (
    ("apps", "deployments", "deployment", "deploy"),
    ("apps", "replicasets", "replicaset", "rs"),
    ("apps", "statefulsets", "statefulset", "sts"),
    ("apps", "daemonsets", "daemonset", "ds"),
    ("batch", "jobs", "job"),
)
"""API group, resource and further names of the kinds of workloads, as in kubectl."""
_PATHS = {
    kind: f"/apis/{group}/v1/namespaces/{{}}/{kinds[0]}/{{}}"
    for group, *kinds in _KINDS
    for name in kinds
    for kind in (name, f"{name}.{group}")
}
_OPERATORS = {"In": "in", "NotIn": "notin", "Exists": "", "DoesNotExist": "!"}


def pods_named(
    word: str, selector: str, namespace: str, kubectl: Kubectl
) -> Mapping[PodName, Pod | None]:
    """Return the pod, not read (None), or the pods of a workload or with these labels that have not
    ended, pending pods first.

    word: POD, NAMESPACE/POD or KIND/NAME, "" for a selector alone. namespace: "" for kubectl's.
    Raises SettingsError, MessageError without any pod, and the errors of `Kubectl.request`.
    """
    kind, slash, name = word.partition("/")
    path = _PATHS.get(kind.lower()) if slash else None
    if path is None and word:
        if selector:
            raise SettingsError("name cannot be provided when a selector is specified")
        return {pod_named(word, namespace, kubectl): None}
    namespace = namespace or kubectl.namespace()
    labels = selector
    if path is not None:
        _check_names(namespace, name, f"a {kind}")
        spec = mapping(kubectl.get(path.format(namespace, name)).get("spec"))
        labels = ",".join(filter(None, (*_requirements(mapping(spec.get("selector"))), labels)))
    elif not labels:
        raise SettingsError("which pod? Name one, or a workload as deploy/web, or labels by -l")
    body = kubectl.request(
        "GET", f"/api/v1/namespaces/{namespace}/pods", query={"labelSelector": labels}
    )
    pods = [pod for pod in PODS.decode_list(body).items if not has_ended(pod)]
    if not pods:
        raise MessageError(f"no pod of {word or labels} runs or waits in namespace {namespace}")
    pods.sort(key=lambda pod: bool(pod.spec and pod.spec.node_name))
    return {(namespace, pod_ref(pod).name): pod for pod in pods}


def pod_named(word: str, namespace: str, kubectl: Kubectl) -> PodName:
    """Return (namespace, name) of POD, pod/POD or NAMESPACE/POD; by default kubectl's namespace."""
    first, slash, name = word.rpartition("/")
    if slash and first not in ("pod", "pods"):
        namespace = first
    if not namespace:
        namespace = kubectl.namespace()
    _check_names(namespace, name, "a pod")
    return namespace, name


def _check_names(namespace: str, name: str, kind: str) -> None:
    for value, what in ((namespace, "a namespace"), (name, kind)):
        if NAME.fullmatch(value) is None:
            raise SettingsError(f"{value[:80]!r} is no name of {what}")


def _requirements(selector: Fields) -> Iterator[str]:
    """Yield the requirements of a LabelSelector in the form of a labelSelector parameter."""
    for key, value in mapping(selector.get("matchLabels")).items():
        yield f"{key}={text(value)}"
    for item in map(mapping, elements(selector.get("matchExpressions"))):
        key, operator = text(item.get("key")), _OPERATORS.get(text(item.get("operator")))
        values = ",".join(map(text, elements(item.get("values"))))
        if operator is None:
            raise MessageError(f"a selector with the operator {item.get('operator')!r}")
        match operator:
            case "" | "!":
                yield f"{operator}{key}"
            case _:
                yield f"{key} {operator} ({values})"
