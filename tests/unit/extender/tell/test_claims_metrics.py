"""The metrics of claims, and those that their devices share with the others."""

from gpushare.extender.tell.metrics import Metrics
from gpushare.wire.metrics import read_samples
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.claims.test_allocator import Process

GIB = 2**30


def scraped(process: Process, detail: str = "devices") -> str:
    made = Metrics(process.resources, GIB, dict, detail=detail, claims=process.view)
    return made.text().decode()


def test_claims_are_counted_by_what_became_of_them() -> None:
    faults = ["lost", "refused", "", ""]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    for name, gib in (("a", 10), ("b", 20), ("c", 24), ("d", 70)):
        store.create(name, gib)
    store.create("e", 10, adminAccess=True)
    process = Process(store)
    process.waits(*(waiting_pod(f"p{name}", name) for name in "abcde"))
    process.round()
    text = scraped(process)
    for line in (
        'gpushare_claims{driver="gpu.example.com",state="in_doubt"} 1.0',
        'gpushare_claims_waiting_pods{why="no_room"} 1.0',
        'gpushare_claims_waiting_pods{why="refused"} 1.0',
        'gpushare_claims_held_back{reason="unread"} 0.0',
        'gpushare_claims_alone{driver="gpu.example.com"} 0.0',
        'gpushare_claim_allocations_total{outcome="in_doubt"} 1.0',
        'gpushare_claim_allocations_total{outcome="refused"} 1.0',
        'gpushare_claim_allocations_total{outcome="allocated"} 1.0',
        'gpushare_claim_allocation_duration_seconds_bucket{le="+Inf"} 3.0',
        "gpushare_claim_allocation_duration_seconds_count 3.0",
        "# TYPE gpushare_claim_allocation_duration_seconds histogram",
    ):
        assert line in text.splitlines(), text
    assert read_samples(text)


def test_devices_of_the_driver_have_the_metrics_of_devices() -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"))
    process.round()
    process.show()
    of = '{device="1",node="n1",resource="gpushare.io"}'
    lines = scraped(process, "pods").splitlines()
    assert f"gpushare_device_memory_bytes{of} {float(24 * GIB)}" in lines
    assert f"gpushare_device_memory_allocated_bytes{of} {float(10 * GIB)}" in lines
    namespaces = [line for line in lines if line.startswith("gpushare_namespace_memory")]
    assert namespaces == [
        "gpushare_namespace_memory_allocated_bytes"
        f'{{namespace="default",resource="gpushare.io"}} {float(10 * GIB)}'
    ]
    assert not any(line.startswith("gpushare_pod_memory") for line in lines)


def test_without_claims_nothing_is_told_of_them() -> None:
    process = Process(ClaimStore())
    assert b"claim_" not in Metrics(process.resources, GIB, dict).text()
