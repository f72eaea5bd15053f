"""Answers that kube-scheduler's own allocator gave (`python -m tests.e2e.first_fit --record`)."""

import time
from collections import Counter

import msgspec

from gpushare.wire.dra.selectors import Selectors
from tests.support.claim_clusters import comparison, modelled
from tests.support.figures import ROOT

CORPUS = ROOT / "tests" / "data" / "first_fit.jsonl"


def test_the_model_takes_the_devices_that_kube_scheduler_took() -> None:
    selectors = Selectors(time.thread_time)
    counts: Counter[str] = Counter()
    for number, line in enumerate(CORPUS.read_bytes().splitlines()):
        case = msgspec.json.decode(line)
        for node, entry in modelled(case["cluster"], selectors).items():
            how = comparison(entry, case["answers"][node])
            assert how != "different", f"line {number + 1}, node {node}: {entry}"
            counts[how] += 1
    assert counts["same devices"] >= 40, counts
    assert counts["given up"] == 0
