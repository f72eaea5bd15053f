"""The extender verbs' JSON (k8s.io/kube-scheduler/extender/v1): requests decoded, answers encoded.

Knows the shapes only, no verb. The Go types have no json tags, so the keys are the Go names. Go
matches keys regardless of case, and so does this module: exact keys are the fast path, other
spellings take a slower one. Answers carry the exact keys, every key always. A malformed body is a
MessageError that names the field, never another exception.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from string import whitespace
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from gpushare.core.model import PodRef
from gpushare.core.node_names import MAX_PARTS, KnownNames, NodeNames
from gpushare.errors import MessageError
from gpushare.wire.codec import decode_with
from gpushare.wire.fields import (
    LABEL_PATTERN,
    MAX_NAME_LENGTH,
    NAME_PATTERN,
    UID_PATTERN,
)
from gpushare.wire.objects import Metadata, Pod, PodSpec, PodStatus
from gpushare.wire.pods import pod_ref

_T = TypeVar("_T", bound=Struct)
_PodT = TypeVar("_PodT", bound=Pod)

MAX_TEXT = 256 * 1024
"""Bytes of a list that is kept: 7,000 names of 32 characters."""
MAX_POD_TEXT = 32 * 1024
"""Upper bound of the bytes of a cached pod; the decoded pod may take seven times as many."""
NodeName = Annotated[str, Meta(max_length=MAX_NAME_LENGTH)]
PodUid = Annotated[str, Meta(pattern=rf"^{UID_PATTERN}\Z")]
_ObjectName = Annotated[str, Meta(pattern=rf"^{NAME_PATTERN}\Z")]
_MANY = 16
"""Smallest number of answered names that is cached: fewer are encoded as fast."""
MAX_KNOWN = 20_000
"""Upper bound of the names that `KnownNames` has; beyond it only those of the last list."""


@dataclass(frozen=True, slots=True)
class FilterArgs:
    """A filter or prioritize request."""

    pod: Pod
    names: NodeNames
    """The nodes asked about, each once, in the order given."""
    ref: PodRef | None
    """Namespace, name and uid of the pod; None if one is missing."""
    items: Mapping[str, Raw] | None = None
    """The received Node objects by name, if the request had the `Nodes` form: the answer mirrors
    the objects untouched.
    """
    is_cached: bool = False
    """Whether the pod is cached, so that prioritize gets the identical object."""


@dataclass(frozen=True, slots=True)
class BindArgs:
    """A bind request: which pod to which node."""

    ref: PodRef
    node: str


class _NodeItems(Struct, gc=False):
    items: list[Raw] | None = None


class _CheckedMetadata(Metadata, gc=False, rename="camel"):
    name: Annotated[str, Meta(pattern=rf"^({NAME_PATTERN})?\Z")] | None = None
    namespace: Annotated[str, Meta(pattern=rf"^({LABEL_PATTERN})?\Z")] | None = None
    uid: Annotated[str, Meta(pattern=rf"^({UID_PATTERN})?\Z")] | None = None


class _CheckedSpec(PodSpec, gc=False, rename="camel"):
    node_name: NodeName | None = None


class _CheckedStatus(PodStatus, gc=False, rename="camel"):
    nominated_node_name: NodeName | None = None


class CheckedPod(Pod, gc=False):
    """A pod with names that the API server would accept, so that kept names are bounded.

    The verb handles a part that is missing.
    """

    metadata: _CheckedMetadata | None = None
    spec: _CheckedSpec | None = None
    status: _CheckedStatus | None = None


class _FilterBody(Struct, gc=False, forbid_unknown_fields=True, rename="pascal"):
    pod: CheckedPod
    nodes: _NodeItems | None = None
    node_names: list[NodeName] | None = None


class _UsualBody(Struct, gc=False, forbid_unknown_fields=True, rename="pascal"):
    """The body of a kube-scheduler that sends names alone, with cached parts undecoded.

    Any other body is decoded as a _FilterBody, for the error message.
    """

    node_names: Raw
    pod: Raw
    nodes: None = None


class _BindBody(Struct, gc=False, forbid_unknown_fields=True):
    """Names of objects are safe in a path: `/` or `..` would reach another object."""

    pod_name: _ObjectName = msgspec.field(name="PodName")
    pod_namespace: Annotated[str, Meta(pattern=rf"^{LABEL_PATTERN}\Z")] = msgspec.field(
        name="PodNamespace"
    )
    pod_uid: PodUid = msgspec.field(name="PodUID")
    node: _ObjectName = msgspec.field(name="Node")


class _NodeMetadata(Struct, gc=False):
    name: NodeName = ""


class _NamedNode(Struct, gc=False):
    metadata: _NodeMetadata


class _SurvivingNodes(Struct, gc=False):
    items: list[Raw]
    metadata: dict[str, str] = {}


class _FilterReply(Struct, gc=False):
    nodes: _SurvivingNodes | None = msgspec.field(name="Nodes")
    node_names: Raw | None = msgspec.field(name="NodeNames")
    failed: Mapping[str, str] = msgspec.field(name="FailedNodes")
    unresolvable: Mapping[str, str] = msgspec.field(name="FailedAndUnresolvableNodes")
    error: str = msgspec.field(name="Error")


class _HostPriority(Struct, gc=False):
    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class _BindReply(Struct, gc=False):
    error: str = msgspec.field(name="Error")


class NameLists:
    """The latest lists of names, received or answered, by their JSON: at most MAX_PARTS.

    kube-scheduler calls prioritize with exactly the names that filter has answered: such a list is
    not decoded, checked or encoded again. The next pod's list has the same names in another order:
    at most MAX_KNOWN names that were checked are not checked again.

    Any thread may call any method: cached values are replaced, never changed.
    """

    def __init__(self) -> None:
        self._lists: tuple[tuple[bytes, NodeNames], ...] = ()
        self.known: KnownNames | None = None
        self.last_pod: tuple[bytes, Pod, PodRef] | None = None
        """The pod of the last call, with the JSON: the next prioritize has the same pod."""

    def pod(self, text: bytes) -> tuple[bytes, Pod, PodRef]:
        """Return the JSON of a pod, the pod and its name. Raises MessageError, or msgspec's errors.

        The same pod in a row is the same object.
        """
        last = self.last_pod
        if last is None or last[0] != text:
            checked_pod = _CHECKED_POD.decode(text)
            last = text, checked_pod, pod_ref(checked_pod)
            self.last_pod = last if len(text) <= MAX_POD_TEXT else None
        return last

    def decode(self, text: bytes) -> NodeNames:
        """Return the names of a JSON list. Raises MessageError, or msgspec's errors."""
        for index, (known_text, names) in enumerate(self._lists):
            if known_text == text:
                if index:
                    self._keep(text, names)
                return names
        decoded_names = _LIST.decode(text)
        checked = None if self.known is None else self.known.find(decoded_names)
        if checked is not None:
            # Plain names: blanks, or characters written as numbers, would make the text longer.
            names, characters = checked
            as_encoded = len(text) == characters + 3 * len(names) + 1
        else:
            names = NodeNames(checked_names(decoded_names, "NodeNames"))
            as_encoded = _ENCODER.encode(names) == text
            plain = len(text) == sum(map(len, names)) + 3 * len(names) + 1
            if as_encoded and plain and _MANY <= len(names) <= MAX_KNOWN:
                known_names = self.known
                if known_names is None or len(known_names) + len(names) > MAX_KNOWN:
                    known_names = KnownNames()
                self.known = known_names.joined(names)
        if not as_encoded:
            return names  # a cached text is answered as it is, with the blanks
        self._keep(text, names)
        return names

    def encode(self, names: Sequence[str]) -> bytes:
        """Return the names, each once, as a JSON list."""
        text = next((text for text, cached_names in self._lists if cached_names is names), None)
        if text is None:
            text = _ENCODER.encode(names)
            self._keep(text, names if isinstance(names, NodeNames) else NodeNames(names))
        return text

    def _keep(self, text: bytes, names: NodeNames) -> None:
        """Keep a list as the one used last; the one used longest ago goes."""
        if len(text) <= MAX_TEXT:
            remaining = (pair for pair in self._lists if pair[0] != text)
            self._lists = ((text, names), *islice(remaining, MAX_PARTS - 1))


