"""`gpushare simulate`: the composition root. Reads traces, has the runs made, prints and writes.

Whatever ends it, what is finished is told. Nodes and pods of a live cluster are listed by whoever
calls it and reach it as rows, like those of a file.
"""

import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import yaml
from tqdm import tqdm

from gpushare.core.policy import policy_names
from gpushare.errors import GpuShareError, SettingsError, WireError
from gpushare.sim import experiments, paper
from gpushare.sim.flags import SMALL
from gpushare.sim.inputs import Inputs, Listing, read_inputs, read_shipped
from gpushare.sim.lifetimes import TRACE, lifetimes_of
from gpushare.sim.options import Options, read_options
from gpushare.sim.report import (
    Measure,
    Record,
    aligned,
    as_csv,
    as_table,
    document,
    measures_of,
)
from gpushare.sim.runner import run_all
from gpushare.sim.tables import Table, renew
from gpushare.sim.verdict import Scale, choices_told, headline, legend, verdicts

_EXPERIMENTS: Mapping[str, Callable[..., Record]] = {
    "inflation": experiments.inflation,
    "churn": experiments.churn,
    "replay": experiments.replay,
}


_SEEDS = tuple(range(42, 52))
"""Of the runs, unless others are named; of a large cluster the first two."""

_MOST_PODS = 5_000_000
"""Of a run: about an hour of the quickest policy."""

_Done = tuple[tuple[int, int, int], Record]
"""A record and where it stands among all: by line of a table, policy and seed."""


@dataclass(frozen=True)
class Job:
    """One run. told: what its record says besides what was measured; place: see `_Done`."""

    experiment: str
    inputs: Inputs
    policy: str
    seed: int
    parameters: experiments.Options
    told: Mapping[str, object]
    place: tuple[int, int, int]


def main(argv: Sequence[str], listing: Listing | None = None) -> int:
    """The exit code: 0 done, 1 something failed, 2 bad input, 130 interrupted."""
    try:
        options = read_options(argv)
        jobs = _jobs(options, listing)
    except (SettingsError, WireError) as error:
        return _failed(error, 2)
    except GpuShareError as error:
        return _failed(error, 1)
    for note in jobs[0].inputs.notes:
        print(f"Warning: {note}", file=sys.stderr)
    finished: list[_Done] = []
    code = _run_all(jobs, options.jobs, finished)
    # They came as they were done; told are the policies in their order, the seeds of each together.
    finished.sort(key=lambda done: done[0])
    for tell in _tellings(options, jobs, [record for _, record in finished]):
        try:
            tell()
        except BrokenPipeError:
            raise
        except (OSError, SettingsError) as error:
            code = _failed(error, 1)
    return code


def run(job: Job) -> _Done:
    """What one run measures, and on which pods."""
    inputs, procedure = job.inputs, _EXPERIMENTS[job.experiment]
    found = procedure(inputs.nodes, inputs.pods, job.policy, job.seed, job.parameters)
    return job.place, {**job.told, **found}


