"""The metrics of claims, and those that their devices share with the others."""

from dataclasses import replace

from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.claims.view import ClaimCounts, ClaimsView
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.tell.metrics import Metrics
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.metrics import read_samples
from tests.support.claim_values import DRIVER, GIB, allocated, device, holding, slice_of
from tests.unit.extender.kit import managed_resources


def scraped(detail: str = "devices") -> str:
    books = ClaimBooks(DRIVER, GIB)
    books.slice_changed(slice_of("n1", device("gpu-0", 40), device("gpu-1", 24)))
    books.claim_changed(allocated(1, holding("n1", "gpu-1", 10)))
    policy = "device-bestfit"
    rankings = {policy: Ranking(load_policy(policy))}
    source = ManagedResource(replace(ALIYUN, resource=CLASS), books.ledger, rankings, policy)
    counts = ClaimCounts(
        claims=1,
        offers=2,
        predictions={"right": 3, "other_device": 4, "other_node": 5},
        pods={"ranked": 6, "not_ranked": 7},
        unevaluated_selectors={"compile": 8},
        unmodelled_nodes=9,
    )
    view = ClaimsView(books, source, matches=lambda *_: True, counts=lambda: counts)
    return Metrics(managed_resources(), GIB, dict, detail=detail, claims=view).text().decode()


def test_what_filter_did_for_claims_is_counted() -> None:
    text = scraped()
    for line in (
        'gpushare_claims{driver="gpu.example.com"} 1.0',
        'gpushare_claim_offers{driver="gpu.example.com"} 2.0',
        'gpushare_claim_predictions_total{outcome="right"} 3.0',
        'gpushare_claim_predictions_total{outcome="other_device"} 4.0',
        'gpushare_claim_predictions_total{outcome="other_node"} 5.0',
        'gpushare_claim_pods_total{outcome="ranked"} 6.0',
        'gpushare_claim_pods_total{outcome="not_ranked"} 7.0',
        'gpushare_claim_selectors_unevaluated_total{why="compile"} 8.0',
        'gpushare_claim_nodes_unmodelled{driver="gpu.example.com"} 9.0',
    ):
        assert line in text.splitlines(), text
    assert read_samples(text)


def test_devices_of_the_driver_have_the_metrics_of_devices() -> None:
    of = '{device="1",node="n1",resource="gpushare.io"}'
    lines = scraped("pods").splitlines()
    assert f"gpushare_device_memory_bytes{of} {float(24 * GIB)}" in lines
    assert f"gpushare_device_memory_allocated_bytes{of} {float(10 * GIB)}" in lines
    namespaces = [line for line in lines if line.startswith("gpushare_namespace_memory")]
    assert namespaces == [
        "gpushare_namespace_memory_allocated_bytes"
        f'{{namespace="default",resource="gpushare.io"}} {float(10 * GIB)}'
    ]
    assert not any(line.startswith("gpushare_pod_memory") for line in lines)


def test_without_claims_nothing_is_told_of_them() -> None:
    assert b"claim_" not in Metrics(managed_resources(), GIB, dict).text()
