"""Checks of the address that kube-scheduler calls, and of its TLS.

Pure.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from gpushare.doctor.checks.scheduler_file import entry_of
from gpushare.doctor.facts import Certificate, Facts, Unread
from gpushare.doctor.finding import Finding, fail, ok, skip, warn
from gpushare.wire.scheduler.config import ExtenderConfig, TlsConfig
from gpushare.wire.scheduler.entry import endpoint

_SOON = 30 * 86400.0
"""Seconds before its end from which a certificate should be renewed."""
_NEEDS_POST = 405
_NO_PATH = 404


def check_address(facts: Facts) -> Iterator[Finding]:
    """Yield findings about urlPrefix, TLS and certificates."""
    entry = entry_of(facts)
    if entry is not None:
        yield _address(entry, facts.route)
        yield _tls(entry)
    for certificate in facts.certificates:
        yield _certificate(certificate, facts.now)


def _address(entry: ExtenderConfig, route: int | Unread | None) -> Finding:
    name, place = "extender-address", endpoint(entry)
    if isinstance(route, Unread):
        return route.finding(name)
    if route == _NO_PATH:
        return fail(
            name,
            f"{entry.url_prefix}/{entry.filter_verb}: somebody listens, but not to that path",
            "start the extender with the same file: gpushare serve --scheduler-config",
        )
    if route is not None and route != _NEEDS_POST:
        return fail(
            name,
            f"{entry.url_prefix}/{entry.filter_verb}: a GET was answered by {route}, an extender"
            f" says {_NEEDS_POST}",
            "look who listens there",
        )
    if place.host.endswith((".svc", ".cluster.local")) or ".svc." in place.host:
        return warn(
            name,
            f"{place.host} is a name of the cluster's DNS, which a kube-scheduler in the host"
            " network does not ask",
            "use 127.0.0.1 or the Service's cluster IP, or dnsPolicy ClusterFirstWithHostNet",
        )
    if route is None:
        return skip(
            name,
            f"{place.host}:{place.port} was not called from here",
            "" if place.https else "run this where kube-scheduler runs, with --extender",
        )
    return ok(name, f"{entry.url_prefix} answers, and knows the verb {entry.filter_verb}")


def _tls(entry: ExtenderConfig) -> Finding:
    place = endpoint(entry)
    if not place.https:
        if place.loopback:
            return ok("tls", "plain http within one machine")
        return warn(
            "tls",
            f"plain http to {place.host}: whoever reaches that port can bind pods",
            "use 127.0.0.1, or mutual TLS (--tls-cert, --tls-key, --tls-client-ca,"
            " --tls-client-names)",
        )
    tls = entry.tls or TlsConfig()
    if not (tls.cert_file or tls.cert_data):
        return fail(
            "tls",
            "tlsConfig names no client certificate, and the extender answers nobody without one",
            "give tlsConfig.certFile and keyFile",
        )
    if tls.insecure or (entry.enable_https and not tls.has_ca):
        return warn(
            "tls",
            "https without a CA: kube-scheduler does not verify who answers",
            "give tlsConfig.caFile (and serverName where urlPrefix names an IP address)",
        )
    if not tls.has_ca:
        return warn(
            "tls",
            "https without a CA or enableHTTPS: kube-scheduler believes those that its image knows",
            "give tlsConfig.caFile, unless one of those has signed the extender's certificate",
        )
    return ok("tls", "https, verified by a CA, with a client certificate")


def _certificate(certificate: Certificate, now: float) -> Finding:
    if certificate.broken:
        return fail("certificates", f"{certificate.path}: {certificate.broken}", "give a PEM file")
    day = datetime.fromtimestamp(certificate.until, UTC).strftime("%Y-%m-%d")
    if certificate.until <= now:
        return fail("certificates", f"{certificate.path} ended on {day}", "renew it")
    if certificate.until < now + _SOON:
        return warn("certificates", f"{certificate.path} ends on {day}", "renew it")
    return ok("certificates", f"{certificate.path} is good until {day}")
