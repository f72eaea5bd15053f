"""The figures of the simulation as tables, for docs/research/proof-figures.md."""

from collections import Counter
from statistics import median
from typing import Any

from tests.simulation.hunt import all_mutants
from tests.simulation.mutants.museum import Mutant


def figures(runs: list[dict[str, Any]]) -> str:
    """Return the sums over all runs of stories, and a table of the mutants by family."""
    fired_runs = [run for run in runs if run["fired"]]
    seeds = sum(run["after"] - run["first"] for run in fired_runs)
    violations = sum(len(run["violations"]) for run in fired_runs)
    fired: Counter[str] = Counter()
    for run in fired_runs:
        fired.update(run["fired"])
    last = fired_runs[-1]
    lines = [
        f"{len(fired_runs)} runs until {last['when'][:10]} (commit {last['commit']}):",
        f"{seeds:,} stories, {fired.total():,} faults of {len(fired)} kinds,"
        f" {violations} violations.",
    ]
    return "\n".join([*lines, "", *_mutants(runs)])


def last_found(runs: list[dict[str, Any]]) -> dict[str, int | str]:
    """The seed or the test that found each mutant the last time."""
    return {name: seed for run in runs for name, seed in run["mutants"].items() if seed is not None}


_FAMILIES = {
    "A": "bind, and the answers to a Binding",
    "B": "lists and watches",
    "C": "devices and cards",
    "D": "processes and threads",
    "E": "the Lease",
    "L": "liveness",
    "M": "moves of pods",
    "P": "preemption",
    "T": "tenants and nodes that mean harm",
}
"""The first letter of a fault, and the part of the program that has the faults."""


def _mutants(runs: list[dict[str, Any]]) -> list[str]:
    seeds_by_mutant = last_found(runs)
    mutants: dict[str, list[Mutant]] = {}
    for mutant in all_mutants():
        mutants.setdefault(mutant.fault[0], []).append(mutant)
    lines = [
        "| faults of | mutants | found by stories, median seed | found by a test of their own |"
    ]
    lines.append("| --- | --- | --- | --- |")
    for letter, family in sorted(mutants.items()):
        seeds = [seed for one in family if isinstance(seed := seeds_by_mutant.get(one.name), int)]
        tested = sum(bool(mutant.test) for mutant in family)
        story = f"{len(seeds)}, {median(seeds):.0f}" if seeds else "0"
        lines.append(f"| {_FAMILIES.get(letter, letter)} | {len(family)} | {story} | {tested} |")
    return lines
