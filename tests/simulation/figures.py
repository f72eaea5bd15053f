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


def _mutants(runs: list[dict[str, Any]]) -> list[str]:
    found: dict[str, int | None] = {}
    for run in runs:
        found |= run["mutants"]
    lines = ["| fault | mutant | where it is, or was | seeds until found |"]
    lines.append("| --- | --- | --- | --- |")
    for mutant in sorted(all_mutants(), key=lambda each: (each.fault[0], int(each.fault[1:]))):
        seeds = found.get(mutant.name)
        name = mutant.name.replace("_", " ")
        lines.append(f"| {mutant.fault} | {name} | {mutant.where} | {seeds or '-'} |")
    return lines
