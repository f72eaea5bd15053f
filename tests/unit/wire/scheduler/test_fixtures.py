"""Other people's files: what is read of each, what is warned about, why it is refused."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import (
    ExtenderConfig,
    ExtenderManagedResource,
    SchedulerConfig,
    TlsConfig,
    decode_scheduler_config,
)

FOLDER = Path(__file__).parents[3] / "data" / "scheduler_configs"
URL = "http://127.0.0.1:32766/gpushare-scheduler"
MEM = ExtenderManagedResource("aliyun.com/gpu-mem")


def entry(**fields: Any) -> ExtenderConfig:
    usual: dict[str, Any] = {
        "filter_verb": "filter",
        "bind_verb": "bind",
        "node_cache_capable": True,
    }
    return ExtenderConfig(**{"url_prefix": URL, "managed_resources": (MEM,)} | usual | fields)


FULL = entry(
    prioritize_verb="sort",
    preempt_verb="preempt",
    weight=5,
    http_timeout=20.0,
    managed_resources=(MEM, ExtenderManagedResource("aliyun.com/gpu-count", True)),
)
BETA = entry(url_prefix="http://localhost:32766/gpushare-scheduler/", http_timeout=90.0)


@dataclass(frozen=True)
class Read:
    """What stands in a file; warnings: a part of each."""

    extenders: tuple[ExtenderConfig, ...]
    warnings: tuple[str, ...] = ()
    names: tuple[str, ...] = ("default-scheduler",)
    percentage: int = 0
    more: dict[str, object] = field(default_factory=dict)


READ = {
    "original-policy.json": Read(
        (entry(),), ('kube-scheduler 1.22 does not start .* add "priorities": \\[\\]',)
    ),
    "policy-full.json": Read((FULL,)),
    "policy-any-case.json": Read((entry(),)),
    "policy-text-timeout.json": Read(
        (entry(http_timeout=30.0),), (r"extenders\[0\]\.httpTimeout: .* write 30000000000",)
    ),
    "policy-least-requested.json": Read((), ("LeastRequestedPriority",)),
    "hami-like-v1.yaml": Read(
        (
            entry(
                url_prefix="https://127.0.0.1:443",
                weight=1,
                http_timeout=30.0,
                enable_https=True,
                tls=TlsConfig(insecure=True),
                managed_resources=tuple(
                    ExtenderManagedResource(f"example.com/{name}", True)
                    for name in ("gpu", "gpumem", "gpucores")
                ),
            ),
        ),
        names=("shared-gpus",),
        more={"lease": None},
    ),
    "everything-known-v1.yaml": Read(
        (entry(prioritize_verb="prioritize", weight=20),),
        names=("default-scheduler", "packing"),
        percentage=50,
        more={
            "pod_initial_backoff": 2.0,
            "pod_max_backoff": 20.0,
        },
    ),
    "v1beta1.yaml": Read((BETA,)),
    "v1beta2.yaml": Read((BETA,)),
    "v1beta3.yaml": Read((BETA,)),
    "v1-tls.yaml": Read(
        (
            entry(
                url_prefix="https://gpushare.kube-system.svc:8443/scheduler",
                enable_https=True,
                tls=TlsConfig(
                    ca_file="/etc/kubernetes/pki/gpushare/ca.crt",
                    cert_file="/etc/kubernetes/pki/gpushare/client.crt",
                ),
            ),
        ),
    ),
    "v1-two-extenders.yaml": Read(
        (
            entry(
                url_prefix="http://127.0.0.1:8888/storage",
                filter_verb="predicates",
                prioritize_verb="prioritizes",
                bind_verb="",
                weight=3,
                ignorable=True,
                managed_resources=(ExtenderManagedResource("storage.example.com/volume", True),),
            ),
            entry(),
        )
    ),
    "v1-no-resources.yaml": Read(
        (entry(managed_resources=()),), (r"extenders\[0\]\.managedResources: .* every pod",)
    ),
    "v1-unknown-keys.yaml": Read(
        (entry(),),
        (
            r"futureSwitch, leaderElection\.patience, extenders\[0\]\.scoreVerb, "
            r"extenders\[0\]\.managedResources\[0\]\.colour: .* does not start",
        ),
    ),
}

REFUSED = {
    "bad-duplicate-resource.yaml": "aliyun.com/gpu-mem is named 2 times",
    "bad-weight-zero.yaml": r"extenders\[0\]\.weight: must be positive",
    "bad-two-binders.yaml": r"extenders\[0\], extenders\[1\]: at most one may have a bindVerb",
    "bad-number-as-timeout.yaml": r"extenders\[0\]\.httpTimeout: must be a duration as text",
    "bad-resource-without-domain.yaml": r"managedResources\[0\]: 'gpu-mem' is no extended",
    "bad-kubernetes-resource.yaml": r"managedResources\[0\].*kubernetes\.io/ is Kubernetes' own",
    "bad-policy-spelling.yaml": r"extenders\[0\]\.enableHttps: write enableHTTPS",
    "bad-two-queues.yaml": "profiles: all share one queue",
    "bad-nameless-profile.yaml": r"profiles\[1\]\.schedulerName: missing",
    "policy-weightless-priority.json": r"priorities\[0\]\.weight: must be positive",
}


def document(name: str) -> object:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", READ)
def test_what_kube_scheduler_starts_from_is_read(name: str) -> None:
    scheduler_config, expected = decode_scheduler_config(document(name)), READ[name]
    assert len(scheduler_config.warnings) == len(expected.warnings), scheduler_config.warnings
    for warning, part in zip(scheduler_config.warnings, expected.warnings, strict=True):
        assert re.search(part, warning), warning
    assert scheduler_config == SchedulerConfig(
        scheduler_config.api_version,
        expected.extenders,
        profiles=scheduler_config.profiles,
        warnings=scheduler_config.warnings,
        **expected.more,  # type: ignore[arg-type]  # fields of several types
    )
    assert scheduler_config.scheduler_names == expected.names
    assert scheduler_config.percentage_of_nodes_to_score == expected.percentage


@pytest.mark.parametrize("name", REFUSED)
def test_what_kube_scheduler_does_not_start_from_is_refused_by_the_field(name: str) -> None:
    with pytest.raises(SettingsError, match=REFUSED[name]):
        decode_scheduler_config(document(name))


def test_every_file_is_tried_here() -> None:
    names = {file.name for file in FOLDER.iterdir()} - {"README.md"}
    assert names == READ.keys() | REFUSED.keys()
    assert READ.keys().isdisjoint(REFUSED)
