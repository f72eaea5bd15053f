"""Kubernetes objects in protobuf, as the generators of kubectl send them (`kubectl create NAME`).

Knows the wire format, the envelope ("k8s" and a zero byte, then a message with the name of the kind
and the bytes of the object) and the kinds that kubectl sends so, by a schema of plain texts. A
field that the schema lacks is refused, never left out. Field numbers are those of generated.proto
in k8s.io/api and apimachinery 0.37; they never change. Answers are JSON, which kubectl accepts
too.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gpushare_localcluster.api.objects import Object, timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Value = int | bytes
"""An encoded field: a number, or the bytes of anything that has a length."""


class ProtobufError(ValueError):
    """A body that is no such message."""


class UnknownKindError(ProtobufError):
    """A message of a kind, or with a field, that the schema lacks."""


class _Field(NamedTuple):
    """A field of a message. form: "" for one value, `[` for a list, `{` for a map from text."""

    name: str
    type: str
    form: str


_FIELD = re.compile(
    r"(?P<number>\d+) (?P<name>[\w*]+)(?:=(?P<one>\w+)|\[(?P<list>\w*)\]|\{(?P<map>\w*)\})?"
)


class Schema:
    """The messages of a format.

    Each message is a text such as `1 name, 2 data{}, 3 binaryData{base64}, 4 tags[], 5 size=number,
    6 spec=Spec`: the number and the name of each field, then its type: that of one value (`=`), of
    the items of a list (`[]`) or of the values of a map from text (`{}`). A type is a message of
    the schema or a key of `_SCALARS`; without one the field is text. The fields of a message named
    `*` join those around it.
    """

    def __init__(self, messages: Mapping[str, str]) -> None:
        self._messages = {name: _fields_of(text) for name, text in messages.items()}

    def __contains__(self, name: object) -> bool:
        """Return whether the schema has the message."""
        return name in self._messages

    def read(self, name: str, data: bytes) -> Object:
        """Return the object that a message describes. Raises ProtobufError.

        Empty texts are left out: client-go writes fields that JSON would leave out.
        """
        item: Object = {}
        for number, value in _values(data):
            field = self._messages[name].get(number)
            if field is None:
                raise UnknownKindError(f"field {number} is not read from protobuf here")
            if field.form == "{":
                entry = dict(_values(_bytes(value)))
                key, encoded = _text(entry.get(1, b"")), entry.get(2, b"")
                item.setdefault(field.name, {})[key] = self._read(field.type, encoded)
                continue
            content = self._read(field.type, value)
            if field.form == "[":
                item.setdefault(field.name, []).append(content)
            elif field.name == "*" and isinstance(content, dict):
                item.update(content)
            elif content not in (None, ""):
                item[field.name] = content
        return item

    def _read(self, kind: str, value: Value) -> object:
        if kind in self._messages:
            return self.read(kind, _bytes(value))
        return _SCALARS[kind](value)


def _fields_of(text: str) -> dict[int, _Field]:
    fields: dict[int, _Field] = {}
    for match in _FIELD.finditer(text):
        form = "[" if match["list"] is not None else "{" if match["map"] is not None else ""
        kind = match["one"] or match["list"] or match["map"] or "text"
        fields[int(match["number"])] = _Field(match["name"], kind, form)
    return fields


def _values(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value: Value
            value, at = _varint(data, at)
        elif wire in (_BYTES, _EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
            if wire == _BYTES:
                size, at = _varint(data, at)
            if size > len(data) - at:
                raise ProtobufError(f"field {number} ends behind the end")
            value, at = data[at : at + size], at + size
        else:
            raise ProtobufError(f"field {number} has the wire type {wire}")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (the number at this offset, the offset behind it)."""
    number = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ProtobufError("a number has no end")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a number stands where bytes should")
    return value


def _text(value: Value) -> str:
    return _bytes(value).decode()


def _number(value: Value) -> int:
    """Return an int32 or int64."""
    if not isinstance(value, int):
        raise ProtobufError("bytes stand where a number should")
    low = value & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def _time(value: Value) -> str | None:
    """Return a `metav1.Time`, None for an empty one."""
    parts = {number: _number(part) for number, part in _values(_bytes(value))}
    if not parts:
        return None
    try:
        return timestamp(_EPOCH + timedelta(seconds=parts.get(1, 0)))
    except OverflowError as error:
        raise ProtobufError("a time is out of range") from error


def _int_or_text(value: Value) -> int | str:
    """Return an `intstr.IntOrString`."""
    parts = dict(_values(_bytes(value)))
    return _text(parts.get(3, b"")) if parts.get(1) else _number(parts.get(2, 0))


