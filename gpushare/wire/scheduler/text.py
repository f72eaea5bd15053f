"""Configuration for kube-scheduler as YAML, with the reason of each line above it.

Knows how mappings, lists and scalars are written so that any YAML reader gives them back, and the
comments that fit every file; not which file has which lines.

Tested in `tests/unit/wire/scheduler/test_files.py`.
"""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence

COMMENTS = {
    "clientConnection.kubeconfig": (
        "kubeadm's. With --config, kube-scheduler does not read its flag --kubeconfig."
    ),
    "leaderElection": "Flags such as --leader-elect=false still come first.",
    "percentageOfNodesToScore": (
        "All of them. The default is a sample in clusters of 100 nodes and more, and a sample"
        " without room leaves a pod pending although another node has some."
    ),
    "profiles.plugins": "What the pod's author prefers counts as much as it does from 1.23 on.",
    "priorities": (
        "Without this key 1.22 does not start: it adds LeastRequestedPriority, which it cannot"
        " load. An empty list starts too, but then pods without GPUs go anywhere."
    ),
    "extenders.preemptVerb": "Keeps kube-scheduler from evicting pods whose going frees no device.",
    "extenders.tlsConfig": (
        "The CA of the extender's certificate, and the certificate that kube-scheduler shows."
    ),
    "extenders.nodeCacheCapable": "Only the nodes' names travel, not whole nodes.",
    "extenders.ignorable": (
        "true would bind pods without devices whenever the extender does not answer."
    ),
    "extenders.managedResources": (
        "Pods that ask for none of these never wait for the extender. ignoredByScheduler false:"
        " kube-scheduler counts a node's total too, and spares us nodes that are full."
    ),
}
"""By the path of the key without indices."""

_WIDTH = 100
_Comments = Mapping[str, str]


def yaml_text(document: Mapping[str, object], header: str, comments: _Comments) -> str:
    """Return the document as YAML.

    Comments stand above their keys; an item's first key has none.
    """
    return "\n".join([*_comment(header, ""), *_mapping(document, comments, "", "")]) + "\n"


def _mapping(value: Mapping[str, object], comments: _Comments, path: str, indent: str) -> list[str]:
    lines = []
    for key, item in value.items():
        here = f"{path}.{key}" if path else key
        lines += _comment(comments.get(here, ""), indent)
        if isinstance(item, dict):
            lines += [f"{indent}{key}:", *_mapping(item, comments, here, f"{indent}  ")]
        elif isinstance(item, list):
            lines += [f"{indent}{key}:", *_items(item, comments, here, f"{indent}  ")]
        else:
            lines.append(f"{indent}{key}: {_scalar(item)}")
    return lines


def _items(
    found: Sequence[Mapping[str, object]], comments: _Comments, path: str, indent: str
) -> list[str]:
    lines = []
    for item in found:
        first, *more = _mapping(item, comments, path, f"{indent}  ")
        lines += [f"{indent}- {first.lstrip()}", *more]
    return lines


def _comment(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH - 2 - len(indent), break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]


def _scalar(value: object) -> str:
    """Return the text unquoted if every reader takes it for text, else as JSON."""
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) is not None
    return str(value) if plain else json.dumps(value)


_PLAIN = re.compile(
    # no, on, y, null and the like are words that YAML takes for something else: all are short.
    r"[A-Za-z/][\w./-]{5,}|bind|10s|https?://[\w./:-]*\w",
    re.ASCII,
)
