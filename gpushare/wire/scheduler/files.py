"""Files for kube-scheduler that make it call this extender: the form and the weights for each
release, and why each line is there.

Knows the files that kube-scheduler 1.22 to 1.37 reads, the sum of scores, and how to write YAML
any reader gives back; touches no file. docs/scheduler.md explains the choices to people.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.core.amounts import SHARE
from gpushare.errors import SettingsError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import GROUP, decode_scheduler_config
from gpushare.wire.scheduler.entry import DEFAULT_LISTEN, PREFIX, endpoint
from gpushare.wire.scheduler.schema import NEWEST, OLDEST

ORDERS = ("ours", "shared")
FORMS = ("config", "policy")
STYLES = ("yaml", "json")
DEFAULT_URL = f"http://{DEFAULT_LISTEN[0]}:{DEFAULT_LISTEN[1]}{PREFIX}"
HTTP_TIMEOUT = 30
"""Seconds; a bind may take the extender 4 s, and kube-scheduler must not give up before. For the
rest of it a pod may wait at bind for the others of its group."""

WEIGHTS = {"ours": 150, "shared": 1}
"""A point of ours counts 10 x weight. ours: one point (1500) outweighs all in-tree scores together
(1400). shared: ten points (100) weigh less than one preferred affinity (200)."""

TLS_FOLDER = "/etc/kubernetes/pki/gpushare"
_POINTS = {"TaintToleration": 3, "NodeAffinity": 2, "InterPodAffinity": 2}
"""Score weights of the wishes of the pod's author: the defaults from v1beta3 on (before, 1)."""

_PRIORITIES = {
    "TaintTolerationPriority": 3,
    "NodeAffinityPriority": 2,
    "InterPodAffinityPriority": 2,
    "EvenPodsSpreadPriority": 2,
    "SelectorSpreadPriority": 1,
    "BalancedResourceAllocation": 1,
    "ImageLocalityPriority": 1,
}
"""1.22's defaults without LeastRequestedPriority: a Policy does not start there with it (tried
with 1.22.17), and without NodePreferAvoidPodsPriority, whose 10000 would outweigh everything."""

READY_MADE = {
    "kube-scheduler.yaml": ("1.37", "config", "ours"),
    "kube-scheduler-shared.yaml": ("1.37", "config", "shared"),
    "kube-scheduler-1.23.yaml": ("1.23", "config", "ours"),
    "kube-scheduler-1.23-shared.yaml": ("1.23", "config", "shared"),
    "kube-scheduler-1.22.yaml": ("1.22", "config", "ours"),
    "kube-scheduler-1.22-shared.yaml": ("1.22", "config", "shared"),
    "policy-1.22.json": ("1.22", "policy", "ours"),
    "policy-1.22-shared.json": ("1.22", "policy", "shared"),
}
"""The files of config/scheduler: name -> (release, form, order)."""

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

_ABOUT_WEIGHTS = {
    "ours": (
        "One point of ours counts 10 times this. kube-scheduler's own scores are at most 1400"
        " in sum, so from 141 on a single point decides: among nodes that fit, our order rules."
    ),
    "shared": (
        "At most 10 x 10 x 1 = 100 points are ours. A preferred affinity (200), a taint to"
        " avoid (300) or a topology spread (200) outweighs them; free CPU and memory, their"
        " balance and images (100 each) weigh the same."
    ),
}
"""By the order."""

_ABOUT_TIMEOUT = (
    "Longer than the 4 s a bind may take the extender; of the rest, a bind may wait for the other"
    " pods of its group. An extender that hangs costs each GPU pod this long."
)

Document = dict[str, object]