_SCALARS: dict[str, Callable[[Value], object]] = {
    "base64": lambda value: base64.b64encode(_bytes(value)).decode(),
    "bytes": _bytes,
    "flag": lambda value: _number(value) != 0,
    "intOrText": _int_or_text,
    "number": _number,
    "quantity": lambda value: _text(dict(_values(_bytes(value))).get(1, b"")),
    "serverSet": lambda _value: None,
    "text": _text,
    "time": _time,
    "unlessFalse": lambda value: _number(value) != 0 or None,
    "unlessZero": lambda value: _number(value) or None,
}
"""Types without fields. `serverSet` drops the value, `unless...` drops one that JSON leaves out."""


MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_RBAC = "rbac.authorization.k8s.io/v1"
_ROLE = "1 metadata=Meta, 2 rules[Rule]"
_ROLE_BINDING = "1 metadata=Meta, 2 subjects[Subject], 3 roleRef=RoleRef"

_PARTS = {
    "Envelope": "1 typeMeta=TypeMeta, 2 raw=bytes, 3 contentEncoding, 4 contentType",
    "TypeMeta": "1 apiVersion, 2 kind",
    "Meta": "1 name, 2 generateName, 3 namespace, 4 selfLink=serverSet, 5 uid, 6 resourceVersion,"
    " 7 generation=serverSet, 8 creationTimestamp=time, 9 deletionTimestamp=time,"
    " 10 deletionGracePeriodSeconds=number, 11 labels{}, 12 annotations{},"
    " 13 ownerReferences[Owner], 14 finalizers[], 17 managedFields=serverSet",
    "Owner": "1 kind, 3 name, 4 uid, 5 apiVersion, 6 controller=flag, 7 blockOwnerDeletion=flag",
    "Reference": "1 kind, 2 namespace, 3 name, 4 uid, 5 apiVersion, 6 resourceVersion, 7 fieldPath",
    "SecretName": "1 name",
    "Selector": "1 matchLabels{}, 2 matchExpressions[Requirement]",
    "Requirement": "1 key, 2 operator, 3 values[]",
    "AttributeSelector": "1 rawSelector, 2 requirements[Requirement]",
    "AccessReview": "1 resourceAttributes=Resource, 2 nonResourceAttributes=NonResource",
    "Resource": "1 namespace, 2 verb, 3 group, 4 version, 5 resource, 6 subresource, 7 name,"
    " 8 fieldSelector=AttributeSelector, 9 labelSelector=AttributeSelector",
    "NonResource": "1 path, 2 verb",
    "Preconditions": "1 uid, 2 resourceVersion",
    "NamespaceSpec": "1 finalizers[]",
    "Budget": "1 minAvailable=intOrText, 2 selector=Selector, 3 maxUnavailable=intOrText,"
    " 4 unhealthyPodEvictionPolicy",
    "Rule": "1 verbs[], 2 apiGroups[], 3 resources[], 4 resourceNames[], 5 nonResourceURLs[]",
    "Subject": "1 kind, 2 apiGroup, 3 name, 4 namespace",
    "RoleRef": "1 apiGroup, 2 kind, 3 name",
    "ServiceSpec": "1 ports[ServicePort], 2 selector{}, 3 clusterIP, 4 type, 5 externalIPs[],"
    " 7 sessionAffinity, 8 loadBalancerIP, 10 externalName, 11 externalTrafficPolicy,"
    " 12 healthCheckNodePort=unlessZero, 13 publishNotReadyAddresses=unlessFalse, 18 clusterIPs[]",
    "ServicePort": "1 name, 2 protocol, 3 port=number, 4 targetPort=intOrText,"
    " 5 nodePort=unlessZero, 6 appProtocol",
    "DeploymentSpec": "1 replicas=number, 2 selector=Selector, 3 template=Template,"
    " 4 strategy=Strategy, 5 minReadySeconds=unlessZero, 6 revisionHistoryLimit=number,"
    " 7 paused=unlessFalse, 9 progressDeadlineSeconds=number",
    "Strategy": "1 type, 2 rollingUpdate=RollingUpdate",
    "RollingUpdate": "1 maxUnavailable=intOrText, 2 maxSurge=intOrText",
    "JobSpec": "1 parallelism=number, 2 completions=number, 3 activeDeadlineSeconds=number,"
    " 4 selector=Selector, 5 manualSelector=flag, 6 template=Template, 7 backoffLimit=number,"
    " 8 ttlSecondsAfterFinished=number, 9 completionMode, 10 suspend=flag, 14 podReplacementPolicy",
    "Template": "1 metadata=Meta, 2 spec=PodSpec",
    "PodSpec": "1 volumes[Volume], 2 containers[Container], 3 restartPolicy,"
    " 4 terminationGracePeriodSeconds=number, 6 dnsPolicy, 7 nodeSelector{}, 8 serviceAccountName,"
    " 9 serviceAccount, 10 nodeName, 11 hostNetwork=unlessFalse, 12 hostPID=unlessFalse,"
    " 13 hostIPC=unlessFalse, 14 securityContext=Empty, 16 hostname, 17 subdomain,"
    " 19 schedulerName, 20 initContainers[Container], 22 tolerations[Toleration],"
    " 24 priorityClassName, 25 priority=number, 27 shareProcessNamespace=flag,"
    " 30 enableServiceLinks=flag, 31 preemptionPolicy",
    "Container": "1 name, 2 image, 3 command[], 4 args[], 5 workingDir, 6 ports[ContainerPort],"
    " 7 env[Variable], 8 resources=Resources, 9 volumeMounts[VolumeMount],"
    " 13 terminationMessagePath, 14 imagePullPolicy, 16 stdin=unlessFalse,"
    " 17 stdinOnce=unlessFalse, 18 tty=unlessFalse, 20 terminationMessagePolicy",
    "ContainerPort": "1 name, 2 hostPort=unlessZero, 3 containerPort=number, 4 protocol, 5 hostIP",
    "Variable": "1 name, 2 value",
    "Resources": "1 limits{quantity}, 2 requests{quantity}",
    "VolumeMount": "1 name, 2 readOnly=unlessFalse, 3 mountPath, 4 subPath, 5 mountPropagation,"
    " 6 subPathExpr",
    "Volume": "1 name, 2 *=VolumeSource",
    "VolumeSource": "1 hostPath=HostPath, 2 emptyDir=EmptyDir",
    "HostPath": "1 path, 2 type",
    "EmptyDir": "1 medium, 2 sizeLimit=quantity",
    "Toleration": "1 key, 2 operator, 3 value, 4 effect, 5 tolerationSeconds=number",
    "Empty": "",
}
_KINDS = {
    "DeleteOptions": "1 gracePeriodSeconds=number, 2 preconditions=Preconditions,"
    " 3 orphanDependents=flag, 4 propagationPolicy, 5 dryRun[],"
    " 6 ignoreStoreReadErrorWithClusterBreakingPotential=flag",
    "apps/v1 Deployment": "1 metadata=Meta, 2 spec=DeploymentSpec, 3 status=serverSet",
    "authentication.k8s.io/v1 SelfSubjectReview": "1 metadata=Meta, 2 status=serverSet",
    "authorization.k8s.io/v1 SelfSubjectAccessReview": "1 metadata=Meta, 2 spec=AccessReview,"
    " 3 status=serverSet",
    "batch/v1 Job": "1 metadata=Meta, 2 spec=JobSpec, 3 status=serverSet",
    "policy/v1 PodDisruptionBudget": "1 metadata=Meta, 2 spec=Budget, 3 status=serverSet",
    f"{_RBAC} ClusterRole": _ROLE,
    f"{_RBAC} ClusterRoleBinding": _ROLE_BINDING,
    f"{_RBAC} Role": _ROLE,
    f"{_RBAC} RoleBinding": _ROLE_BINDING,
    "scheduling.k8s.io/v1 PriorityClass": "1 metadata=Meta, 2 value=number, 3 globalDefault=flag,"
    " 4 description, 5 preemptionPolicy",
    "v1 ConfigMap": "1 metadata=Meta, 2 data{}, 3 binaryData{base64}, 4 immutable=flag",
    "v1 Namespace": "1 metadata=Meta, 2 spec=NamespaceSpec, 3 status=serverSet",
    "v1 Pod": "1 metadata=Meta, 2 spec=PodSpec, 3 status=serverSet",
    "v1 Secret": "1 metadata=Meta, 2 data{base64}, 3 type, 4 stringData{}, 5 immutable=flag",
    "v1 Service": "1 metadata=Meta, 2 spec=ServiceSpec, 3 status=serverSet",
    "v1 ServiceAccount": "1 metadata=Meta, 2 secrets[Reference], 3 imagePullSecrets[SecretName],"
    " 4 automountServiceAccountToken=flag",
}
"""By API version and kind, as the envelope names them."""
_SCHEMA = Schema({**_PARTS, **_KINDS})


def decode(body: bytes) -> Object:
    """Return the object in a request body. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("it does not begin with Kubernetes' magic bytes")
    envelope = _SCHEMA.read("Envelope", body[len(_MAGIC) :])
    head = {"apiVersion": "", "kind": "", **envelope.get("typeMeta", {})}
    name = f"{head['apiVersion']} {head['kind']}"
    message = name if name in _KINDS else head["kind"]
    if message not in _KINDS:
        raise UnknownKindError(f"{name.strip() or 'no kind'} is not read from protobuf here")
    return {**head, **_SCHEMA.read(message, envelope.get("raw", b""))}
