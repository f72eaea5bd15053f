"""The JSON of the preempt verb: both forms of the request decoded, the one form of answer encoded.

Knows shapes only, not who is worth evicting. A scheduler that caches nodes with us sends uids
(NodeNameToMetaVictims), any other whole pods (NodeNameToVictims); the answer is always uids. A null
for a node or a pod in an answer makes kube-scheduler panic: there is none, in any case.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from gpushare.core.preemption.preemptor import Victims
from gpushare.errors import MessageError
from gpushare.wire.codec import decode_with
from gpushare.wire.extender import CheckedPod, NodeName, PodUid, decode_body
from gpushare.wire.objects import Pod

_MAX_VIOLATIONS = 2**31
"""More violations than pods can be; the answer's number is an int64."""


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """A preempt request: the preempting pod, and kube-scheduler's victims by node, perhaps none."""

    pod: Pod
    victims: Mapping[str, Victims]


class _Body(Struct, gc=False, forbid_unknown_fields=True):
    pod: CheckedPod = msgspec.field(name="Pod")
    victims: dict[NodeName, Raw] | None = msgspec.field(default=None, name="NodeNameToVictims")
    meta: dict[NodeName, Raw] | None = msgspec.field(default=None, name="NodeNameToMetaVictims")


class _OnNode(Struct, gc=False, forbid_unknown_fields=True):
    pods: list[Raw] | None = msgspec.field(default=None, name="Pods")
    violations: int | None = msgspec.field(default=None, name="NumPDBViolations")


class _MetaPod(Struct, gc=False, forbid_unknown_fields=True):
    uid: PodUid = msgspec.field(name="UID")


class _IdentifiedMetadata(Struct, gc=False):
    uid: PodUid


class _WholePod(Struct, gc=False):
    metadata: _IdentifiedMetadata


class _AnsweredPod(Struct, gc=False):
    uid: str = msgspec.field(name="UID")


class _AnsweredNode(Struct, gc=False):
    pods: list[_AnsweredPod] = msgspec.field(name="Pods")
    violations: int = msgspec.field(name="NumPDBViolations")


class _PreemptReply(Struct, gc=False):
    nodes: dict[str, _AnsweredNode] = msgspec.field(name="NodeNameToMetaVictims")


def decode_preempt(body: bytes) -> PreemptArgs:
    """Return the preempt request in a body; nulls count as missing. Raises MessageError."""
    args = decode_body(_BODY, _Body, body)
    if args.meta is not None:
        return PreemptArgs(args.pod, _by_node(args.meta, "NodeNameToMetaVictims", _meta_uid))
    return PreemptArgs(args.pod, _by_node(args.victims or {}, "NodeNameToVictims", _whole_uid))


def encode_preempt(victims: Mapping[str, Victims]) -> bytes:
    """Return the answer to a preempt request: the remaining nodes, with the victims in order."""
    return _ENCODER.encode(
        _PreemptReply(
            {
                node: _AnsweredNode(
                    [_AnsweredPod(uid) for uid in victims_of_node.uids], victims_of_node.violations
                )
                for node, victims_of_node in victims.items()
            }
        )
    )


def _by_node(
    nodes: Mapping[str, Raw], path: str, uid_of: Callable[[Raw], str]
) -> dict[str, Victims]:
    victims_by_node = dict.fromkeys(nodes, Victims())
    for node, raw in nodes.items():
        if _is_null(raw):
            continue
        try:
            victims = decode_body(_ON_NODE, _OnNode, raw)
            uids = tuple([uid_of(pod) for pod in victims.pods or () if not _is_null(pod)])
        except MessageError as error:
            raise MessageError(f"{path}.{node[:80]}: {error}") from error
        violations = min(max(victims.violations or 0, 0), _MAX_VIOLATIONS)
        victims_by_node[node] = Victims(uids, violations)
    return victims_by_node


def _is_null(raw: Raw) -> bool:
    return bytes(raw) == b"null"


def _meta_uid(raw: Raw) -> str:
    return decode_body(_META_POD, _MetaPod, raw).uid


def _whole_uid(raw: Raw) -> str:
    return decode_with(_WHOLE_POD, raw, "Pods").metadata.uid


_BODY = Decoder(_Body)
_ON_NODE = Decoder(_OnNode)
_META_POD = Decoder(_MetaPod)
_WHOLE_POD = Decoder(_WholePod)
_ENCODER = msgspec.json.Encoder()
