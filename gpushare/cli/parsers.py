"""The command lines of `explain`, `whatif`, `defrag` and `report`, without the commands' imports.

Books, numpy and msgspec take most of a second to import; help and errors of the command line come
at once. Tested in `tests/unit/cli/test_start.py`.
"""

import argparse

from gpushare.cli.options import REPORT_FORMATS, make_parser
from gpushare.commandline import Parser, add_connection, add_unit
from gpushare.wire.annotations import ALIYUN

DEFAULT_POLICY = "device-bestfit"
"""The default; the extender's own policy depends on pods that only the extender knows."""
NAMESPACE = "kube-system"
"""The default namespace of ConfigMaps that close devices."""
MOVES = 4
"""The default upper bound of moves of a plan; as `explain.defrag.MOST_MOVES`."""
MOST_MOVES_ASKED = 8
"""The upper bound of `--moves`."""
BY_NAMESPACE, BY_WORKLOAD = "namespace", "workload"
"""The values of `--by`."""
WAIT = 300
"""Default seconds until a budget allows an eviction, and until a replacement pod runs."""

_EXPLAIN_EPILOG = """\
pods:   web-0, team/web-0 (pod web-0 of namespace team), pod/web-0
        deploy/web, and rs/, sts/, ds/, job/: the pods of a workload, pending ones first
exit codes: 0 explained, 1 an error, 2 wrong usage (one line on stderr), 130 ended by Ctrl-C.
docs/explain.md tells what each line means.
"""
_WHATIF_EPILOG = """\
pods:   8GiB            how many of 8 GiB fit
        8GiB x 3        whether three do
        8GiB on 2 x 3   the same, with 8 GiB on each of two devices
        8GiB + 30% x 3  three with 30 % of the compute of their device, too; 100%: a device alone
        FILE            manifests of any objects with pod templates, with their claims and claim
                        templates; or a table of pods, as of `gpushare simulate`
group:  --gang '8GiB x 3', or --gang FILE: all of these pods at once, or none
nodes:  --without gpu-a --add 3:8x80GiB, or --add 3:gpu-a for three like that one
need:   --need          the fewest nodes so that the pods that wait fit, and those of --pods
        --more 20%      and so much more of what runs
        --shape 8x80GiB,cpu=96,memory=768Gi,model=A100, or --shape gpu-a: nodes that may come, the
                        preferred ones first (default: like those that are there)
        --overlay       prints them as Karpenter and cluster-autoscaler are told of them
exit codes: 0 all requested pods fit, 1 some do not, 2 wrong usage, or the cluster cannot be read
(one line on stderr), 130 ended by Ctrl-C.
docs/explain.md tells what counts and what does not.
"""
_DEFRAG_EPILOG = """\
for:    --for 40GiB          a place of 40 GiB on one device
        --for 2x40GiB        on each of two devices of one node
        --for 2x40GiB,cpu=8,memory=64Gi,cores=50,model=A100
        --for pod late       for a pod that waits; or pod NAMESPACE/NAME
exit codes: 0 there is a plan, or nothing has to move, or --apply has made the room; 1 no plan, or
--apply was refused or has stopped; 2 wrong usage, or the cluster cannot be read (one line on
stderr); 130 ended by Ctrl-C.
docs/defrag.md tells which pods may be moved, what a plan promises, and when --apply stops.
"""
_REPORT_EPILOG = """\
prices: --prices NVIDIA-A100=2.5 --prices '*T4*=0.4', of a GPU-hour; or a file of YAML with a line
        `NVIDIA-A100: 2.5` for each model
sizes:  --rightsize says of each container what it was given, the most that it used, what is enough
        with --margin in whole units, and what that frees now
exit codes: 0 shown, 1 Prometheus does not answer or lacks the metrics, 2 wrong usage (one line on
stderr), 130 ended by Ctrl-C.
docs/cost.md tells what is counted, and what the figures cannot know.
"""


def _add_cluster_flags(parser: Parser) -> None:
    """Add the flags that name a cluster and its settings."""
    add_unit(parser)
    text = "where ConfigMaps close devices (default: %(default)s)"
    parser.value("--extender-namespace", "NAME", text, NAMESPACE)
    add_connection(parser)


def _add_format(parser: Parser) -> None:
    text = "json|yaml: all of it"
    parser.value("-o --output", "FORMAT", text, None, choices=REPORT_FORMATS)


def explain_parser(prog: str) -> Parser:
    """Return the parser of `explain`."""
    text = "Say why a pod is pending and what would help, or why it is where it is."
    parser = make_parser(prog, text, _EXPLAIN_EPILOG)
    value = parser.value
    value("pod", "POD", "its name, NAMESPACE/NAME, or deploy/NAME: see below", None, nargs="?")
    value("-l --selector", "LABELS", "the pods with these labels")
    value("-n --namespace", "NAME", "of the pod (default: as kubectl)")
    _add_format(parser)
    text = "ask this extender for what its books say: http://HOST:PORT of its health listener, on"
    value("--extender", "URL", f"{text} loopback (kubectl port-forward)")
    text = "judge the place of a bound pod by this policy"
    value("--policy", "NAME", f"{text} (default: {DEFAULT_POLICY})")
    text = f"a managed resource, can be repeated (default: {ALIYUN.resource})"
    parser.values("--resource", "NAME", text)
    _add_cluster_flags(parser)
    return parser


