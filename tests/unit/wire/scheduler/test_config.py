"""What kube-scheduler would start with is read; what it would refuse is refused."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import (
    ExtenderConfig,
    ExtenderManagedResource,
    SchedulerConfig,
    TlsConfig,
    decode_scheduler_config,
)
from gpushare.wire.scheduler.profiles import Profile
from gpushare.wire.scheduler.schema import DEFAULT_TIMEOUT

GPU = {"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}
ORIGINAL = {
    "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
    "filterVerb": "filter",
    "bindVerb": "bind",
    "nodeCacheCapable": True,
    "managedResources": [GPU],
    "ignorable": False,
}


def policy(*extenders: Any, **fields: Any) -> dict[str, Any]:
    head = {"kind": "Policy", "apiVersion": "v1", "priorities": []}
    return head | {"extenders": list(extenders)} | fields


def component(*extenders: Any, version: str = "v1", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"kubescheduler.config.k8s.io/{version}",
        "kind": "KubeSchedulerConfiguration",
        "extenders": list(extenders),
    } | fields


SORT = {"queueSort": {"enabled": [{"name": "Coscheduling"}]}}
EXPECTED = ExtenderConfig(
    "http://127.0.0.1:32766/gpushare-scheduler",
    filter_verb="filter",
    bind_verb="bind",
    node_cache_capable=True,
    managed_resources=(ExtenderManagedResource("aliyun.com/gpu-mem"),),
)


def test_the_originals_policy_is_read() -> None:
    document = policy(ORIGINAL | {"enableHttps": False}, priorities=[])
    config = decode_scheduler_config(document)
    assert config == SchedulerConfig("v1", (EXPECTED,), config.profiles)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1beta3", "v1"])
def test_every_version_of_component_config_is_read(version: str) -> None:
    scheduler_config = decode_scheduler_config(
        component(ORIGINAL | {"enableHTTPS": False}, version=version)
    )
    assert scheduler_config.extenders == (EXPECTED,)
    assert scheduler_config.warnings == ()
    assert scheduler_config.api_version.endswith(version)


def test_every_field_is_read() -> None:
    entry = {
        "urlPrefix": "https://x:1/y",
        "filterVerb": "f",
        "prioritizeVerb": "p",
        "bindVerb": "b",
        "preemptVerb": "e",
        "weight": 20,
        "enableHTTPS": True,
        "tlsConfig": {"caFile": "/ca", "certData": "a2V5"},
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": "x.io/y", "ignoredByScheduler": True}],
    }
    scheduler_config = decode_scheduler_config(
        component(
            entry,
            percentageOfNodesToScore=50,
            podInitialBackoffSeconds=2,
            podMaxBackoffSeconds=4,
            profiles=[{"schedulerName": "a"}, {"schedulerName": "b"}],
            leaderElection={"leaderElect": False},
        )
    )
    resources = (ExtenderManagedResource("x.io/y", ignored_by_scheduler=True),)
    assert scheduler_config == SchedulerConfig(
        "kubescheduler.config.k8s.io/v1",
        (
            ExtenderConfig(
                *("https://x:1/y", "f", "p", "b", "e", 20, True, 10.0, True, False, resources),
                tls=TlsConfig(ca_file="/ca", cert_data="key"),
            ),
        ),
        (Profile("a", 50), Profile("b", 50)),
        2.0,
        4.0,
        lease=None,
    )


@pytest.mark.parametrize(
    ("version", "election", "lease"),
    [
        ("v1", None, ("kube-system", "kube-scheduler")),
        ("v1", {}, ("kube-system", "kube-scheduler")),
        ("v1", {"leaderElect": True, "resourceName": "ours"}, ("kube-system", "ours")),
        ("v1beta3", {"resourceName": "a", "resourceNamespace": "b"}, ("b", "a")),
        ("v1", {"leaderElect": False, "resourceName": "a"}, None),
    ],
)
def test_the_lease_of_the_leader_is_the_one_the_file_names(
    version: str, election: Any, lease: tuple[str, str] | None
) -> None:
    document = component(version=version, leaderElection=election)
    assert decode_scheduler_config(document).lease == lease


@pytest.mark.parametrize("name", ["..", "a/b", "A", "a b", "a" * 254, ".a"])
@pytest.mark.parametrize("key", ["resourceName", "resourceNamespace"])
def test_a_lease_that_could_lead_to_another_path_is_refused(key: str, name: str) -> None:
    with pytest.raises(SettingsError, match=f"leaderElection.{key}: "):
        decode_scheduler_config(component(leaderElection={key: name}))


def test_a_policy_matches_keys_in_any_case_and_ignores_unknown_ones() -> None:
    loud = {key.upper(): value for key, value in ORIGINAL.items()} | {"FUTURE": 1}
    loud["MANAGEDRESOURCES"] = [{"NAME": "aliyun.com/gpu-mem"}]
    document = {"Extenders": [loud], "kind": "Policy", "apiVersion": "v1", "Priorities": []}
    scheduler_config = decode_scheduler_config(document)
    assert scheduler_config.extenders == (EXPECTED,)
    inside, top = scheduler_config.warnings
    assert inside == "extenders[0].FUTURE: unknown, and not read"
    assert top.startswith("Extenders, Priorities: kube-scheduler 1.22 does not start")


@pytest.mark.parametrize("spelling", ["enableHttps", "enableHTTPS"])
def test_both_spellings_of_the_tls_key_are_read_in_a_policy(spelling: str) -> None:
    scheduler_config = decode_scheduler_config(
        policy(ORIGINAL | {spelling: True, "tlsConfig": {"caFile": "c"}})
    )
    assert scheduler_config.extenders[0].enable_https
    assert scheduler_config.warnings == ()


@pytest.mark.parametrize(
    ("value", "seconds"), [(5_000_000_000, 5.0), ("2s", 2.0), (0, DEFAULT_TIMEOUT), (None, 5.0)]
)
def test_a_policy_counts_nanoseconds(value: Any, seconds: float) -> None:
    scheduler_config = decode_scheduler_config(policy(ORIGINAL | {"httpTimeout": value}))
    assert scheduler_config.extenders[0].http_timeout == seconds


@pytest.mark.parametrize(("value", "seconds"), [("500ms", 0.5), ("0", 5.0), ("0s", 5.0)])
def test_component_config_writes_durations(value: str, seconds: float) -> None:
    scheduler_config = decode_scheduler_config(component(ORIGINAL | {"httpTimeout": value}))
    assert scheduler_config.extenders[0].http_timeout == seconds


def test_a_file_without_extenders_is_read() -> None:
    document = component()
    del document["extenders"]
    assert decode_scheduler_config(document).extenders == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"urlPrefix": 7}, r"extenders\[0\]\.urlPrefix"),
        ({"weight": "5"}, r"weight"),
        ({"weight": True}, r"weight"),
        ({"ignorable": "no"}, r"ignorable"),
        ({"httpTimeout": "-1s"}, r"httpTimeout"),
        ({"httpTimeout": "soon"}, r"httpTimeout"),
        ({"httpTimeout": [5]}, r"httpTimeout"),
        ({"httpTimeout": True}, r"httpTimeout"),
        ({"tlsConfig": "x"}, r"tlsConfig"),
        ({"managedResources": {}}, r"managedResources"),
        ({"managedResources": [7]}, r"managedResources\[0\]"),
        ({"managedResources": [{}]}, r"managedResources\[0\].*extended resource"),
        ({"managedResources": [{"name": "gpu"}]}, "extended resource"),
        ({"managedResources": [{"name": "x.kubernetes.io/gpu"}]}, "extended resource"),
        ({"managedResources": [{"name": "requests.x/gpu"}]}, r"requests\."),
        ({"managedResources": [GPU, GPU]}, "named 2 times"),
        ({"prioritizeVerb": "p"}, "weight: must be positive"),
        ({"prioritizeVerb": "p", "weight": -1}, "weight: must be positive"),
    ],
)
@pytest.mark.parametrize("dialect", [policy, component])
def test_what_kube_scheduler_refuses_is_refused(dialect: Any, changes: Any, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        decode_scheduler_config(dialect(ORIGINAL | changes))


@pytest.mark.parametrize("nanoseconds", [-1, 10**400, -(10**400)])
def test_nanoseconds_out_of_range_are_refused(nanoseconds: int) -> None:
    with pytest.raises(SettingsError, match="httpTimeout"):
        decode_scheduler_config(policy(ORIGINAL | {"httpTimeout": nanoseconds}))


@pytest.mark.parametrize("dialect", [policy, component])
def test_rules_across_extenders(dialect: Any) -> None:
    with pytest.raises(SettingsError, match="bindVerb"):
        decode_scheduler_config(dialect(ORIGINAL, ORIGINAL | {"managedResources": []}))
    with pytest.raises(SettingsError, match="named 2 times"):
        decode_scheduler_config(dialect(ORIGINAL, ORIGINAL | {"bindVerb": ""}))


@pytest.mark.parametrize(
    "changes",
    [
        {"enableHttps": False},
        {"FilterVerb": "f"},
        {"httpTimeout": 5_000_000_000},
        {"tlsConfig": {"cafile": "x"}},
        {"managedResources": [{"name": "x.io/y", "IgnoredByScheduler": True}]},
    ],
)
def test_component_config_is_strict_about_extenders(changes: Any) -> None:
    with pytest.raises(SettingsError, match=r"extenders\[0\]"):
        decode_scheduler_config(component(ORIGINAL | changes))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"percentageOfNodesToScore": 101}, "percentageOfNodesToScore"),
        ({"percentageOfNodesToScore": "5"}, "percentageOfNodesToScore"),
        ({"podInitialBackoffSeconds": 0}, "podInitialBackoffSeconds"),
        ({"podInitialBackoffSeconds": 20}, "podMaxBackoffSeconds"),
        ({"parallelism": 0}, "parallelism"),
        ({"profiles": [{}, {}]}, r"profiles\[0\]\.schedulerName"),
        ({"profiles": [{"schedulerName": "a"}, {"schedulerName": "a"}]}, "profiles"),
        ({"profiles": [{"schedulerName": "a"}, {"schedulerName": "b", "plugins": SORT}]}, "queue"),
        ({"profiles": [{"percentageOfNodesToScore": -1}]}, r"profiles\[0\]\.percentage"),
        ({"leaderElection": {"leaderElect": "yes"}}, r"leaderElection\.leaderElect"),
        ({"leaderElection": []}, "leaderElection"),
        ({"clientConnection": 7}, "clientConnection"),
        ({"Profiles": []}, "write profiles"),
        ({"profiles": [{"schedulerName": 7}]}, r"profiles\[0\]\.schedulerName"),
        ({"extenders": {}}, "extenders"),
        ({"extenders": [7]}, r"extenders\[0\]"),
        ({"kind": "Other"}, "kind"),
        ({"apiVersion": "kubescheduler.config.k8s.io/v2"}, "apiVersion"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"kind": 7}, "kind"),
    ],
)
def test_rules_around_extenders(fields: Any, field: str) -> None:
    with pytest.raises(SettingsError, match=field):
        decode_scheduler_config(component(**fields))


@pytest.mark.parametrize("document", [None, 7, [], "x", {1: 2}, {}, policy(apiVersion="v2")])
def test_what_is_no_configuration_is_refused(document: Any) -> None:
    with pytest.raises(SettingsError):
        decode_scheduler_config(document)


def test_what_is_legal_but_hardly_meant_is_warned_about() -> None:
    entry = ORIGINAL | {
        "urlPrefix": "",
        "ignorable": True,
        "nodeCacheCapable": False,
        "enableHTTPS": True,
    }
    warnings = decode_scheduler_config(component(entry, future=1)).warnings
    subjects = ["future", "urlPrefix", "ignorable", "nodeCacheCapable", "tlsConfig"]
    assert [warning.partition(":")[0].rpartition(".")[2] for warning in warnings] == subjects


KEYS = ["kind", "apiVersion", "extenders", "profiles", "weight", "httpTimeout", "managedResources"]
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=10,
)


@given(DOCUMENTS, DOCUMENTS, st.sampled_from([policy, component]))
def test_arbitrary_documents_never_raise_anything_else(one: Any, two: Any, dialect: Any) -> None:
    for document in (one, dialect(one), dialect(profiles=two), dialect(ORIGINAL | {"weight": two})):
        with suppress(SettingsError):
            decode_scheduler_config(document)


def test_a_lock_that_newer_releases_refuse_is_warned_about() -> None:
    election = {"leaderElect": True, "resourceLock": "endpointsleases"}
    (warning,) = decode_scheduler_config(component(leaderElection=election)).warnings
    assert warning.startswith("leaderElection.resourceLock: 'endpointsleases'; kube-scheduler")
    assert (
        decode_scheduler_config(component(version="v1beta2", leaderElection=election)).warnings
        == ()
    )


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2", "v2"])
def test_a_version_that_no_supported_kube_scheduler_reads_is_refused(version: str) -> None:
    with pytest.raises(SettingsError, match=rf"/{version}'.*expected kind Policy of v1"):
        decode_scheduler_config(component(ORIGINAL, version=version))


def test_many_unknown_keys_are_one_warning_of_bounded_length() -> None:
    strange: dict[str, Any] = {f"key{n:02}": n for n in range(20)} | {"a\nb": 1, "x" * 500: 1}
    (warning,) = decode_scheduler_config(component(**strange)).warnings
    assert "key07 and 14 more" in warning
    assert "\n" not in warning
    assert len(warning) < 500
    (warning,) = decode_scheduler_config(policy(**{"a\nb": 1, "x" * 500: 1})).warnings
    assert "\n" not in warning
    assert len(warning) < 500


def test_the_times_of_leader_election_are_checked() -> None:
    election = {"leaseDuration": "1m", "renewDeadline": "40s", "retryPeriod": "0s"}
    assert decode_scheduler_config(component(leaderElection=election)).lease
    for wrong in ({"leaseDuration": "5s"}, {"renewDeadline": "2s"}, {"retryPeriod": "9s"}):
        with pytest.raises(SettingsError, match="leaseDuration must be greater than renewDead"):
            decode_scheduler_config(component(leaderElection=wrong))
        off = component(leaderElection={**wrong, "leaderElect": False})
        assert decode_scheduler_config(off).lease is None
    with pytest.raises(SettingsError, match=r"leaderElection\.retryPeriod: must not be negative"):
        decode_scheduler_config(component(leaderElection={"retryPeriod": "-1s"}))
