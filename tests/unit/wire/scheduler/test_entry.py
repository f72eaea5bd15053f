"""The entry that is us is found, or the candidates are named; its address is where we listen."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import (
    ExtenderConfig,
    ExtenderManagedResource,
    SchedulerConfig,
)
from gpushare.wire.scheduler.entry import Endpoint, endpoint, listening_warning, our_entry

OURS = "http://127.0.0.1:32766/gpushare-scheduler"
OTHER = "http://127.0.0.1:9000/other"
MEM = ExtenderManagedResource("aliyun.com/gpu-mem")


def entry(url: str = OURS, **fields: Any) -> ExtenderConfig:
    return ExtenderConfig(url, **{"filter_verb": "filter"} | fields)


def found(*entries: ExtenderConfig, listen: tuple[str, int] | None = None) -> str:
    return our_entry(SchedulerConfig("v1", entries), listen).url_prefix


@pytest.mark.parametrize(
    ("url", "expected", "listen"),
    [
        (OURS, Endpoint("127.0.0.1", 32766, "/gpushare-scheduler", False), "127.0.0.1:32766"),
        ("http://localhost:5/x/", Endpoint("localhost", 5, "/x", False), "127.0.0.1:5"),
        ("http://127.0.0.9", Endpoint("127.0.0.9", 80, "", False), "127.0.0.9:80"),
        ("https://[::1]/a/b", Endpoint("::1", 443, "/a/b", True), "[::1]:443"),
    ],
)
def test_an_address_of_this_machine_is_where_we_listen(
    url: str, expected: Endpoint, listen: str
) -> None:
    place = endpoint(entry(url))
    assert (place, place.loopback, place.listen) == (expected, True, listen)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:1/x", "http://gpu.kube-system:1", "http://[::]:1"]
)
def test_an_address_of_another_machine_is_not_loopback(url: str) -> None:
    assert not endpoint(entry(url)).loopback


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:1/x", "ftp://a/b", "http://", "http://[::1/x", "http://a:99999", "http://a:b"]
    + ["http://a:0", "http://a/b?c=d", "http://a/b#c", "http://a/<b>", "http://a//b", "http://a/é"],
)
def test_an_address_that_cannot_be_served_is_refused_by_its_field(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^urlPrefix: "):
        endpoint(entry(url))
    with pytest.raises(SettingsError, match=r"^extenders\[0\]\.urlPrefix: "):
        found(entry(url))


def test_the_only_entry_is_us_whatever_its_address() -> None:
    assert found(entry(OTHER), listen=("127.0.0.1", 1)) == OTHER


def test_of_several_the_one_with_the_port_asked_for_is_us() -> None:
    two = (entry(OURS, bind_verb="bind"), entry(OTHER))
    assert found(*two, listen=("127.0.0.1", 9000)) == OTHER
    assert found(*two, listen=("127.0.0.1", 32766)) == OURS


def test_of_several_the_one_with_our_path_is_us() -> None:
    moves = "http://127.0.0.1:4000/gpushare-scheduler/"
    assert found(entry(OTHER, bind_verb="bind"), entry(moves)) == moves


def test_of_several_without_our_address_the_one_that_binds_is_us() -> None:
    third = "http://127.0.0.1:1/third"
    assert found(entry(OTHER), entry(third, bind_verb="b")) == third
    assert found(entry(OTHER), entry(third, bind_verb="b"), listen=("127.0.0.1", 2)) == third


def test_two_entries_with_one_url_are_us_if_one_filters_some_pods_and_the_other_binds_all() -> None:
    filtering = entry(managed_resources=(MEM,), preempt_verb="preempt", http_timeout=10.0)
    binding = entry(f"{OURS}/", filter_verb="", bind_verb="bind", http_timeout=60.0)
    expected = replace(filtering, bind_verb="bind", http_timeout=60.0, binds_every_pod=True)
    for entries in ((filtering, binding), (binding, filtering)):
        assert our_entry(SchedulerConfig("v1", entries), None) == expected


@pytest.mark.parametrize(
    "binding",
    [
        entry(OTHER, filter_verb="", bind_verb="bind"),
        entry(filter_verb="", bind_verb="bind", managed_resources=(MEM,)),
    ],
    ids=["another URL", "resources of its own"],
)
def test_other_entries_that_bind_are_not_joined(binding: ExtenderConfig) -> None:
    entries = (entry(managed_resources=(MEM,)), binding)
    assert not our_entry(SchedulerConfig("v1", entries), None).binds_every_pod


def test_an_entry_that_only_prioritizes_is_not_us() -> None:
    voice = entry(OTHER, filter_verb="", prioritize_verb="p")
    assert found(voice, entry()) == OURS
    with pytest.raises(SettingsError, match="none has a filterVerb"):
        found(voice)
    with pytest.raises(SettingsError, match="none has a filterVerb"):
        found()


def test_an_entry_with_a_broken_address_is_not_us_where_there_is_another() -> None:
    assert found(entry("nonsense"), entry()) == OURS


def test_candidates_are_named() -> None:
    with pytest.raises(SettingsError) as error:
        found(entry(OTHER), entry("http://127.0.0.1:9001/more"))
    for part in ("extenders[0] (http://127.0.0.1:9000/other)", "extenders[1] (", "--listen"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"filter_verb": "a b"}, "filterVerb"),
        ({"prioritize_verb": "<x>"}, "prioritizeVerb"),
        ({"bind_verb": "?"}, "bindVerb"),
        ({"preempt_verb": "//"}, "preemptVerb"),
        ({"bind_verb": "filter"}, "each verb needs a path of its own"),
    ],
)
def test_a_verb_that_cannot_be_served_is_refused_by_its_field(fields: Any, field: str) -> None:
    with pytest.raises(SettingsError, match=rf"extenders\[0\].*{field}"):
        found(entry(**fields))


@pytest.mark.parametrize(
    ("url", "listen", "tls", "warning"),
    [
        (OURS, None, False, ""),
        (OURS, ("127.0.0.1", 32766), False, ""),
        (OURS, ("0.0.0.0", 32766), False, ""),  # noqa: S104  # compared, not listened at
        (OURS, ("localhost", 32766), False, ""),
        (OURS, ("10.0.0.1", 32766), False, "will call 127.0.0.1, but --listen says 10.0.0.1;"),
        (OURS, ("::1", 32766), False, "will call 127.0.0.1, but --listen says ::1;"),
        ("http://[::1]:1/x", ("::", 1), False, ""),
        ("http://localhost:1/x", ("::1", 1), False, ""),
        (OURS, ("127.0.0.1", 0), False, ""),
        (OURS, ("127.0.0.1", 4000), False, "will call port 32766, but --listen says 4000"),
        ("http://gpu.kube-system:1/x", None, False, "will call gpu.kube-system:1; without"),
        ("http://gpu.kube-system:1/x", ("10.0.0.1", 1), False, ""),
        ("http://10.0.0.2:1/x", ("127.0.0.1", 1), False, "10.0.0.2, but --listen says 127.0.0.1;"),
        ("https://127.0.0.1:1", None, True, ""),
        ("https://127.0.0.1:1", None, False, "by https, but there is no --tls-cert"),
        (OURS, None, True, "by plain http, but --tls-cert"),
    ],
)
def test_calls_that_would_not_arrive_are_warned_about_once(
    url: str, listen: tuple[str, int] | None, tls: bool, warning: str
) -> None:
    text = listening_warning(entry(url), listen, tls)
    assert warning in text
    assert bool(text) == bool(warning)
