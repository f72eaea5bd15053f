"""The command line of `gpushare simulate` as options.

Knows which flags go together; opens no file.

Tested in `tests/unit/sim/test_main_options.py`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.sim import experiments
from gpushare.sim.flags import parser
from gpushare.sim.learner import LEARNED
from gpushare.sim.lifetimes import TRACE
from gpushare.sim.tables import Table, chosen


@dataclass(frozen=True)
class ClusterOptions:
    """A live cluster, with its resource and its unit."""

    kubeconfig: str
    context: str
    resource: str
    unit: str


@dataclass(frozen=True)
class Options:
    """The options of one command.

    nodes, pods: files, or the name of a shipped trace, "" for the shipped default. cluster: a live
    cluster to list instead; only its nodes if `pods` is given. seeds: () for as many as the size of
    the input allows. units: of a device, to which sizes are rounded; 0 leaves them. tables: what is
    run for a document; they have their own experiments, policies and seeds. () for one experiment.
    """

    experiment: str
    nodes: str
    pods: str
    cluster: ClusterOptions | None
    policies: tuple[str, ...]
    seeds: tuple[int, ...]
    units: int
    parameters: experiments.Options
    tables: tuple[Table, ...]
    document: Path | None
    json: Path | None
    csv: Path | None
    plots: Path | None
    output: str
    jobs: int


def read_options(words: Sequence[str]) -> Options:
    """Return the options of a command line. A wrong one ends the process with 2.

    Raises SettingsError if options do not go together.
    """
    given = parser().parse_args(words)
    if given.from_cluster and given.nodes:
        raise SettingsError("--from-cluster takes the nodes of a cluster: leave out --nodes")
    if given.experiment == "churn" and given.warmup >= given.life:
        raise SettingsError("--warmup must be less than --life")
    if given.experiment == "churn" and given.lifetimes == TRACE and given.workload == LEARNED:
        raise SettingsError(
            "--lifetimes trace begins with pods that are there, which no policy has seen come:"
            " add --workload known"
        )
    if given.experiment == "churn" and given.defrag and not given.wait:
        raise SettingsError("--defrag moves pods for those that wait: add --wait")
    tables = chosen(given.tables, given.files, given.policy, given.seeds)
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
        tables=tables,
        document=given.write,
        json=given.json,
        csv=given.csv,
        plots=given.plot,
        output=given.output,
        jobs=given.jobs,
    )


def _parameters(given: argparse.Namespace) -> experiments.Options:
    """Return the options of the experiment among the flags."""
    names = {field.name for field in fields(experiments.Options)}
    told = {name: value for name, value in vars(given).items() if name in names}
    return replace(experiments.Options(), picture=given.plot is not None, **told)
