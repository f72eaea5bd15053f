"""The runs that a command line asks for.

It reads files, and reports everything that is wrong before the first run; it runs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpushare.core.policy import policy_names
from gpushare.errors import SettingsError
from gpushare.sim import experiments
from gpushare.sim.inputs import Inputs, Listing, read_inputs, read_shipped
from gpushare.sim.lifetimes import TRACE, lifetimes_of
from gpushare.sim.options import SMALL, Options
from gpushare.sim.scorers import SIMULATED
from gpushare.sim.tables import Table

_SEEDS = tuple(range(42, 52))
"""The default seeds; for a large cluster only the first two."""

_MOST_PODS = 5_000_000
"""The most pods of a run: about an hour of the quickest policy."""


@dataclass(frozen=True)
class Job:
    """One run."""

    experiment: str
    inputs: Inputs
    policy: str
    seed: int
    parameters: experiments.Options
    labels: Mapping[str, object]
    """What its record contains besides the measures."""
    place: tuple[int, int, int]
    """The position of its record, by line of a table, policy and seed."""


def jobs_of(options: Options, listing: Listing | None) -> list[Job]:
    """Return all runs, those of a seed together, so that finished runs can be compared.

    listing: lists a live cluster. Raises SettingsError, WireError, and whatever `listing` raises.
    """
    policies = (*policy_names(), *SIMULATED)
    for name in options.policies:
        if name not in policies:
            known = ", ".join(policies)
            raise SettingsError(f"no policy is called {name[:40]!r}; there are: {known}")
    if options.tables:
        return list(_of_tables(options.tables))
    inputs = read_inputs(options, listing)
    if options.experiment == "replay":
        _check_times(inputs)
    _check_length(options, inputs)
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


def _of_tables(tables: Sequence[Table]) -> Iterator[Job]:
    lines = [(table, line) for table in tables for line in table.lines]
    read = cache(read_shipped)  # many lines are of one list
    for number, (table, line) in enumerate(lines):
        inputs = read(line.file, line.units, line.parameters.lifetimes)
        labels = {"table": table.name, **line.labels}
        for seed in table.seeds:
            for place, (policy, workload) in enumerate(table.variants):
                parameters = replace(line.parameters, workload=workload)
                where = (number, place, seed)
                yield Job(line.experiment, inputs, policy, seed, parameters, labels, where)


def _check_times(inputs: Inputs) -> None:
    """Raise SettingsError if the pods have no times for a replay."""
    times = {pod.created for pod in inputs.pods if pod.created is not None}
    if not times:
        raise SettingsError(f"{inputs.name}: replay needs the column created or creation_time")
    if len(times) == 1:
        raise SettingsError(f"{inputs.name}: all pods came at one moment, so none can be replayed")


def _check_length(options: Options, inputs: Inputs) -> None:
    """Raise SettingsError if so many pods would come that a run would take too long."""
    parameters = options.parameters
    lasts = parameters.life
    if parameters.lifetimes == TRACE:
        # As many more are there when churn begins as come in this time.
        try:
            capacity = max(node.capacity for node in inputs.nodes if node.devices)
            lasts += float(lifetimes_of(inputs.pods, capacity).means.mean())
        except ValueError as error:
            raise SettingsError(f"{inputs.name}: --lifetimes trace: {error}") from error
    spans = {"inflation": 1.3, "churn": parameters.load * lasts}
    asked = sum(pod.devices * pod.units for pod in inputs.pods) / len(inputs.pods)
    pods = spans.get(options.experiment, 0.0) * inputs.units / asked
    if pods > _MOST_PODS:
        raise SettingsError(
            f"{inputs.name}: {pods:.2g} pods would come in a run, more than {_MOST_PODS:.2g};"
            " they ask for too little, or --load and --life are too large"
        )
