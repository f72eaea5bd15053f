"""The command line of `gpushare simulate` as options, and the parameters of experiments.

Defines the flags, values and help, and checks combinations; opens no file. The help of the command
imports this module, so it imports little.

Tested in `tests/unit/sim/test_main_options.py`.
"""

import argparse
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from gpushare.commandline import Parser, add_connection, add_unit
from gpushare.errors import SettingsError

KNOWN, LEARNED = "known", "learned"
"""The pods that a policy is made for: all pods of the file, or the pods that have come so far."""

TRAINING, SERVICES = "training", "services"
"""The kinds of interference."""


@dataclass(frozen=True, slots=True)
class Defrag:
    """When and how many pods are moved."""

    k: int = 3
    """Upper bound of the moves for one waiting pod."""
    every: int = 20
    """Departures from one search for moves to the next."""

    def __str__(self) -> str:
        """Return the words of the command line."""
        return f"k={self.k},every={self.every}"


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of an experiment."""

    load: float = 1.0
    """GPU that would be held on average if no pod were refused, as a share of the capacity."""
    life: float = 6.0
    """Duration in mean lifetimes."""
    warmup: float = 2.0
    """Begin of the measurement in mean lifetimes."""
    wait: bool = False
    """Whether pods that fit nowhere wait, first come first served, instead of being lost."""
    speed: float = 1.0
    """Factor of the rate of arrivals in a replay, compared with the file."""
    workload: str = LEARNED
    """LEARNED: the policy learns from the pods that come, as in the extender. KNOWN: the policy is
    made for all pods of the file."""
    interference: str = ""
    """TRAINING: pods that share a device slow each other down, and stay longer. SERVICES: they are
    slowed down, and stay as long. "": pods do not slow each other down."""
    neighbours: int = 0
    """The limit of neighbours, as --neighbours of the extender; 0: none."""
    reserve_after: float = 0.0
    """The time that a pod waits before a node is reserved for it, in mean lifetimes, in a replay in
    seconds; 0: never."""
    pool: bool = False
    """Whether nodes join when a pod fits on no other one, and leave when they are empty."""
    picture: bool = False
    """Whether the record has the used units of each device at the end."""
    defrag: Defrag | None = None
    """How pods are moved for waiting pods; None: no moves."""


FORMATS = ("table", "json", "yaml")
POLICIES = "device-bestfit,fgd,shadow-price"
SMALL = 200
"""Up to this number of nodes runs are short, and more seeds are run by default."""

_MAX_SEEDS = 1000
_MAX_UNITS = 1_000_000
_MAX_MOVES = 8
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
            text = "tell also what is allocated when this much has been asked for, in parts of the"
            text = f"{text} cluster's GPU; pods come until 1.3"
            _add_number(verb, "--load", (0, 1.3), text, 1.0)
        elif name == "churn":
            _add_churn(verb)
        else:
            text = "how many times as fast the pods come; they stay as long"
            _add_number(verb, "--speed", (0, 10_000), text, 1.0)
            _add_wait(verb)
        text = "the policy learns from the pods that have come, as the extender does, or knows all"
        text = f"{text} pods of the file (default: %(default)s)"
        verb.value("--workload", None, text, LEARNED, choices=(KNOWN, LEARNED))
        _add_common(verb)
    return whole


def _add_number(
    verb: Parser, flag: str, bounds: tuple[float, float], text: str, default: float
) -> None:
    kind = partial(number, *bounds)
    verb.value(flag, None, f"{text} (default: %(default)s)", default, type=kind)


def _add_churn(verb: Parser) -> None:
    text = "GPU asked for at a time were nothing refused, in parts of the cluster's"
    _add_number(verb, "--load", (0, 10), text, 1.0)
    _add_number(verb, "--life", (0, 1000), "mean lifetimes", 6.0)
    _add_number(verb, "--warmup", (-1e-9, 1000), "mean lifetimes that are not measured", 2.0)
    _add_wait(verb)
    text = "with --wait: after every 20th departure move at most 3 pods for the oldest that wait;"
    text += " each run is compared with one without moves"
    verb.value("--defrag", "k=3,every=20", text, None, type=moves)


def _add_wait(verb: Parser) -> None:
    text = "what fits nowhere waits, first come, first tried, instead of being lost"
    verb.switch("--wait", text)
    text = "with --wait: as --reserve-after of `gpushare serve`, in mean lifetimes, in a replay in"
    text += " seconds (default: never)"
    verb.value("--reserve-after", "TIME", text, 0.0, type=partial(number, 0, 1e9))
    text = "nodes join at once when a pod fits on no other one, and leave when they are empty"
    verb.switch("--pool", text)
    text = "pods on one device slow each other down, as measured; training then takes longer,"
    text += " services run as long (default: neither)"
    verb.value("--interference", None, text, "", choices=(TRAINING, SERVICES))


def _add_input(verb: Parser) -> None:
    value = verb.value
    value("--nodes", "FILE", "CSV or JSON (default: the trace openb)")
    text = "CSV or JSON, or a list of openb such as multigpu50 (default: its list `default`)"
    value("--pods", "FILE|NAME", text)
    text = "units:16 counts GPU in sixteenths of a device, rounded up (default: as given)"
    value("--devices", "milli|units:N", text, 0, type=device_units)
    text = "nodes and pods of a live cluster; with --pods its nodes alone"
    verb.switch("--from-cluster", text)
    value("--resource", "NAME", "(default: %(default)s)", "aliyun.com/gpu-mem")
    add_unit(verb)
    value("--plot", "DIR", "draw pictures (needs the extra `plots`)", None, type=Path)
    add_connection(verb)


def _add_common(verb: Parser) -> None:
    value = verb.value
    # The cores that this process may use, as far as the system tells.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    text = f"the first one is the base of the comparison (default: {POLICIES})"
    value("--policy", "NAME[,NAME...]", text, words(POLICIES), type=words)
    text = f"a run for each (default: 42-51; 42-43 for more than {SMALL} nodes)"
    value("--seeds", "42-51", text, (), type=seeds)
    text = "as --neighbours of `gpushare serve`: other pods that the device of a pod has at most,"
    text += " while there is such a device with room (default: any number)"
    value("--neighbours", "N", text, 0, type=partial(_whole, 0, 100))
    value("--json", "OUT", "write all measures of each run", None, type=Path)
    value("-o --output", None, "(default: %(default)s)", "table", choices=FORMATS)
    value(
        "--jobs",
        "N",
        "runs at a time (default: one for each core)",
        cores,
        type=partial(_whole, 1, 1024),
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


def _whole(least: int, most: int, text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no number from {least} to {most}")
    return int(text)
