"""Compares our model of first fit with the allocator of kube-scheduler on random clusters.

    python -m tests.e2e.first_fit 0:2000      compare, print how many answers differ
    python -m tests.e2e.first_fit --record    write the corpus that the unit tests read

Needs the tool that `make firstfit` builds.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpushare.errors import WireError
from gpushare.wire.dra.selectors import Selectors
from tests.e2e.binaries import tool
from tests.support.claim_clusters import (
    allocator_answers,
    comparison,
    modelled,
    random_cluster,
)

CORPUS = Path(__file__).parents[1] / "data" / "first_fit.jsonl"
_CORPUS_SEEDS = range(1_000_000, 1_004_000)
_MOST_BYTES = 6000
_AT_ONCE = 500


def compare(seeds: Iterable[int]) -> tuple[Counter[str], list[str]]:
    """Return the counts of comparisons by result, and the differing nodes."""
    program = tool("firstfit")
    selectors = Selectors(time.thread_time)
    counts: Counter[str] = Counter()
    different: list[str] = []
    for some in _batches(list(seeds)):
        clusters = [random_cluster(seed) for seed in some]
        answers = allocator_answers(program, clusters)
        for seed, cluster, theirs in zip(some, clusters, answers, strict=True):
            for node, our_value in modelled(cluster, selectors).items():
                how = comparison(our_value, theirs[node])
                counts[how] += 1
                if how == "different":
                    text = f"seed {seed}, node {node}:\n  ours {our_value}\n  kube-scheduler"
                    different.append(f"{text} {theirs[node]}")
    return counts, different


def _batches(seeds: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(seeds), _AT_ONCE):
        yield seeds[start : start + _AT_ONCE]


def record() -> None:
    """Write small clusters with the answers of kube-scheduler's allocator: for each part of the API
    some clusters with an answer that depends on it.
    """
    clusters = [random_cluster(seed) for seed in _CORPUS_SEEDS]
    clusters = [c for c in clusters if len(msgspec.json.encode(c)) <= _MOST_BYTES]
    answers = allocator_answers(tool("firstfit"), clusters)
    selectors = Selectors(time.thread_time)
    text: Counter[str] = Counter()
    lines = []
    for cluster, answer in zip(clusters, answers, strict=True):
        parts = [part for part in _PARTS if text[part] < _OF_EACH]
        if any(isinstance(one, list) for one in answer.values()):
            needed = [part for part in parts if _depends_on(cluster, part, selectors)]
            if needed:
                text.update(needed)
                lines.append(msgspec.json.encode({"cluster": cluster, "answers": answer}))
    CORPUS.write_bytes(b"\n".join(lines) + b"\n")
    print(dict(text))


_OF_EACH = 3
_DISTINCT = "distinctAttribute"
_PARTS = (
    *("taints", "rules", "tolerations", "consumesCounters", "sharedCounters", "requestPolicy"),
    *("default", "validValues", "validRange", "max", "step", "capacity", "constraints", "requests"),
    *(_DISTINCT, "bindingConditions", "allocated", "consumedCapacity", "shareID"),
    *("adminAccess", "allowMultipleAllocations", "nodeName", "nodeSelector", "allNodes"),
    *("perDeviceNodeSelection", "generation", "selectors", "labels"),
)
"""Fields of the API."""


def _depends_on(cluster: dict[str, Any], field: str, selectors: Selectors) -> bool:
    """Return whether our answer is another one without a field, or cannot be had without it."""
    try:
        return modelled(_without(cluster, field), selectors) != modelled(cluster, selectors)
    except (AssertionError, KeyError, WireError):
        return False


def _without(value: Any, field: str) -> Any:
    """Return JSON without a field at any depth; lists and maps of the field are empty."""
    if isinstance(value, list):
        # A constraint without an attribute is invalid.
        kept_items = [item for item in value if field != _DISTINCT or field not in item]
        return [_without(item, field) for item in kept_items]
    if not isinstance(value, dict):
        return value
    survivors = {name: _without(item, field) for name, item in value.items() if name != field}
    empty = {name: type(item)() for name, item in value.items() if name == field}
    is_kept = field in ("rules", "allocated", "requests", "labels")
    return survivors | (empty if is_kept else {})


def main(arguments: list[str]) -> int:
    """Compare some seeds, or write the corpus."""
    if arguments == ["--record"]:
        record()
        return 0
    first, _, last = (arguments[0] if arguments else "0:2000").partition(":")
    counts, different = compare(range(int(first), int(last)))
    print(*different[:20], sep="\n")
    print(", ".join(f"{how}: {count}" for how, count in sorted(counts.items())))
    return bool(different)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
