"""Compares our model of first fit with the allocator of kube-scheduler on random clusters.

    python -m tests.e2e.first_fit 0:2000      compare, print how many answers differ
    python -m tests.e2e.first_fit --record    write the corpus that the unit tests read

Needs the tool that `make firstfit` builds.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

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
_MOST_BYTES = 5000
_AT_ONCE = 500


def compare(seeds: Iterable[int]) -> tuple[Counter[str], list[str]]:
    """Return how often the answers of nodes compare in which way, and which differ."""
    program = tool("firstfit")
    selectors = Selectors(time.thread_time)
    counts: Counter[str] = Counter()
    different: list[str] = []
    for some in _batches(list(seeds)):
        clusters = [random_cluster(seed) for seed in some]
        answers = allocator_answers(program, clusters)
        for seed, cluster, theirs in zip(some, clusters, answers, strict=True):
            for node, ours in modelled(cluster, selectors).items():
                how = comparison(ours, theirs[node])
                counts[how] += 1
                if how == "different":
                    text = f"seed {seed}, node {node}:\n  ours {ours}\n  kube-scheduler"
                    different.append(f"{text} {theirs[node]}")
    return counts, different


def _batches(seeds: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(seeds), _AT_ONCE):
        yield seeds[start : start + _AT_ONCE]


def record() -> None:
    """Write small clusters of many kinds, with the answers of kube-scheduler's allocator."""
    clusters = [random_cluster(seed) for seed in _CORPUS_SEEDS]
    clusters = [c for c in clusters if len(msgspec.json.encode(c)) <= _MOST_BYTES]
    answers = allocator_answers(tool("firstfit"), clusters)
    wanted: Counter[str] = Counter()
    lines = []
    for cluster, answer in zip(clusters, answers, strict=True):
        words = _kinds(cluster, answer)
        if any(wanted[word] < 4 for word in words):
            wanted.update(words)
            lines.append(msgspec.json.encode({"cluster": cluster, "answers": answer}))
    CORPUS.write_bytes(b"\n".join(lines) + b"\n")


def _kinds(cluster: Mapping[str, object], answer: Mapping[str, object]) -> set[str]:
    """Return the features that count for the answer, if any claim of the cluster fits."""
    if not any(isinstance(one, list) for one in answer.values()):
        return {"no devices"}
    text = msgspec.json.encode(cluster).decode()
    features = (
        "firstAvailable All adminAccess tolerations requests matchAttribute distinctAttribute"
        " requestPolicy validRange validValues consumesCounters bindingConditions"
        " perDeviceNodeSelection allNodes nodeSelector deviceSelector shareID cel.bind semver"
        " quantity"
    )
    return {word for word in features.split() if word in text}


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
