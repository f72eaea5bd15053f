"""Messages that stand in those of many kinds: metadata, references, label selectors."""

from gpushare_localcluster.api.protobuf import (
    Field,
    Many,
    Map,
    Message,
    as_flag,
    as_number,
    as_time,
    skipped,
)

_OWNER = Message(
    {
        1: "kind",
        3: "name",
        4: "uid",
        5: "apiVersion",
        6: Field("controller", as_flag),
        7: Field("blockOwnerDeletion", as_flag),
    }
)
META = Field(
    "metadata",
    Message(
        {
            1: "name",
            2: "generateName",
            3: "namespace",
            4: Field("selfLink", skipped),
            5: "uid",
            6: "resourceVersion",
            7: Field("generation", skipped),
            8: Field("creationTimestamp", as_time),
            9: Field("deletionTimestamp", as_time),
            10: Field("deletionGracePeriodSeconds", as_number),
            11: Map("labels"),
            12: Map("annotations"),
            13: Many("ownerReferences", _OWNER),
            14: Many("finalizers"),
            17: Field("managedFields", skipped),
        }
    ),
)
REFERENCE = Message(
    {
        1: "kind",
        2: "namespace",
        3: "name",
        4: "uid",
        5: "apiVersion",
        6: "resourceVersion",
        7: "fieldPath",
    }
)
REQUIREMENT = Message({1: "key", 2: "operator", 3: Many("values")})
SELECTOR = Message({1: Map("matchLabels"), 2: Many("matchExpressions", REQUIREMENT)})
STATUS = Field("status", skipped)
