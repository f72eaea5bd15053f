"""`gpushare simulate`: the composition root: reads traces, starts the runs, prints and writes.

Errors of the input are reported before the first run. Finished runs are reported in any case. The
caller lists the nodes and pods of a live cluster and passes the rows, like the rows of a file.
"""

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import yaml
from tqdm import tqdm

from gpushare.core.policy import policy_names
from gpushare.errors import GpuShareError, SettingsError, WireError
from gpushare.sim import experiments, report
from gpushare.sim.inputs import Inputs, Listing, read_inputs
from gpushare.sim.options import SMALL, Parameters, read_options
from gpushare.sim.report import Measure, Record, choice_sentences, headline, legend, verdicts
from gpushare.sim.runner import run_all
from gpushare.sim.scorers import SIMULATED

_SEEDS = tuple(range(42, 52))
"""The default seeds; for a large cluster only the first two."""

_MAX_PODS = 5_000_000
"""Upper bound of the pods of a run: about an hour of the quickest policy."""

_EXPERIMENTS: Mapping[str, Callable[..., Record]] = {
    "inflation": experiments.inflation,
    "churn": experiments.churn,
    "replay": experiments.replay,
}
_MAX_MODELS = 5
_Done = tuple[tuple[int, int], Record]
"""(place of the job, record)."""


@dataclass(frozen=True)
class Job:
    """One run."""

    experiment: str
    inputs: Inputs
    policy: str
    seed: int
    parameters: Parameters
    place: tuple[int, int]
    """The position of the record in the output: (number of the policy, seed)."""


def jobs_of(options: argparse.Namespace, listing: Listing | None) -> list[Job]:
    """Return all runs, sorted by seed, so that finished runs can be compared.

    listing: lists a live cluster. Raises SettingsError, WireError, and any error of `listing`.
    """
    policies = (*policy_names(), *SIMULATED)
    for name in options.policy:
        if name not in policies:
            names = ", ".join(policies)
            raise SettingsError(f"no policy is called {name[:40]!r}; there are: {names}")
    inputs = read_inputs(options, listing)
    if options.experiment == "replay":
        times = {pod.created for pod in inputs.pods if pod.created is not None}
        if not times:
            raise SettingsError(f"{inputs.name}: replay needs the column created or creation_time")
        if len(times) == 1:
            raise SettingsError(
                f"{inputs.name}: all pods came at one moment, so none can be replayed"
            )
    _check_length(options, inputs)
    seeds = options.seeds or (_SEEDS if len(inputs.nodes) <= SMALL else _SEEDS[:2])
    return [
        Job(
            experiment=options.experiment,
            inputs=inputs,
            policy=policy,
            seed=seed,
            parameters=options.parameters,
            place=(place, seed),
        )
        for seed in seeds
        for place, policy in enumerate(options.policy)
    ]


def _check_length(options: argparse.Namespace, inputs: Inputs) -> None:
    """Raise SettingsError if so many pods would come that a run would take too long."""
    parameters = options.parameters
    spans = {"inflation": 1.3, "churn": parameters.load * parameters.life}
    mean_units = sum(pod.devices * pod.units for pod in inputs.pods) / len(inputs.pods)
    pods = spans.get(options.experiment, 0.0) * inputs.units / mean_units
    if pods > _MAX_PODS:
        raise SettingsError(
            f"{inputs.name}: {pods:.2g} pods would come in a run, more than {_MAX_PODS:.2g};"
            " they ask for too little, or --load and --life are too large"
        )