def _failed(error: Exception, code: int) -> int:
    print(f"gpushare simulate: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _jobs(options: Options, listing: Listing | None) -> list[Job]:
    """All runs, those of a seed together, so that what is finished can be compared at any time."""
    _check_places(options)
    if options.plots is not None:
        _plots()
    if options.document is not None:
        marks = [view for table in options.tables for view in table.views]
        _renewed(options.document, dict.fromkeys(marks, ""))
    there = (*policy_names(), experiments.RANDOM)
    for name in options.policies:
        if name not in there:
            known = ", ".join(there)
            raise SettingsError(f"no policy is called {name[:40]!r}; there are: {known}")
    if options.tables:
        return list(_of_tables(options.tables))
    inputs = _inputs(options, listing)
    seeds = options.seeds or (_SEEDS if len(inputs.nodes) <= SMALL else _SEEDS[:2])
    return [
        Job(
            options.experiment,
            inputs,
            policy,
            seed,
            options.parameters,
            {"file": inputs.name},
            (0, place, seed),
        )
        for seed in seeds
        for place, policy in enumerate(options.policies)
    ]


def _check_places(options: Options) -> None:
    """Raises SettingsError where what comes out could not be written: before hours of runs."""
    for path in (options.json, options.csv, options.plots):
        if path is not None and not path.absolute().parent.is_dir():
            raise SettingsError(f"{path}: there is no directory to write it to")
    for path in (options.json, options.csv):
        if path is not None and path.is_dir():
            raise SettingsError(f"{path}: is a directory, and no file to write to")
    if options.plots is not None and options.plots.exists() and not options.plots.is_dir():
        raise SettingsError(f"{options.plots}: is no directory to write pictures to")


def _of_tables(tables: Sequence[Table]) -> Iterator[Job]:
    lines = [(table, line) for table in tables for line in table.lines]
    read = cache(read_shipped)  # many lines are of one list
    for number, (table, line) in enumerate(lines):
        inputs = read(line.file, line.units, line.parameters.lifetimes)
        told = {"table": table.name, **line.told}
        for seed in table.seeds:
            for place, (policy, workload) in enumerate(table.variants):
                parameters = replace(line.parameters, workload=workload)
                where = (number, place, seed)
                yield Job(line.experiment, inputs, policy, seed, parameters, told, where)


def _inputs(options: Options, listing: Listing | None) -> Inputs:
    inputs = read_inputs(options, listing)
    if options.experiment == "replay":
        _check_times(inputs)
    _check_length(options, inputs)
    return inputs


def _check_times(inputs: Inputs) -> None:
    """Raises SettingsError where there is no time in which to replay pods."""
    times = {pod.created for pod in inputs.pods if pod.created is not None}
    if not times:
        raise SettingsError(f"{inputs.name}: replay needs the column created or creation_time")
    if len(times) == 1:
        raise SettingsError(f"{inputs.name}: all pods came at one moment, so none can be replayed")


def _there_at_first(options: Options, inputs: Inputs) -> float:
    """How many pods run when churn begins, in those that come in a unit of time."""
    if options.parameters.lifetimes != TRACE:
        return 0.0
    try:
        capacity = max(node.capacity for node in inputs.nodes if node.devices)
        return float(lifetimes_of(inputs.pods, capacity).means.mean())
    except ValueError as error:
        raise SettingsError(f"{inputs.name}: --lifetimes trace: {error}") from error


def _check_length(options: Options, inputs: Inputs) -> None:
    """Raises SettingsError where so many pods would come that no run would end."""
    given = options.parameters
    lasts = given.life + _there_at_first(options, inputs)
    spans = {"inflation": 1.3, "churn": given.load * lasts}
    capacity = inputs.units
    asked = sum(pod.devices * pod.units for pod in inputs.pods) / len(inputs.pods)
    pods = spans.get(options.experiment, 0.0) * capacity / asked
    if pods > _MOST_PODS:
        raise SettingsError(
            f"{inputs.name}: {pods:.2g} pods would come in a run, more than {_MOST_PODS:.2g};"
            " they ask for too little, or --load and --life are too large"
        )


def _run_all(jobs: Sequence[Job], processes: int, finished: list[_Done]) -> int:
    """The exit code; what is finished stands in the list whatever that is."""
    try:
        with (
            _ended_by_signal(),
            closing(run_all(run, jobs, processes)) as results,
            # disable=None: of the bar nothing is seen unless stderr is a terminal.
            tqdm(total=len(jobs), unit="run", disable=None, leave=False) as bar,
        ):
            for done in results:
                finished.append(done)
                bar.update()
    except KeyboardInterrupt:
        print(f"interrupted: {len(finished)} of {len(jobs)} runs are finished", file=sys.stderr)
        return 130
    except GpuShareError as error:
        return _failed(error, 1)
    except Exception:  # another package's policy may raise whatever it likes
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Within, SIGTERM is answered as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _tellings(
    options: Options, jobs: Sequence[Job], records: Sequence[Record]
) -> Iterator[Callable[[], object]]:
    """What writes and prints what is finished, each thing by itself, so that one that fails keeps
    back no other. They raise OSError, and SettingsError of a document; the last one prints.
    """
    inputs = jobs[0].inputs
    measures = measures_of(records, options.parameters.load)
    about = {
        "experiment": options.experiment,
        "parameters": asdict(options.parameters),
        "nodes": len(inputs.nodes),
        "devices": inputs.devices,
        "units": inputs.units,
        "fitNowhere": inputs.nowhere,
        "complete": len(records) == len(jobs),
    }
    whole = document(records, measures, about)
    forms: Mapping[str, Callable[[], str]] = {
        "json": lambda: json.dumps(whole, indent=1) + "\n",
        "yaml": lambda: yaml.safe_dump(json.loads(json.dumps(whole)), sort_keys=False),
        "csv": lambda: as_csv(records, measures),
        "table": lambda: _table(options, inputs, records, measures),
        "paper": lambda: "\n".join(_printed(options.tables, records)),
    }
    for path, form in ((options.json, "json"), (options.csv, "csv")):
        if path is not None:
            yield partial(path.write_text, forms[form](), encoding="utf-8")
    if options.document is not None:
        yield partial(_renew, options.document, options.tables, records)
    if options.plots is not None:
        yield partial(_plots(), records, options.plots)
    of_tables = options.output == "table" and options.tables
    text = forms["paper" if of_tables else options.output]()
    yield partial(print, text, end="", flush=True)


def _renew(path: Path, tables: Sequence[Table], records: Sequence[Record]) -> None:
    """Put the tables into the document. Raises OSError, SettingsError."""
    made = {}
    for table in tables:
        made.update(table.markdown(records))
    path.write_text(_renewed(path, made), encoding="utf-8")


def _renewed(path: Path, made: Mapping[str, str]) -> str:
    """The document with these tables. Raises SettingsError where it has no place for one."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    return renew(text, made)


def _table(
    options: Options, inputs: Inputs, records: Sequence[Record], measures: Sequence[Measure]
) -> str:
    """What is simulated, the table, what its columns mean, and what it says of the policies."""
    lines = [
        f"{options.experiment}: {inputs.name}, {len(inputs.pods)} pods on {len(inputs.nodes)} nodes"
        f" with {inputs.devices} devices"
    ]
    if inputs.nowhere:
        lines.append(
            f"{inputs.nowhere} more pods fit no node even while it is empty, and are left out"
        )
    scale = Scale(inputs.units, inputs.devices)
    return "\n".join(
        [
            *lines,
            as_table(records, measures),
            *legend(measures, scale),
            "",
            *choices_told(records),
            *verdicts(records, headline(measures, options.parameters.load)),
            "",
        ]
    )


def _printed(tables: Iterable[Table], records: Sequence[Record]) -> Iterator[str]:
    """Each table as a terminal shows it; the published figures have a form of their own."""
    for table in tables:
        own = [record for record in records if record["table"] == table.name]
        if table.name == "inflation":
            yield paper.printed(own)
        else:
            for view in table.views:
                yield aligned(table.rows(view, own))


def _plots() -> Callable[[Sequence[Record], Path], list[Path]]:
    """What draws. Raises SettingsError where matplotlib is missing."""
    from gpushare.sim.plots import draw  # noqa: PLC0415 -- matplotlib, which only pictures need

    return draw
