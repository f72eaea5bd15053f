"""The figures of the simulation as tables, for docs/research/proof-figures.md."""

from collections import Counter
from typing import Any

from tests.simulation.hunt import all_mutants


def figures(runs: list[dict[str, Any]]) -> str:
    """The runs, the faults that fired in them, and the mutants, as tables."""
    fired: Counter[str] = Counter()
    lines = [
        "| seeds | steps | violations | faults fired | kinds | seconds | cores | commit | when |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    told = 0
    for run in runs:
        if not run["fired"]:
            continue
        told += run["after"] - run["first"]
        fired.update(run["fired"])
        lines.append(
            f"| {run['first']}:{run['after']} | {run['steps']} | {len(run['violations'])}"
            f" | {sum(run['fired'].values()):,} | {len(run['fired'])} | {run['seconds']:.0f}"
            f" | {run['cores']} | {run['commit']} | {run['when']} |"
        )
    lines += ["", f"Together {told:,} seeds and {sum(fired.values()):,} faults:", ""]
    lines += ["| fault | fired | fault | fired | fault | fired |", "| --- " * 6 + "|"]
    kinds = [f"{kind} | {count:,}" for kind, count in fired.most_common()]
    kinds += [" | "] * (-len(kinds) % 3)
    lines += [f"| {' | '.join(kinds[i : i + 3])} |" for i in range(0, len(kinds), 3)]
    return "\n".join([*lines, "", *_mutants(runs)])


def last_found(runs: list[dict[str, Any]]) -> dict[str, int]:
    """The seed that found each mutant the last time."""
    return {name: seed for run in runs for name, seed in run["mutants"].items() if seed is not None}


def _mutants(runs: list[dict[str, Any]]) -> list[str]:
    found = last_found(runs)
    lines = ["| fault | mutant | where it is, or was | found by seed |"]
    lines.append("| --- | --- | --- | --- |")
    for mutant in sorted(all_mutants(), key=lambda each: (each.fault[0], int(each.fault[1:]))):
        name = mutant.name.replace("_", " ")
        lines.append(
            f"| {mutant.fault} | {name} | {mutant.where} | {found.get(mutant.name, '-')} |"
        )
    return lines
