"""The values that `serve` reads from kube-scheduler's file: entry, address, routes."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.errors import MessageError, SettingsError
from gpushare.extender import scheduler_file
from gpushare.extender.connections import (
    NOMINATES_PENDING_PODS,
    RETRIES_ON_ANNOTATIONS,
    server_release,
)
from gpushare.extender.door.app import Routes
from gpushare.extender.scheduler_file import SchedulerSettings, read_scheduler_file, routes_of
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.scheduler.config import ExtenderConfig
from tests.support.scripted_api import ScriptedApi

FILE = "/etc/kubernetes/scheduler.yaml"
ENTRY = {
    "urlPrefix": "http://127.0.0.1:4000/gpus/",
    "filterVerb": "fit",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "managedResources": [{"name": "aliyun.com/gpu-mem"}],
}
POLICY = {"kind": "Policy", "apiVersion": "v1", "priorities": [], "extenders": [ENTRY]}


def component(version: str = "v1", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"kubescheduler.config.k8s.io/{version}",
        "kind": "KubeSchedulerConfiguration",
    } | fields


def read(
    documents: Mapping[str, object], listen: tuple[str, int] | None = None, tls: bool = False
) -> SchedulerSettings:
    def load(path: str) -> object:
        if path not in documents:
            raise SettingsError(f"{path} cannot be read")
        return documents[path]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scheduler_file, "read_as_kubernetes", load)
        return read_scheduler_file(FILE, listen, tls)


def test_without_a_file_everything_is_as_documented() -> None:
    settings = read_scheduler_file("", None, False)
    assert (settings.listen, settings.warnings) == ("127.0.0.1:32766", ())
    assert routes_of(settings.entry) == Routes()
    # So bind takes no pod without GPU: whoever calls could place any pod of the cluster.
    assert [name.name for name in settings.entry.managed_resources] == [
        ALIYUN.resource,
        ALIYUN.count,
    ]
    assert settings.schedulers == ("default-scheduler",)


@pytest.mark.parametrize(
    ("change", "after", "entry"),
    [
        ({}, (), False),
        ({"prioritizeVerb": "sort", "weight": 140}, (), False),
        ({"prioritizeVerb": "sort", "weight": 141}, (), True),
        ({"weight": 150}, (), False),
        ({"prioritizeVerb": "sort", "weight": 150}, ({"urlPrefix": "http://b:1/b"},), False),
    ],
)
def test_the_choice_of_the_node_is_ours_where_nothing_outweighs_us_or_comes_after_us(
    change: dict[str, Any], after: tuple[dict[str, Any], ...], entry: bool
) -> None:
    extender = {"filterVerb": "filter"}
    entries = [ENTRY | change, *(extenders | extender for extenders in after)]
    assert read({FILE: component(extenders=entries)}).choice_is_ours is entry


def test_without_a_file_the_choice_is_left_to_kube_scheduler() -> None:
    assert not read_scheduler_file("", None, False).choice_is_ours


def test_address_and_routes_are_those_of_our_entry() -> None:
    settings = read({FILE: component(extenders=[ENTRY])})
    assert (settings.listen, settings.warnings) == ("127.0.0.1:4000", ())
    assert routes_of(settings.entry) == Routes(prefix="/gpus", filter="fit", bind="bind")


def test_a_policy_is_read_by_releases_of_another_time_alone() -> None:
    assert read({FILE: component(extenders=[ENTRY])}).current
    assert not read({FILE: POLICY}).current


@pytest.mark.parametrize(
    ("minor", "nominates", "annotates"),
    [
        ("34", False, True),
        ("35", True, True),
        ("37+", True, True),
        ("29", False, False),
        ("30", False, True),
    ],
)
def test_what_kube_scheduler_does_is_told_by_the_release(
    minor: str, nominates: bool, annotates: bool
) -> None:
    api = ScriptedApi(answers=[f'{{"major": "1", "minor": "{minor}"}}'.encode()])
    release = server_release(api)
    assert (release >= NOMINATES_PENDING_PODS) is nominates
    assert (release >= RETRIES_ON_ANNOTATIONS) is annotates


def test_an_api_server_that_names_no_release_is_not_guessed_about() -> None:
    with pytest.raises(MessageError, match="names no release"):
        server_release(ScriptedApi(answers=[b"{}"]))


def test_an_address_elsewhere_is_not_listened_at_and_warned_about() -> None:
    entry = ENTRY | {"urlPrefix": "http://gpu.example:4000/gpus"}
    settings = read({FILE: component(extenders=[entry])})
    assert settings.listen == "127.0.0.1:32766"
    (warning,) = settings.warnings
    assert "gpu.example:4000" in warning


def test_another_port_than_the_files_is_warned_about_once() -> None:
    (warning,) = read({FILE: POLICY}, listen=("127.0.0.1", 5000)).warnings
    assert "4000" in warning
    assert "5000" in warning


def test_warnings_of_the_file_are_handed_on() -> None:
    original = {key: value for key, value in POLICY.items() if key != "priorities"}
    (warning,) = read({FILE: original}).warnings
    assert 'add "priorities": []' in warning


def test_the_lease_of_the_files_scheduler_is_handed_on() -> None:
    election = {"leaderElect": True, "resourceName": "ours"}
    assert read({FILE: component(extenders=[ENTRY], leaderElection=election)}).lease == (
        "kube-system",
        "ours",
    )


def test_every_error_begins_with_the_file() -> None:
    for documents, part in (
        ({FILE: component(extenders=[])}, "none has a filterVerb"),
        ({FILE: component(extenders=[ENTRY | {"urlPrefix": "x"}])}, r"extenders\[0\]\.urlPrefix"),
        ({FILE: None}, "apiVersion"),
    ):
        with pytest.raises(SettingsError, match=f"^{FILE}: .*{part}"):
            read(documents)


def test_verbs_that_the_file_leaves_out_keep_our_names() -> None:
    entry = ExtenderConfig("http://127.0.0.1:1", preempt_verb="evict")
    assert routes_of(entry) == Routes(prefix="", preempt="evict")


@pytest.mark.parametrize(
    ("documents", "names"),
    [
        ({FILE: component(extenders=[ENTRY])}, ("default-scheduler",)),
        (
            {
                FILE: component(
                    extenders=[ENTRY],
                    profiles=[{"schedulerName": "gpu"}, {"schedulerName": "default-scheduler"}],
                )
            },
            ("gpu", "default-scheduler"),
        ),
        # There kube-scheduler has a flag for its name.
        ({FILE: POLICY}, ()),
    ],
)
def test_the_names_of_the_profiles_are_known_where_the_file_has_them(
    documents: Mapping[str, object], names: tuple[str, ...]
) -> None:
    assert read(documents).schedulers == names