def checked_names(names: list[str], path: str) -> Sequence[str]:
    """Return the names, each once. Raises MessageError on one that is empty or holds blanks."""
    unique = set(names)
    joined_names = "".join(names)  # a search in one text is a hundred times faster than one a name
    if "" in unique or any(blank in joined_names for blank in whitespace):
        raise MessageError(f"{path}: an empty name, or one with blanks")
    return names if len(unique) == len(names) else list(dict.fromkeys(names))


def decode_filter(body: bytes, lists: NameLists | None = None) -> FilterArgs:
    """Return the filter (or prioritize) request in a body. Raises MessageError.

    lists: the cache of lists of names, and of the last pod.
    """
    lists = lists or NameLists()
    try:
        usual = _USUAL.decode(body)
        last = lists.pod(bytes(usual.pod))
        node_names = lists.decode(bytes(usual.node_names))
        return FilterArgs(last[1], node_names, last[2], is_cached=last is lists.last_pod)
    except (msgspec.MsgspecError, ValueError, RecursionError, MessageError):
        pass
    args = decode_body(_FILTER, _FilterBody, body)
    pod, ref = args.pod, None
    with suppress(MessageError):
        ref = pod_ref(pod)
    if args.node_names is not None:
        return FilterArgs(pod, NodeNames(checked_names(args.node_names, "NodeNames")), ref)
    if args.nodes is None:
        raise MessageError("NodeNames, Nodes: both missing")
    items = args.nodes.items or []
    names = [
        decode_with(_NAMED, item, f"Nodes.items[{index}]").metadata.name
        for index, item in enumerate(items)
    ]
    unique = NodeNames(checked_names(names, "Nodes.items"))
    return FilterArgs(pod, unique, ref, dict(zip(names, items, strict=True)))


