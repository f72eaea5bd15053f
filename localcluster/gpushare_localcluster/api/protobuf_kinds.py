"""Kubernetes objects in protobuf, as kubectl and kube-scheduler send what they create.

Knows the envelope ("k8s" and a zero byte, then a message that holds the name of the kind and the
object's own message), and the kinds below: those for which such clients use it here. Field numbers
are those of generated.proto in k8s.io/api and apimachinery 0.37; they never change. Answers are
JSON, which every such client accepts besides.
"""

from collections.abc import Mapping

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.protobuf import (
    Field,
    Many,
    Map,
    Message,
    ProtobufError,
    UnknownKindError,
    as_base64,
    as_bytes,
    as_flag,
    as_int_or_text,
    as_micro_time,
    as_number,
    as_time,
)
from gpushare_localcluster.api.protobuf_parts import (
    META,
    REFERENCE,
    REQUIREMENT,
    SELECTOR,
    STATUS,
)
from gpushare_localcluster.api.protobuf_workloads import WORKLOADS

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"

_UNKNOWN = Message(
    {
        1: Field("typeMeta", Message({1: "apiVersion", 2: "kind"})),
        2: Field("raw", as_bytes),
        3: "contentEncoding",
        4: "contentType",
    }
)
_ATTRIBUTE_SELECTOR = Message({1: "rawSelector", 2: Many("requirements", REQUIREMENT)})
_DELETE_OPTIONS = Message(
    {
        1: Field("gracePeriodSeconds", as_number),
        2: Field("preconditions", Message({1: "uid", 2: "resourceVersion"})),
        3: Field("orphanDependents", as_flag),
        4: "propagationPolicy",
        5: Many("dryRun"),
        6: Field("ignoreStoreReadErrorWithClusterBreakingPotential", as_flag),
    }
)
_SERIES = Message({1: Field("count", as_number), 2: Field("lastObservedTime", as_micro_time)})

_KINDS: Mapping[str, Message] = {
    **WORKLOADS,
    "DeleteOptions": _DELETE_OPTIONS,
    "v1 Binding": Message({1: META, 2: Field("target", REFERENCE)}),
    "v1 ConfigMap": Message(
        {1: META, 2: Map("data"), 3: Map("binaryData", as_base64), 4: Field("immutable", as_flag)}
    ),
    "v1 Namespace": Message(
        {1: META, 2: Field("spec", Message({1: Many("finalizers")})), 3: STATUS}
    ),
    "v1 Secret": Message(
        {
            1: META,
            2: Map("data", as_base64),
            3: "type",
            4: Map("stringData"),
            5: Field("immutable", as_flag),
        }
    ),
    "v1 ServiceAccount": Message(
        {
            1: META,
            2: Many("secrets", REFERENCE),
            3: Many("imagePullSecrets", Message({1: "name"})),
            4: Field("automountServiceAccountToken", as_flag),
        }
    ),
    "authorization.k8s.io/v1 SelfSubjectAccessReview": Message(
        {
            1: META,
            2: Field(
                "spec",
                Message(
                    {
                        1: Field(
                            "resourceAttributes",
                            Message(
                                {
                                    1: "namespace",
                                    2: "verb",
                                    3: "group",
                                    4: "version",
                                    5: "resource",
                                    6: "subresource",
                                    7: "name",
                                    8: Field("fieldSelector", _ATTRIBUTE_SELECTOR),
                                    9: Field("labelSelector", _ATTRIBUTE_SELECTOR),
                                }
                            ),
                        ),
                        2: Field("nonResourceAttributes", Message({1: "path", 2: "verb"})),
                    }
                ),
            ),
            3: STATUS,
        }
    ),
    "coordination.k8s.io/v1 Lease": Message(
        {
            1: META,
            2: Field(
                "spec",
                Message(
                    {
                        1: "holderIdentity",
                        2: Field("leaseDurationSeconds", as_number),
                        3: Field("acquireTime", as_micro_time),
                        4: Field("renewTime", as_micro_time),
                        5: Field("leaseTransitions", as_number),
                        6: "strategy",
                        7: "preferredHolder",
                    }
                ),
            ),
        }
    ),
    "events.k8s.io/v1 Event": Message(
        {
            1: META,
            2: Field("eventTime", as_micro_time),
            3: Field("series", _SERIES),
            4: "reportingController",
            5: "reportingInstance",
            6: "action",
            7: "reason",
            8: Field("regarding", REFERENCE),
            9: Field("related", REFERENCE),
            10: "note",
            11: "type",
            12: Field("deprecatedSource", Message({1: "component", 2: "host"})),
            13: Field("deprecatedFirstTimestamp", as_time),
            14: Field("deprecatedLastTimestamp", as_time),
            15: Field("deprecatedCount", as_number),
        }
    ),
    "policy/v1 Eviction": Message({1: META, 2: Field("deleteOptions", _DELETE_OPTIONS)}),
    "policy/v1 PodDisruptionBudget": Message(
        {
            1: META,
            2: Field(
                "spec",
                Message(
                    {
                        1: Field("minAvailable", as_int_or_text),
                        2: Field("selector", SELECTOR),
                        3: Field("maxUnavailable", as_int_or_text),
                        4: "unhealthyPodEvictionPolicy",
                    }
                ),
            ),
            3: STATUS,
        }
    ),
    "scheduling.k8s.io/v1 PriorityClass": Message(
        {
            1: META,
            2: Field("value", as_number),
            3: Field("globalDefault", as_flag),
            4: "description",
            5: "preemptionPolicy",
        }
    ),
}


def decode(body: bytes) -> Object:
    """Return the object that a body holds. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("it does not begin with Kubernetes' magic bytes")
    envelope = _UNKNOWN(body[len(_MAGIC) :])
    head = {"apiVersion": "", "kind": "", **envelope.get("typeMeta", {})}
    name = f"{head['apiVersion']} {head['kind']}"
    message = _KINDS.get(name) or _KINDS.get(head["kind"])
    if message is None:
        raise UnknownKindError(f"{name.strip() or 'no kind'} is not read from protobuf here")
    return {**head, **message(envelope.get("raw", b""))}