def whatif_parser(prog: str) -> Parser:
    """Return the parser of `whatif`."""
    text = "Say whether pods would fit, now or with nodes gone or added. Changes nothing."
    parser = make_parser(prog, text, _WHATIF_EPILOG)
    value, values, switch = parser.value, parser.values, parser.switch
    values("--pods", "PODS", "see below; can be repeated")
    value("--priority", "N", "of pods in words (default: 0)", 0, type=int)
    values("--gang", "PODS", "a group: all at once, or none")
    values(
        "--tolerate",
        "KEY[=VALUE][:EFFECT]",
        "a taint that pods in words tolerate, or all, or none (default: taints of GPU nodes,"
        " and those that running GPU pods tolerate); can be repeated",
    )
    text = "count nodes with labels of GPU feature discovery alone as if they shared their GPUs"
    switch("--as-shared", text)
    switch("--need", "how many more nodes take all pods: see below")
    values("--shape", "SHAPE", "of nodes that may come")
    switch("--overlay", "with --need: the nodes, for autoscalers, as YAML")
    value("--more", "20%", "with --need: so much more of what runs")
    values("--without", "NODE", "a node that goes")
    values("--add", "N:SHAPE", "nodes that come")
    value("--snapshot", "FILE", "of `inspect -o json`, not a live cluster")
    value("--nodes", "FILE", "a table as of `gpushare simulate`, likewise")
    _add_format(parser)
    value("--policy", "NAME", "(default: %(default)s)", DEFAULT_POLICY)
    text = "words are of the first one, or of claims (gpushare.io); others only tell pods of two"
    values("--resource", "NAME", f"{text} (default: {ALIYUN.resource})")
    value("--claims", "DRIVER", "whose cards claims get (default: the only)")
    text = "http://HOST:PORT of its health listener; it holds places for pods that wait"
    value("--extender", "URL", text)
    _add_cluster_flags(parser)
    return parser


def defrag_parser(prog: str) -> Parser:
    """Return the parser of `defrag`."""
    parser = Parser(
        prog=prog,
        description="Say which few pods would have to move so that a pod fits, or move them.",
        epilog=_DEFRAG_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    value, switch = parser.value, parser.switch
    value("--for", "PLACE", "see below", None, dest="wanted", nargs="+", required=True)
    text = f"at most so many, up to {MOST_MOVES_ASKED} (default: %(default)s)"
    value("--moves", "N", text, MOVES, type=int)
    value("--priority", "N", "of the pod that waits (default: 0)", None, type=int)
    value("-n --namespace", "NAME", "of the pod (default: as kubectl)")
    switch("--apply", "carry the plan out: evict pods, one at a time")
    switch("--yes", "with --apply: do not ask first")
    text = "with --apply: for a budget, and for a moved pod to run (default: %(default)s)"
    value("--wait", "SECONDS", text, WAIT, type=int)
    _add_format(parser)
    value("--snapshot", "FILE", "of `inspect -o json`, not a live cluster")
    text = "with --snapshot: NAMESPACE/NAME of pods that may move, with * and ?; can be repeated"
    parser.values("--movable", "PODS", text)
    value("--policy", "NAME", "(default: %(default)s)", DEFAULT_POLICY)
    value("--resource", "NAME", "(default: %(default)s)", ALIYUN.resource)
    _add_cluster_flags(parser)
    return parser


def report_parser(prog: str) -> Parser:
    """Return the parser of `report`."""
    text = "Say who was promised how many GPU-hours, who used them, and their cost."
    parser = make_parser(prog, text, _REPORT_EPILOG)
    value, values = parser.value, parser.values
    value("--prometheus", "URL", "http://HOST:PORT of its HTTP API", None, required=True)
    value("--since", "TIME", "such as 12h, 7d (default: %(default)s)", "7d")
    value("-n --namespace", "NAME", "this namespace alone")
    text = "namespace|workload: what a line is for (default: %(default)s)"
    value("--by", None, text, BY_NAMESPACE, choices=(BY_NAMESPACE, BY_WORKLOAD))
    values("--prices", "PRICE", "see below; can be repeated")
    text = "series with this label alone, as cluster=prod; can be repeated"
    values("--match", "LABEL=VALUE", text)
    parser.switch("--rightsize", "what containers could ask for: see below")
    value("--margin", "20%", "above the most used (default: 20%%)", "20%")
    add_unit(parser, "GiB")
    value("--token-file", "FILE", "with a bearer token for Prometheus")
    _add_format(parser)
    return parser
