"""The command line of `gpushare simulate`: words to options.

Knows flags and what goes together; opens no file.
"""

import argparse
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NoReturn

from gpushare.errors import SettingsError
from gpushare.sim import experiments

FORMATS = ("table", "json", "yaml", "csv")
POLICIES = "device-bestfit,fgd,shadow-price"
_MOST_SEEDS = 1000
_MOST_UNITS = 1_000_000

_EPILOG = """\
exit codes: 0 done, 1 a run or the cluster failed, 2 wrong usage or input, 130 ended by Ctrl-C (what
is finished is printed and written). docs/placement.md tells what the experiments and policies are.
"""


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster is meant, and in which resource and unit it counts."""

    kubeconfig: str
    context: str
    resource: str
    unit: str


@dataclass(frozen=True)
class Options:
    """What is asked for.

    nodes, pods: files, or the name of a shipped trace, "" for the shipped default. cluster: where
    they are asked of a live one. units: of a device, to which sizes are rounded; 0 leaves them.
    """

    experiment: str
    nodes: str
    pods: str
    cluster: ClusterOptions | None
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    units: int
    parameters: experiments.Options
    traces: tuple[str, ...]
    document: Path | None
    json: Path | None
    csv: Path | None
    plots: Path | None
    output: str
    jobs: int


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def read_options(words: Sequence[str]) -> Options:
    """The options of a command line. A wrong one ends the process with 2.

    Raises SettingsError where options do not go together.
    """
    given = _parser().parse_args(words)
    if given.from_cluster and (given.nodes or given.pods):
        raise SettingsError("--from-cluster takes nodes and pods of a cluster, not of files")
    if given.experiment == "churn" and given.warmup >= given.life:
        raise SettingsError("--warmup must be less than --life")
    live = ClusterOptions(given.kubeconfig, given.context, given.resource, given.unit)
    return Options(
        experiment=given.experiment,
        nodes=given.nodes,
        pods=given.pods,
        cluster=live if given.from_cluster else None,
        policies=given.policy,
        seeds=given.seeds,
        units=given.devices,
        parameters=_parameters(given),
        traces=given.files,
        document=given.write,
        json=given.json,
        csv=given.csv,
        plots=given.plot,
        output=given.output,
        jobs=given.jobs,
    )


def seeds(text: str) -> tuple[int, ...]:
    """42-51 or 42,43,50-52 as numbers, each once."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not like 42-51 or 42,43")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"{part[:40]!r} is not 1 to {_MOST_SEEDS} seeds")
        found.update(dict.fromkeys(range(first, last + 1)))
    if len(found) > _MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"more than {_MOST_SEEDS} seeds")
    return tuple(found)


def words(text: str) -> tuple[str, ...]:
    """A list with commas, each word once."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has an empty name in it")
    return found


def device_units(text: str) -> int:
    """How many units a device has by `units:16`; 0 for `milli`."""
    match = re.fullmatch(r"units:([0-9]{1,9})", text, re.ASCII)
    if text != "milli" and (match is None or not 1 <= int(match[1]) <= _MOST_UNITS):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither milli nor like units:16")
    return int(match[1]) if match else 0


def number(least: float, most: float) -> Callable[[str], float]:
    """Reads numbers within these bounds, the lower one excluded."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least < value <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is no number above {least:g} and up to {most:g}"
            )
        return value

    return read


