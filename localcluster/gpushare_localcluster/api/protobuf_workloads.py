"""Protobuf messages of pods, workloads and rights: what kubectl sends of them so.

`kubectl create deployment`, `job`, `service`, `role` and the like do, and `kubectl debug`. What has
more fields than are read here is refused.
"""

from collections.abc import Mapping

from gpushare_localcluster.api.protobuf import (
    Field,
    Inline,
    Many,
    Map,
    Message,
    as_flag,
    as_int_or_text,
    as_number,
    as_quantity,
    unless_false,
    unless_zero,
)
from gpushare_localcluster.api.protobuf_parts import META, SELECTOR, STATUS

_AMOUNTS = {1: Map("limits", as_quantity), 2: Map("requests", as_quantity)}
_PORT = Message(
    {
        1: "name",
        2: Field("hostPort", unless_zero),
        3: Field("containerPort", as_number),
        4: "protocol",
        5: "hostIP",
    }
)
_MOUNT = Message(
    {
        1: "name",
        2: Field("readOnly", unless_false),
        3: "mountPath",
        4: "subPath",
        5: "mountPropagation",
        6: "subPathExpr",
    }
)
_SOURCES = Message(
    {
        1: Field("hostPath", Message({1: "path", 2: "type"})),
        2: Field("emptyDir", Message({1: "medium", 2: Field("sizeLimit", as_quantity)})),
    }
)
_VOLUME = Message({1: "name", 2: Inline("", _SOURCES)})
_TOLERATION = Message(
    {1: "key", 2: "operator", 3: "value", 4: "effect", 5: Field("tolerationSeconds", as_number)}
)
_CONTAINER = Message(
    {
        1: "name",
        2: "image",
        3: Many("command"),
        4: Many("args"),
        5: "workingDir",
        6: Many("ports", _PORT),
        7: Many("env", Message({1: "name", 2: "value"})),
        8: Field("resources", Message(_AMOUNTS)),
        9: Many("volumeMounts", _MOUNT),
        13: "terminationMessagePath",
        14: "imagePullPolicy",
        16: Field("stdin", unless_false),
        17: Field("stdinOnce", unless_false),
        18: Field("tty", unless_false),
        20: "terminationMessagePolicy",
    }
)
_POD = Message(
    {
        1: Many("volumes", _VOLUME),
        2: Many("containers", _CONTAINER),
        3: "restartPolicy",
        4: Field("terminationGracePeriodSeconds", as_number),
        6: "dnsPolicy",
        7: Map("nodeSelector"),
        8: "serviceAccountName",
        9: "serviceAccount",
        10: "nodeName",
        11: Field("hostNetwork", unless_false),
        12: Field("hostPID", unless_false),
        13: Field("hostIPC", unless_false),
        14: Field("securityContext", Message({})),
        16: "hostname",
        17: "subdomain",
        19: "schedulerName",
        20: Many("initContainers", _CONTAINER),
        22: Many("tolerations", _TOLERATION),
        24: "priorityClassName",
        25: Field("priority", as_number),
        27: Field("shareProcessNamespace", as_flag),
        30: Field("enableServiceLinks", as_flag),
        31: "preemptionPolicy",
    }
)
_TEMPLATE = Field("template", Message({1: META, 2: Field("spec", _POD)}))
_ROLLING = Message(
    {1: Field("maxUnavailable", as_int_or_text), 2: Field("maxSurge", as_int_or_text)}
)
_DEPLOYMENT = Message(
    {
        1: Field("replicas", as_number),
        2: Field("selector", SELECTOR),
        3: _TEMPLATE,
        4: Field("strategy", Message({1: "type", 2: Field("rollingUpdate", _ROLLING)})),
        5: Field("minReadySeconds", unless_zero),
        6: Field("revisionHistoryLimit", as_number),
        7: Field("paused", unless_false),
        9: Field("progressDeadlineSeconds", as_number),
    }
)
_JOB = Message(
    {
        1: Field("parallelism", as_number),
        2: Field("completions", as_number),
        3: Field("activeDeadlineSeconds", as_number),
        4: Field("selector", SELECTOR),
        5: Field("manualSelector", as_flag),
        6: _TEMPLATE,
        7: Field("backoffLimit", as_number),
        8: Field("ttlSecondsAfterFinished", as_number),
        9: "completionMode",
        10: Field("suspend", as_flag),
        14: "podReplacementPolicy",
    }
)
_SERVICE_PORT = Message(
    {
        1: "name",
        2: "protocol",
        3: Field("port", as_number),
        4: Field("targetPort", as_int_or_text),
        5: Field("nodePort", unless_zero),
        6: "appProtocol",
    }
)
_SERVICE = Message(
    {
        1: Many("ports", _SERVICE_PORT),
        2: Map("selector"),
        3: "clusterIP",
        4: "type",
        5: Many("externalIPs"),
        7: "sessionAffinity",
        8: "loadBalancerIP",
        10: "externalName",
        11: "externalTrafficPolicy",
        12: Field("healthCheckNodePort", unless_zero),
        13: Field("publishNotReadyAddresses", unless_false),
        18: Many("clusterIPs"),
    }
)
_RULE = Message(
    {
        1: Many("verbs"),
        2: Many("apiGroups"),
        3: Many("resources"),
        4: Many("resourceNames"),
        5: Many("nonResourceURLs"),
    }
)
_ROLE = Message({1: META, 2: Many("rules", _RULE)})
_SUBJECT = Message({1: "kind", 2: "apiGroup", 3: "name", 4: "namespace"})
_GIVEN_ROLE = Field("roleRef", Message({1: "apiGroup", 2: "kind", 3: "name"}))
_BINDING = Message({1: META, 2: Many("subjects", _SUBJECT), 3: _GIVEN_ROLE})

WORKLOADS: Mapping[str, Message] = {
    "apps/v1 Deployment": Message({1: META, 2: Field("spec", _DEPLOYMENT), 3: STATUS}),
    "authentication.k8s.io/v1 SelfSubjectReview": Message({1: META, 2: STATUS}),
    "batch/v1 Job": Message({1: META, 2: Field("spec", _JOB), 3: STATUS}),
    "rbac.authorization.k8s.io/v1 ClusterRole": _ROLE,
    "rbac.authorization.k8s.io/v1 ClusterRoleBinding": _BINDING,
    "rbac.authorization.k8s.io/v1 Role": _ROLE,
    "rbac.authorization.k8s.io/v1 RoleBinding": _BINDING,
    "v1 Pod": Message({1: META, 2: Field("spec", _POD), 3: STATUS}),
    "v1 Service": Message({1: META, 2: Field("spec", _SERVICE), 3: STATUS}),
}
"""By API version and kind, as the envelope of a body names them."""
