"""The figures of the simulation as tables, for docs/research/proof-figures.md."""

from collections import Counter
from typing import Any

from tests.simulation.hunt import all_mutants


def figures(runs: list[dict[str, Any]]) -> str:
    """The sums over all runs of stories, the faults by their family, and the mutants."""
    told = [run for run in runs if run["fired"]]
    seeds = sum(run["after"] - run["first"] for run in told)
    violations = sum(len(run["violations"]) for run in told)
    fired: Counter[str] = Counter()
    for run in told:
        fired.update(run["fired"])
    families: dict[str, list[int]] = {}
    for kind, count in fired.items():
        families.setdefault(kind.partition(" ")[0], []).append(count)
    lines = [
        f"{len(told)} runs until {told[-1]['when'][:10]} (commit {told[-1]['commit']}):",
        f"{seeds:,} stories, {fired.total():,} faults of {len(fired)} kinds,"
        f" {violations} violations.",
        "",
    ]
    lines += ["| fault | kinds | fired | fault | kinds | fired |", "| --- " * 6 + "|"]
    most = sorted(families.items(), key=lambda family: -sum(family[1]))
    cells = [f"{family} | {len(counts)} | {sum(counts):,}" for family, counts in most]
    cells += [" | | "] * (len(cells) % 2)
    lines += [f"| {one} | {two} |" for one, two in zip(cells[::2], cells[1::2], strict=True)]
    return "\n".join([*lines, "", *_mutants(runs)])


def last_found(runs: list[dict[str, Any]]) -> dict[str, int | str]:
    """The seed or the test that found each mutant the last time."""
    return {name: seed for run in runs for name, seed in run["mutants"].items() if seed is not None}


def _mutants(runs: list[dict[str, Any]]) -> list[str]:
    found = last_found(runs)
    lines = ["| fault | mutant | where it is, or was | found by seed, or test |"]
    lines.append("| --- | --- | --- | --- |")
    for mutant in sorted(all_mutants(), key=lambda each: (each.fault[0], int(each.fault[1:]))):
        name = mutant.name.replace("_", " ")
        by = f"`{mutant.test}`" if mutant.test else found.get(mutant.name, "-")
        lines.append(f"| {mutant.fault} | {name} | {mutant.where} | {by} |")
    return lines
