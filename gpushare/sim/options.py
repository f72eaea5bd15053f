"""The command line of `gpushare simulate` as options.

Defines the flags, values and help, and checks combinations; opens no file.

Tested in `tests/unit/sim/test_main_options.py`.
"""

import argparse
import math
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from gpushare.commandline import Parser, add_connection, add_unit
from gpushare.errors import SettingsError
from gpushare.sim.parameters import KNOWN, LEARNED, SERVICES, TRAINING, Defrag, Parameters

FORMATS = ("table", "json", "yaml", "csv")
POLICIES = "device-bestfit,fgd,shadow-price"
SMALL = 200
"""Up to this number of nodes runs are short, and more seeds are run by default."""

_MAX_SEEDS = 1000
_MAX_UNITS = 1_000_000
_MAX_MOVES = 8
_MAX_NEIGHBOURS = 100
_MAX_DEPARTURES = 100_000

_OF_SOME = ("warmup", "life", "defrag", "interference", "wait", "reserve_after", "pool")

_EPILOG = """\
exit codes: 0 done, 1 a run or the cluster failed, 2 wrong usage or input, 130 ended by Ctrl-C (what
is finished is printed and written). docs/placement.md tells what the experiments and policies are.
"""


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of a command line, with `parameters`: those of the experiment.

    A wrong command line ends the process with 2. Raises SettingsError for options that contradict
    each other.
    """
    values = simulate_parser("gpushare simulate").parse_args(argv)
    for is_wrong, text in (
        (values.from_cluster and values.nodes, "--from-cluster has nodes: leave out --nodes"),
        (values.warmup >= values.life, "--warmup must be less than --life"),
        (values.defrag and values.interference, "--defrag and --interference exclude each other"),
        (values.defrag and not values.wait, "--defrag is for pods that wait: add --wait"),
        (values.reserve_after and not values.wait, "--reserve-after is for --wait: add --wait"),
        (values.reserve_after and values.defrag, "--defrag and --reserve-after exclude each other"),
        (
            values.pool and (values.reserve_after or values.defrag),
            "--pool excludes --defrag and --reserve-after",
        ),
    ):
        if is_wrong:
            raise SettingsError(text)
    names = {field.name for field in fields(Parameters)}
    parameters = {name: value for name, value in vars(values).items() if name in names}
    values.parameters = Parameters(**parameters, picture=values.plot is not None)
    return values


def simulate_parser(prog: str) -> Parser:
    """Return the parser of the command line."""
    whole = Parser(
        prog=prog,
        description="Try placement policies on a cluster: how much GPU gets allocated, and what is"
        " turned away.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Of options that some experiments lack.
    defaults = Parameters()
    whole.set_defaults(**{name: getattr(defaults, name) for name in _OF_SOME})
    verbs = whole.add_subparsers(dest="experiment", required=True, metavar="EXPERIMENT")
    for name, help_text in (
        ("inflation", "pods arrive until the cluster overflows; none leaves"),
        ("churn", "pods come and go; what fits nowhere is lost, or waits"),
        ("replay", "pods come and go at the times of the trace"),
    ):
        verb = verbs.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.")
        _add_input(verb)
        if name == "inflation":
            verb.add_argument(
                "--load",
                type=partial(number, 0, 1.3),
                default=1.0,
                help="tell also what is allocated when this much has been asked for, in parts of"
                " the cluster's GPU; pods come until 1.3 (default: %(default)s)",
            )
        elif name == "churn":
            _churn(verb)
        else:
            verb.add_argument(
                "--speed",
                type=partial(number, 0, 10_000),
                default=1.0,
                help="how many times as fast the pods come; they stay as long"
                " (default: %(default)s)",
            )
            _add_wait(verb)
        verb.add_argument(
            "--workload",
            choices=(KNOWN, LEARNED),
            default=LEARNED,
            help="the policy learns from the pods that have come, as the extender does, or knows"
            " all pods of the file (default: %(default)s)",
        )
        _add_common(verb)
    return whole


def _churn(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    add(
        "--load",
        type=partial(number, 0, 10),
        default=1.0,
        help="GPU asked for at a time were nothing refused, in parts of the cluster's"
        " (default: %(default)s)",
    )
    add(
        "--life",
        type=partial(number, 0, 1000),
        default=6.0,
        help="mean lifetimes (default: %(default)s)",
    )
    add(
        "--warmup",
        type=partial(number, -1e-9, 1000),
        default=2.0,
        help="mean lifetimes that are not measured (default: %(default)s)",
    )
    _add_wait(verb)
    add(
        "--defrag",
        type=moves,
        metavar="k=3,every=20",
        help="with --wait: after every 20th departure move at most 3 pods for the oldest that wait;"
        " each run is compared with one without moves",
    )


def _add_wait(verb: argparse.ArgumentParser) -> None:
    text = "what fits nowhere waits, first come, first tried, instead of being lost"
    verb.add_argument("--wait", action="store_true", help=text)
    verb.add_argument(
        "--reserve-after",
        type=partial(number, 0, 1e9),
        default=0.0,
        metavar="TIME",
        help="with --wait: as --reserve-after of `gpushare serve`, in mean lifetimes, in a replay"
        " in seconds (default: never)",
    )
    verb.add_argument(
        "--pool",
        action="store_true",
        help="nodes join at once when a pod fits on no other one, and leave when they are empty",
    )
    verb.add_argument(
        "--interference",
        choices=(TRAINING, SERVICES),
        default="",
        help="pods on one device slow each other down, as measured; training then takes longer,"
        " services run as long (default: neither)",
    )


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
    add(
        "--from-cluster",
        action="store_true",
        help="nodes and pods of a live cluster; with --pods its nodes alone",
    )
    add("--resource", default="aliyun.com/gpu-mem", metavar="NAME", help="(default: %(default)s)")
    add_unit(verb)
    add("--plot", type=Path, metavar="DIR", help="draw pictures (needs the extra `plots`)")
    add_connection(verb)


def _add_common(verb: argparse.ArgumentParser) -> None:
    add = verb.add_argument
    # The cores that this process may use, as far as the system tells.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    add(
        "--policy",
        type=words,
        default=words(POLICIES),
        metavar="NAME[,NAME...]",
        help=f"the first one is the base of the comparison (default: {POLICIES})",
    )
    add(
        "--seeds",
        type=seeds,
        default=(),
        metavar="42-51",
        help=f"a run for each (default: 42-51; 42-43 for more than {SMALL} nodes)",
    )
    add(
        "--neighbours",
        type=_neighbours,
        default=0,
        metavar="N",
        help="as --neighbours of `gpushare serve`: other pods that the device of a pod has at most,"
        " while there is such a device with room (default: any number)",
    )
    add("--json", type=Path, metavar="OUT", help="write all measures of each run")
    add("--csv", type=Path, metavar="OUT", help="write a line for each run")
    add("-o", "--output", choices=FORMATS, default="table", help="(default: %(default)s)")
    add(
        "--jobs",
        type=_count,
        default=cores,
        metavar="N",
        help="runs at a time (default: one for each core)",
    )


def seeds(text: str) -> tuple[int, ...]:
    """Return the numbers of a text such as 42-51 or 42,43,50-52, each once."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip(), re.ASCII)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not like 42-51 or 42,43")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= _MAX_SEEDS:
            raise argparse.ArgumentTypeError(f"{part[:40]!r} is not 1 to {_MAX_SEEDS} seeds")
        numbers.update(dict.fromkeys(range(first, last + 1)))
    if len(numbers) > _MAX_SEEDS:
        raise argparse.ArgumentTypeError(f"more than {_MAX_SEEDS} seeds")
    return tuple(numbers)


