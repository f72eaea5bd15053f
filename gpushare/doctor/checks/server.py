"""Checks of the API server: it must answer and be new enough, and the clocks must agree.

Pure.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator

from gpushare.doctor.facts import ApiServer, ExtenderSeen, Facts, Unread
from gpushare.doctor.finding import Finding, fail, ok, skip, warn

OLDEST_MINOR = 23
"""The first API server that honours the uid of a Binding (kubernetes #105261, #105913)."""

_LARGEST_SKEW = 5.0
"""Seconds."""


def check_server(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the API server and the clocks."""
    api = facts.api
    if isinstance(api, Unread):
        yield api.finding("api-server")
    else:
        yield ok("api-server", f"answers, {api.git_version}")
        yield _version(api)
    yield _clock(facts)


def _version(api: ApiServer) -> Finding:
    if not api.minor:
        return skip("api-version", f"{api.git_version!r} is no version we can read")
    if api.minor < OLDEST_MINOR:
        return fail(
            "api-version",
            f"1.{api.minor} ignores the uid of a Binding, so a pod created again under its name can"
            " be bound with the devices of the old one",
            f"use an API server from 1.{OLDEST_MINOR} on (the scheduler may stay at 1.22)",
        )
    return ok("api-version", f"1.{api.minor} honours the uid of a Binding")


def _clock(facts: Facts) -> Finding:
    skews = {}
    if isinstance(facts.api, ApiServer):
        skews["the API server"] = facts.api.ahead
    if isinstance(facts.extender, ExtenderSeen):
        skews["the extender"] = facts.extender.ahead
    clocks = {who: ahead for who, ahead in skews.items() if ahead is not None}
    if not clocks:
        return skip("clock", "nobody said what time it is")
    far = [
        f"{who} is {abs(ahead):.0f} s {'ahead' if ahead > 0 else 'behind'}"
        for who, ahead in clocks.items()
        if abs(ahead) > _LARGEST_SKEW
    ]
    if far:
        return warn(
            "clock",
            f"compared with this machine, {', and '.join(far)}",
            "set the clocks by NTP: device plug-ins serve pods in the order of their assume times",
        )
    return ok(
        "clock", f"{' and '.join(clocks)} and this machine agree within {_LARGEST_SKEW:.0f} s"
    )
