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


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name a cluster and its settings."""
    add = parser.add_argument
    add_unit(parser)
    add(
        "--extender-namespace",
        default=NAMESPACE,
        metavar="NAME",
        help="where ConfigMaps close devices (default: %(default)s)",
    )
    add_connection(parser)


def explain_parser(prog: str) -> Parser:
    """Return the parser of `explain`."""
    text = "Say why a pod is pending and what would help, or why it is where it is."
    parser = make_parser(prog, text, _EXPLAIN_EPILOG)
    add = parser.add_argument
    add("pod", nargs="?", metavar="POD", help="its name, NAMESPACE/NAME, or deploy/NAME: see below")
    add("-l", "--selector", default="", metavar="LABELS", help="the pods with these labels")
    add("-n", "--namespace", default="", metavar="NAME", help="of the pod (default: as kubectl)")
    add("-o", "--output", metavar="FORMAT", choices=REPORT_FORMATS, help="json|yaml: all of it")
    add(
        "--extender",
        default="",
        metavar="URL",
        help="ask this extender for what its books say: http://HOST:PORT of its health listener, on"
        " loopback (kubectl port-forward)",
    )
    add(
        "--policy",
        default="",
        metavar="NAME",
        help=f"judge the place of a bound pod by this policy (default: {DEFAULT_POLICY})",
    )
    add(
        "--resource",
        action="append",
        metavar="NAME",
        help=f"a managed resource, can be repeated (default: {ALIYUN.resource})",
    )
    add_cluster_flags(parser)
    return parser


def whatif_parser(prog: str) -> Parser:
    """Return the parser of `whatif`."""
    parser = make_parser(
        prog,
        "Say whether pods would fit, now or with nodes gone or added. Changes nothing.",
        _WHATIF_EPILOG,
    )
    add = parser.add_argument
    add("--pods", action="append", default=[], metavar="PODS", help="see below; can be repeated")
    add("--priority", type=int, default=0, metavar="N", help="of pods in words (default: 0)")
    add("--gang", action="append", default=[], metavar="PODS", help="a group: all at once, or none")
    add(
        "--tolerate",
        action="append",
        default=[],
        metavar="KEY[=VALUE][:EFFECT]",
        help="a taint that pods in words tolerate, or all, or none (default: taints of GPU nodes,"
        " and those that running GPU pods tolerate); can be repeated",
    )
    add(
        "--as-shared",
        action="store_true",
        help="count nodes with labels of GPU feature discovery alone as if they shared their GPUs",
    )
    add("--need", action="store_true", help="how many more nodes take all pods: see below")
    add("--shape", action="append", default=[], metavar="SHAPE", help="of nodes that may come")
    add("--overlay", action="store_true", help="with --need: the nodes, for autoscalers, as YAML")
    add("--more", default="", metavar="20%", help="with --need: so much more of what runs")
    add("--without", action="append", default=[], metavar="NODE", help="a node that goes")
    add("--add", action="append", default=[], metavar="N:SHAPE", help="nodes that come")
    add("--snapshot", default="", metavar="FILE", help="of `inspect -o json`, not a live cluster")
    add("--nodes", default="", metavar="FILE", help="a table as of `gpushare simulate`, likewise")
    add("-o", "--output", metavar="FORMAT", choices=REPORT_FORMATS, help="json|yaml: all of it")
    add(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help="(default: %(default)s)",
    )
    add(
        "--resource",
        action="append",
        metavar="NAME",
        help="words are of the first one, or of claims (gpushare.io); others only tell pods of two"
        f" (default: {ALIYUN.resource})",
    )
    add("--claims", default="", metavar="DRIVER", help="whose cards claims get (default: the only)")
    add(
        "--extender",
        default="",
        metavar="URL",
        help="http://HOST:PORT of its health listener; it holds places for pods that wait",
    )
    add_cluster_flags(parser)
    return parser


def defrag_parser(prog: str) -> Parser:
    """Return the parser of `defrag`."""
    parser = Parser(
        prog=prog,
        description="Say which few pods would have to move so that a pod fits, or move them.",
        epilog=_DEFRAG_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--for", dest="wanted", nargs="+", required=True, metavar="PLACE", help="see below")
    add(
        "--moves",
        type=int,
        default=MOVES,
        metavar="N",
        help=f"at most so many, up to {MOST_MOVES_ASKED} (default: %(default)s)",
    )
    add("--priority", type=int, metavar="N", help="of the pod that waits (default: 0)")
    add("-n", "--namespace", default="", metavar="NAME", help="of the pod (default: as kubectl)")
    add("--apply", action="store_true", help="carry the plan out: evict pods, one at a time")
    add("--yes", action="store_true", help="with --apply: do not ask first")
    add(
        "--wait",
        type=int,
        default=WAIT,
        metavar="SECONDS",
        help="with --apply: for a budget, and for a moved pod to run (default: %(default)s)",
    )
    add("-o", "--output", metavar="FORMAT", choices=REPORT_FORMATS, help="json|yaml: all of it")
    add("--snapshot", default="", metavar="FILE", help="of `inspect -o json`, not a live cluster")
    add(
        "--movable",
        action="append",
        default=[],
        metavar="PODS",
        help="with --snapshot: NAMESPACE/NAME of pods that may move, with * and ?; can be repeated",
    )
    add("--policy", default=DEFAULT_POLICY, metavar="NAME", help="(default: %(default)s)")
    add("--resource", default=ALIYUN.resource, metavar="NAME", help="(default: %(default)s)")
    add_cluster_flags(parser)
    return parser


def report_parser(prog: str) -> Parser:
    """Return the parser of `report`."""
    parser = make_parser(
        prog,
        "Say who was promised how many GPU-hours, who used them, and their cost.",
        _REPORT_EPILOG,
    )
    add = parser.add_argument
    add("--prometheus", required=True, metavar="URL", help="http://HOST:PORT of its HTTP API")
    add("--since", default="7d", metavar="TIME", help="such as 12h, 7d (default: %(default)s)")
    add("-n", "--namespace", default="", metavar="NAME", help="this namespace alone")
    add(
        "--by",
        default=BY_NAMESPACE,
        choices=(BY_NAMESPACE, BY_WORKLOAD),
        help="namespace|workload: what a line is for (default: %(default)s)",
    )
    add("--prices", action="append", default=[], metavar="PRICE", help="see below; can be repeated")
    add(
        "--match",
        action="append",
        default=[],
        metavar="LABEL=VALUE",
        help="series with this label alone, as cluster=prod; can be repeated",
    )
    add("--rightsize", action="store_true", help="what containers could ask for: see below")
    add("--margin", default="20%", metavar="20%", help="above the most used (default: 20%%)")
    add_unit(parser, "GiB")
    add("--token-file", default="", metavar="FILE", help="with a bearer token for Prometheus")
    add("-o", "--output", metavar="FORMAT", choices=REPORT_FORMATS, help="json|yaml: all of it")
    return parser
