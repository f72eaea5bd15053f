"""A program that lists one kind of object as the extender does, and prints the memory in use.

Run by test_large_objects.py: `python -m tests.integration.large_objects KUBECONFIG KIND`. It prints
one JSON object: kibibytes resident at most, and now, and before the list; how many objects the list
had for the ledger; the seconds of CPU that they took; and the seconds of CPU that the standard
library takes for a megabyte of like JSON here and now, as the measure of the others.
"""

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from gpushare.device_plugin.pods import Pods
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.claims.service import handlers_of
from gpushare.extender.follow.disruption_budgets import DisruptionBudgets
from gpushare.extender.follow.watch_handlers import (
    NodeEventHandler,
    PodEventHandler,
    UnhealthyEventHandler,
)
from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import BUDGETS, CONFIG_MAPS, NODES, PODS, STARTED_PODS
from tests.support.waiting import poll
from tests.unit.extender.kit import managed_resources


def resident() -> dict[str, int]:
    """KiB of this process: at most until now, and now."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    result = dict(line.split(":", 1) for line in lines)
    return {name: int(result[name].split()[0]) for name in ("VmHWM", "VmRSS")}


def calibrate() -> float:
    """Return the least seconds of CPU that `json` needs for a megabyte of short texts."""
    text = json.dumps([{"key": f"o{number:06}"} for number in range(10_000)])
    costs = []
    for _ in range(5):
        used = time.thread_time()
        json.loads(text)
        costs.append(time.thread_time() - used)
    return min(costs) / len(text) * 1e6


def main() -> None:
    kubeconfig, kind = sys.argv[1:]
    client = connect(kubeconfig, pool_size=2, user_agent="test")
    resources = managed_resources()
    of_claims = handlers_of(ClaimBooks("gpu.nvidia.com", 2**30))
    parts: dict[str, tuple[Any, Any]] = {
        "pods": (PODS, PodEventHandler(resources)),
        "nodes": (NODES, NodeEventHandler(resources, "GiB")),
        "configmaps": (CONFIG_MAPS, UnhealthyEventHandler(resources)),
        "budgets": (BUDGETS, DisruptionBudgets()),
        "claims": of_claims["resourceclaims"],
        "slices": of_claims["resourceslices"],
        "plugin": (STARTED_PODS, Pods(client, ALIYUN, "n1", tuple)),
    }
    codec, handler = parts[kind]
    machine: ListWatch[Any, Any] = ListWatch("/list", codec)
    reflector = Reflector(client, machine, handler)
    calibrated = calibrate()
    before, used = resident()["VmRSS"], time.process_time()
    reflector.start()
    poll(lambda: machine.synced, "the list is taken over", seconds=240)
    reflector.stop()
    cpu = time.process_time() - used
    # A machine may become slower while the list is read.
    calibrated = max(calibrated, calibrate())
    gc.collect()
    entries = len(resources.resources[0].ledger.entries_and_specs()[0])
    print(
        json.dumps(
            resident()
            | {"before": before, "entries": entries, "cpu": cpu}
            | {"calibrated": calibrated}
        )
    )


if __name__ == "__main__":
    main()