_WIDTH = 100
_Comments = Mapping[str, str]
# no, on, y, null and the like are words that YAML takes for something else: all are short.
_PLAIN = re.compile(r"[A-Za-z/][\w./-]{5,}|bind|30s|https?://[\w./:-]*\w", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """A file to print: for kube-scheduler 1.<minor>."""

    minor: int
    form: str
    order: str
    url: str = DEFAULT_URL
    resources: tuple[str, ...] = (ALIYUN.resource, ALIYUN.cores, ALIYUN.share)

    @property
    def version(self) -> str:
        """The newest version of the API that this release of kube-scheduler reads."""
        if self.form == "policy":
            return "v1"
        if self.minor < 23:
            return f"{GROUP}/v1beta2"
        return f"{GROUP}/v1beta3" if self.minor < 25 else f"{GROUP}/v1"


def default_options(kubernetes: str, form: str, order: str) -> FileOptions:
    """Return the options of a file for a release such as 1.27, with the default URL and resource.

    form: "" takes the usual one. Raises SettingsError if there is no such file.
    """
    # Clouds add to it: 1.27.3-eks-1, 1.27+, v1.30.5-gke.1014001.
    match = re.fullmatch(r"v?1\.([0-9]{1,3})(\+|[.+-][\w.+-]{1,60})?", kubernetes, re.ASCII)
    minor = int(match[1]) if match else 0
    if not OLDEST <= minor <= NEWEST:
        newer = f"; for a newer one try the file of 1.{NEWEST}" if minor > NEWEST else ""
        raise SettingsError(
            f"--kubernetes: {kubernetes[:40]!r} is not from 1.{OLDEST} to 1.{NEWEST}{newer}"
        )
    if form == "policy" and minor > 22:
        raise SettingsError("--form policy: kube-scheduler reads a Policy up to 1.22 only")
    return FileOptions(minor, form or ("policy" if minor == 22 else "config"), order)


def render_file(options: FileOptions, style: str) -> str:
    """Return the file's text. `style`: yaml (with comments) or json. Raises SettingsError.

    A file that kube-scheduler or `gpushare serve` would refuse or warn about is not printed.
    """
    document = build_document(options)
    config = decode_scheduler_config(document)
    endpoint(config.extenders[0])
    if config.warnings:
        raise SettingsError(config.warnings[0])
    if style == "json":
        return json.dumps(document, indent=2) + "\n"
    releases = {"v1": f"1.25 to 1.{NEWEST}", "v1beta3": "1.23 and 1.24", "v1beta2": "1.22"}
    policy = options.form == "policy"
    release = "1.22" if policy else releases[options.version.rpartition("/")[2]]
    flag = "--policy-config-file" if policy else "--config"
    header = (
        f"For kube-scheduler {release}: {flag}=FILE. The extender reads the same file: gpushare"
        " serve --scheduler-config FILE. docs/scheduler.md explains the choices."
    )
    own = {
        "extenders.weight": _ABOUT_WEIGHTS[options.order],
        "extenders.httpTimeout": _ABOUT_TIMEOUT + (" In nanoseconds." if policy else ""),
    }
    return yaml_text(document, header, {**COMMENTS, **own})


def ready_made() -> dict[str, str]:
    """Return the files of config/scheduler: name -> text."""
    return {
        name: render_file(default_options(release, form, order), name.rpartition(".")[2])
        for name, (release, form, order) in READY_MADE.items()
    }


def build_document(options: FileOptions) -> Document:
    """Return the file as a document, in the order it is printed."""
    if options.form == "policy":
        priorities = [{"name": name, "weight": weight} for name, weight in _PRIORITIES.items()]
        return {
            "kind": "Policy",
            "apiVersion": options.version,
            "priorities": priorities,
            "extenders": [_extender(options)],
        }
    profile: Document = {"schedulerName": "default-scheduler"}
    if options.order == "shared" and options.minor < 23:
        profile["plugins"] = {
            "score": {
                "disabled": [{"name": name} for name in _POINTS],
                "enabled": [{"name": name, "weight": n} for name, n in _POINTS.items()],
            }
        }
    return {
        "apiVersion": options.version,
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "leaderElection": {"leaderElect": True},
        "percentageOfNodesToScore": 100,
        "profiles": [profile],
        "extenders": [_extender(options)],
    }


def _extender(options: FileOptions) -> Document:
    policy = options.form == "policy"
    https = options.url.startswith("https:")
    tls = {"caFile": "ca.crt", "certFile": "client.crt", "keyFile": "client.key"}
    return {
        "urlPrefix": options.url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": WEIGHTS[options.order],
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "enableHttps" if policy else "enableHTTPS": https,
        **({"tlsConfig": {k: f"{TLS_FOLDER}/{v}" for k, v in tls.items()}} if https else {}),
        "httpTimeout": HTTP_TIMEOUT * 10**9 if policy else f"{HTTP_TIMEOUT}s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            # A sum of percents of unlike cards says nothing, and no node advertises one.
            {"name": name, "ignoredByScheduler": name.endswith(SHARE.resource_suffix)}
            for name in options.resources
        ],
    }


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
            lines.append(f"{indent}{key}:")
            for entry in item:
                first, *more = _mapping(entry, comments, here, f"{indent}    ")
                lines += [f"{indent}  - {first.lstrip()}", *more]
        else:
            # Unquoted if every reader takes it for text.
            plain = isinstance(item, str) and _PLAIN.fullmatch(item) is not None
            lines.append(f"{indent}{key}: {item if plain else json.dumps(item)}")
    return lines


def _comment(text: str, indent: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH - 2 - len(indent), break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]
