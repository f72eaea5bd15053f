"""Without requests for compute, every policy scores as before compute was added."""

from hashlib import sha256
from itertools import cycle

import numpy as np
import pytest

from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.trace.nodes_and_pods import request_of
from tests.bench.clusters import drawn

JUDGED = {
    "auto": "2f64d50edebed358",
    "binpack": "7b39467fa93e0920",
    "device-bestfit": "2f64d50edebed358",
    "fgd": "71e5cceaaf75bb93",
    "shadow-price": "986a1dda3d08bdd8",
    "spread": "0531477e41a8b04b",
}
"""The begin of the hash of all values that each policy gives below, bit for bit."""


@pytest.mark.parametrize("name", policy_names())
def test_values_stay_as_they_were_bit_for_bit(name: str) -> None:
    digest = sha256()
    for seed, turnover in zip(range(5000, 5012), cycle((0.0, 1.0, 0.5)), strict=False):
        trace = drawn(seed)
        workload = workload_of_trace(trace.nodes, trace.pods, turnover)
        judge = Ranking(load_policy(name, workload))
        books, draw = Cluster(trace.nodes, judge), np.random.default_rng(seed)
        rows = cycle(draw.permutation(len(trace.nodes)).tolist())
        requests = [request_of(trace.pods[at]) for at in draw.integers(len(trace.pods), size=400)]
        for request in requests:
            books.place_on(next(rows), request)
        all_rows = np.arange(len(trace.nodes))
        for request in requests[:40]:
            values = judge.policy.score(books.view, all_rows, request)
            digest.update(np.where(books.view.free >= request.units, values, 0.0).tobytes())
            digest.update(judge.scores(books.view, request).values.tobytes())
    assert digest.hexdigest()[:16] == JUDGED[name]