def main(argv: Sequence[str], listing: Listing | None = None) -> int:
    """Simulate and return the exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        options = read_options(argv)
        _check_outputs(options)
        jobs = jobs_of(options, listing)
    except (SettingsError, WireError) as error:
        return _failed(error, 2)
    except GpuShareError as error:
        return _failed(error, 1)
    for note in jobs[0].inputs.notes:
        print(f"Warning: {note}", file=sys.stderr)
    finished: list[_Done] = []
    code = _run_all(jobs, options.jobs, finished)
    # Runs finish in any order; the output is sorted by policy and seed.
    finished.sort(key=lambda result: result[0])
    for write in _outputs(options, jobs, [record for _, record in finished]):
        try:
            write()
        except BrokenPipeError:
            raise
        except (OSError, SettingsError) as error:
            code = _failed(error, 1)
    return code


def run(job: Job) -> _Done:
    """Run one job and return the record."""
    inputs, procedure = job.inputs, _EXPERIMENTS[job.experiment]
    measures = procedure(inputs.nodes, inputs.pods, job.policy, job.seed, job.parameters)
    return job.place, {"file": job.inputs.name, **measures}


def _failed(error: Exception, code: int) -> int:
    print(f"gpushare simulate: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise SettingsError if the output could not be written: before hours of runs."""
    for path in (options.json, options.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise SettingsError(f"{path}: there is no directory to write it to")
    if options.json is not None and options.json.is_dir():
        raise SettingsError(f"{options.json}: is a directory, and no file to write to")
    if options.plot is not None and options.plot.exists() and not options.plot.is_dir():
        raise SettingsError(f"{options.plot}: is no directory to write pictures to")
    if options.plot is not None:
        _plots()


def _run_all(jobs: Sequence[Job], processes: int, finished: list[_Done]) -> int:
    """Run all jobs and return the exit code; finished runs are in the list in any case."""
    # A terminal sends SIGINT; SIGTERM ends the runs in the same way.
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with closing(run_all(run, jobs, processes)) as results:
            # disable=None: a bar is shown only if stderr is a terminal.
            for result in tqdm(results, "simulate", len(jobs), False, disable=None, unit="run"):
                finished.append(result)  # noqa: PERF402 -- for a later failure
    except KeyboardInterrupt:
        print(f"interrupted: {len(finished)} of {len(jobs)} runs are finished", file=sys.stderr)
        return 130
    except GpuShareError as error:
        return _failed(error, 1)
    except Exception:  # the policy of another package may raise anything
        traceback.print_exc()
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _outputs(
    options: argparse.Namespace, jobs: Sequence[Job], records: Sequence[Record]
) -> Iterator[Callable[[], object]]:
    """Yield functions that write and print finished runs; if one fails, the rest still run.

    The functions raise OSError; the last function prints.
    """
    inputs = jobs[0].inputs
    measures = report.measures_of(records, options.parameters.load)
    about = {
        "experiment": options.experiment,
        "parameters": asdict(options.parameters),
        "nodes": len(inputs.nodes),
        "devices": inputs.devices,
        "units": inputs.units,
        "fitNowhere": inputs.nowhere,
        "unknownModels": dict(inputs.unknown),
        "complete": len(records) == len(jobs),
    }
    whole = report.document(records, measures, about)
    forms: Mapping[str, Callable[[], str]] = {
        "json": lambda: json.dumps(whole, indent=1) + "\n",
        "yaml": lambda: yaml.safe_dump(json.loads(json.dumps(whole)), sort_keys=False),
        "table": lambda: _table(options, inputs, records, measures),
    }
    if options.json is not None:
        yield partial(options.json.write_text, forms["json"](), encoding="utf-8")
    if options.plot is not None:
        yield partial(_plots(), records, options.plot)
    yield partial(print, forms[options.output](), end="", flush=True)


def _table(
    options: argparse.Namespace,
    inputs: Inputs,
    records: Sequence[Record],
    measures: Sequence[Measure],
) -> str:
    """Return the output: input, table, legend, and verdicts on the policies."""
    lines = [
        f"{options.experiment}: {inputs.name}, {len(inputs.pods)} pods on {len(inputs.nodes)} nodes"
        f" with {inputs.devices} devices"
    ]
    if inputs.nowhere:
        text = f"{inputs.nowhere} more pods fit no node even while it is empty, and are left out"
        if unknown := inputs.unknown:
            models = [*sorted(unknown)[:_MAX_MODELS], *["..."] * (len(unknown) > _MAX_MODELS)]
            text += (
                f"; {sum(unknown.values())} of these accept only a model that no node has:"
                f" {', '.join(models)}"
            )
        lines.append(text)
    lines += [report.as_table(records, measures)]
    lines += [*legend(measures, inputs.units, inputs.devices), ""]
    lines += choice_sentences(records)
    lines += verdicts(records, headline(measures, options.parameters.load))
    return "\n".join([*lines, ""])


def _plots() -> Callable[[Sequence[Record], Path], list[Path]]:
    """Return the function that draws. Raises SettingsError if matplotlib is missing."""
    from gpushare.sim.plots import draw  # noqa: PLC0415 -- matplotlib, which only pictures need

    return draw