def decode_pod(body: bytes, lists: NameLists) -> tuple[Pod, bytes] | None:
    """Return the pod of a filter request and the received JSON of NodeNames; None for a body that
    only `decode_filter` can read, which then has the pod in `lists`.
    """
    try:
        usual = _USUAL.decode(body)
        return lists.pod(bytes(usual.pod))[1], bytes(usual.node_names)
    except (msgspec.MsgspecError, ValueError, RecursionError, MessageError):
        return None


def mirror_names(names: bytes) -> bytes:
    """Return the answer to a filter request that lets all nodes pass. names: the received JSON."""
    return _ENCODER.encode(_FilterReply(None, Raw(names), {}, {}, ""))


def decode_bind(body: bytes) -> BindArgs:
    """Return the bind request in a body.

    Raises MessageError if any of the four texts is missing, or is no name of such an object.
    """
    args = decode_body(_BIND, _BindBody, body)
    return BindArgs(PodRef(args.pod_namespace, args.pod_name, args.pod_uid), args.node)


def encode_filter(
    args: FilterArgs | None,
    fit: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
    unresolvable: Mapping[str, str] | None = None,
    *,
    error: str = "",
    lists: NameLists | None = None,
) -> bytes:
    """Return the answer to a filter request, in the form the request had.

    fit: nodes that survive, a subset of `args.names` (kube-scheduler fails the call on any other).
    failed: node -> reason, busy now. unresolvable: node -> reason, not even when empty. With
    `error` everything else is ignored by the scheduler; args is None if the request could not be
    read. lists: where the answered names become known.
    """
    nodes, names = None, None
    if args is not None and args.items is not None:
        nodes = _SurvivingNodes([args.items[name] for name in fit])
    else:
        names = Raw(lists.encode(fit) if lists and len(fit) >= _MANY else _ENCODER.encode(fit))
    return _ENCODER.encode(_FilterReply(nodes, names, failed or {}, unresolvable or {}, error))


def encode_priorities(names: Mapping[int, Sequence[str]]) -> bytes:
    """Return the answer to a prioritize request: a bare array, scores as JSON integers (0..10).

    names: node names by score. kube-scheduler takes a missing node for one that scores 0 (1.22 to
    1.37), and reads and stores each entry: leaving out zeros saves most of that work.
    """
    joined_names = "".join(chain.from_iterable(names.values()))
    if len(_ENCODER.encode(joined_names)) != len(joined_names) + 2:  # JSON has to escape something
        priorities = [
            _HostPriority(name, score) for score, nodes in names.items() for name in nodes
        ]
        return _ENCODER.encode(priorities)
    # Five times as fast as an encoder, for thousands of names of some ten scores.
    parts = []
    for score, nodes in names.items():
        end = f'","Score":{score}}}'
        parts.append('{"Host":"' + f'{end},{{"Host":"'.join(nodes) + end)
    return f"[{','.join(parts)}]".encode()


def encode_bind(error: str = "") -> bytes:
    """Return the answer to a bind request; "" means bound."""
    return _ENCODER.encode(_BindReply(error))


def decode_body(exact: Decoder[_T], kind: type[_T], body: bytes | Raw) -> _T:
    """Return the body as the struct: exact keys first, then any spelling; the last one counts.

    `kind` must forbid unknown fields: an unknown field shows another spelling. Raises MessageError.
    """
    try:
        return exact.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        field_names = {name.lower(): name for name in kind.__struct_encode_fields__}
        renamed_fields = {
            field_names[key.lower()]: value
            for key, value in decode_with(_ANY_KEYS, body, "request").items()
            if key.lower() in field_names
        }
        # Re-encoding keeps the path in the messages ("$.Pod.metadata.name") as in the fast path.
        return decode_with(exact, _ENCODER.encode(renamed_fields), "request")


_USUAL = Decoder(_UsualBody)
_CHECKED_POD = Decoder(CheckedPod)
_FILTER = Decoder(_FilterBody)
_BIND = Decoder(_BindBody)
_NAMED = Decoder(_NamedNode)
_LIST = Decoder(list[NodeName])
_ANY_KEYS = Decoder(dict[str, Raw])
_ENCODER = msgspec.json.Encoder()