def _count(text: str) -> int:
    value = number(0, 1024)(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number")
    return int(value)


def _parameters(given: argparse.Namespace) -> experiments.Options:
    """What an experiment may be told, of the flags that it has."""
    names = {field.name for field in fields(experiments.Options)}
    told = {name: value for name, value in vars(given).items() if name in names}
    return replace(experiments.Options(), picture=given.plot is not None, **told)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpushare simulate",
        description="Try placement policies on a cluster: how much GPU gets allocated, and what is"
        " turned away.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    for name, help_text, add in (
        ("inflation", "pods arrive until the cluster overflows; none leaves", _inflation),
        ("churn", "pods come and go; what fits nowhere is lost, or waits", _churn),
        ("replay", "pods come and go at the times of the trace", _replay),
    ):
        verb = verbs.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.")
        _add_input(verb)
        add(verb)
        _add_common(verb, POLICIES, "42-43")
        verb.set_defaults(files=(), write=None)
    paper = verbs.add_parser(
        "paper",
        help="the published policies and ours on the nine published traces, side by side",
        description="Run the published policies and ours on the nine traces of Weng et al. (USENIX"
        " ATC 2023) and set the figures beside the published ones.",
    )
    paper.add_argument(
        "--files", type=words, default=(), metavar="NAME[,NAME...]", help="(default: all nine)"
    )
    paper.add_argument(
        "--write", type=Path, metavar="FILE", help="renew the tables between the marks of this file"
    )
    live = dict.fromkeys(("kubeconfig", "context", "resource", "unit"), "")
    paper.set_defaults(nodes="", pods="", devices=0, from_cluster=False, plot=None, **live)
    _add_common(paper, "random,dotproduct,clustering,packing,bestfit,fgd,shadow-price", "42-51")
    return parser


def _inflation(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--load",
        type=number(0, 1.3),
        default=1.0,
        help="tell also what is allocated when this much has been asked for, in parts of the"
        " cluster's GPU; pods come until 1.3 (default: %(default)s)",
    )


def _churn(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add(
        "--load",
        type=number(0, 10),
        default=1.0,
        help="GPU asked for at a time were nothing refused, in parts of the cluster's"
        " (default: %(default)s)",
    )
    add("--life", type=number(0, 1000), default=6.0, help="mean lifetimes (default: %(default)s)")
    add(
        "--warmup",
        type=number(-1e-9, 1000),
        default=2.0,
        help="mean lifetimes that are not measured (default: %(default)s)",
    )
    _add_wait(verb)


def _replay(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--speed",
        type=number(0, 10_000),
        default=1.0,
        help="how many times as fast the pods come; they stay as long (default: %(default)s)",
    )
    _add_wait(verb)


def _add_wait(verb: argparse.ArgumentParser) -> None:
    what = "what fits nowhere waits, first come, first tried, instead of being lost"
    verb.add_argument("--wait", action="store_true", help=what)


def _add_input(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add("--nodes", default="", metavar="FILE", help="CSV or JSON (default: the trace openb)")
    add(
        "--pods",
        default="",
        metavar="FILE|NAME",
        help="CSV or JSON, or a list of openb such as multigpu50 (default: its list `default`)",
    )
    add(
        "--devices",
        type=device_units,
        default=0,
        metavar="milli|units:N",
        help="units:16 counts GPU in sixteenths of a device, rounded up (default: as given)",
    )
    add("--from-cluster", action="store_true", help="nodes and pods of a live cluster")
    add("--kubeconfig", default="", metavar="FILE", help="with --from-cluster (default: kubectl's)")
    add("--context", default="", metavar="NAME", help="context of the kubeconfig")
    add("--resource", default="aliyun.com/gpu-mem", metavar="NAME", help="(default: %(default)s)")
    add("--unit", default="GiB", help="memory unit of the cluster (default: %(default)s)")
    add("--plot", type=Path, metavar="DIR", help="draw pictures (needs the extra `plots`)")


def _add_common(verb: argparse.ArgumentParser, policies: str, some_seeds: str) -> None:
    add = verb.add_argument
    add(
        "--policy",
        type=words,
        default=words(policies),
        metavar="NAME[,NAME...]",
        help=f"the first is what others are compared with (default: {policies})",
    )
    add(
        "--seeds",
        type=seeds,
        default=seeds(some_seeds),
        metavar="42-51",
        help=f"a run for each (default: {some_seeds})",
    )
    add("--json", type=Path, metavar="OUT", help="write all measures of each run")
    add("--csv", type=Path, metavar="OUT", help="write a line for each run")
    add("-o", "--output", choices=FORMATS, default="table", help="(default: %(default)s)")
    add(
        "--jobs",
        type=_count,
        default=_cores(),
        metavar="N",
        help="runs at a time (default: one for each core)",
    )


def _cores() -> int:
    """Cores that this process may use, as far as the system tells."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