def words(text: str) -> tuple[str, ...]:
    """Return the parts of a list with commas, each once."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has an empty name in it")
    return parts


def device_units(text: str) -> int:
    """Return the units of a device in a text such as `units:16`; 0 for `milli`."""
    match = re.fullmatch(r"units:([0-9]{1,9})", text, re.ASCII)
    if text != "milli" and (match is None or not 1 <= int(match[1]) <= _MAX_UNITS):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither milli nor like units:16")
    return int(match[1]) if match else 0


def moves(text: str) -> Defrag:
    """Return the value of a text such as k=3,every=20; missing parts have the defaults."""
    values: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(k|every)=([0-9]{1,6})", part.strip(), re.ASCII)
        limit = _MAX_MOVES if match and match[1] == "k" else _MAX_DEPARTURES
        if match is None or match[1] in values or not 1 <= int(match[2]) <= limit:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not like k=3,every=20, with k up to {_MAX_MOVES}"
            )
        values[match[1]] = int(match[2])
    return Defrag(**values)


def number(above: float, limit: float, text: str) -> float:
    """Return the number of a text, above `above` and up to `limit`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not above < value <= limit:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no number above {above:g} and up to {limit:g}"
        )
    return value


def _neighbours(text: str) -> int:
    """Return the limit of neighbours of a text."""
    if not text.isascii() or not text.isdigit() or int(text) > _MAX_NEIGHBOURS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number from 0 to {_MAX_NEIGHBOURS}")
    return int(text)


def _count(text: str) -> int:
    value = number(0, 1024, text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number")
    return int(value)
