"""Checks of the extender: address, TLS, certificates, answers, readiness, kube-scheduler's calls.

Pure.

Tested in `tests/unit/doctor/test_checks.py`.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from gpushare import __version__
from gpushare.doctor.checks.pods import is_left_out
from gpushare.doctor.checks.scheduler_file import entry_of
from gpushare.doctor.facts import ExtenderAnswers, Facts, Unread
from gpushare.doctor.finding import Check, Finding, count
from gpushare.wire.metrics import ranking_policies, total
from gpushare.wire.scheduler.config import ExtenderConfig, TlsConfig
from gpushare.wire.scheduler.entry import endpoint

_SOON = 30 * 86400.0
"""Seconds before the end of a certificate with a warning to renew."""
_NEEDS_POST = 405
_NO_PATH = 404

_PENDING_GRACE = 60.0
"""Seconds a GPU pod may wait without a filter call."""

_RETRIED = 300.0
"""Seconds within which kube-scheduler retries every pending pod."""

_OK = 200


def check_address(facts: Facts) -> Iterator[Finding]:
    """Yield findings about urlPrefix, TLS and certificates."""
    entry = entry_of(facts)
    if entry is not None:
        yield _address(entry, facts.route)
        yield _tls(entry)
    for certificate in facts.certificates:
        day = datetime.fromtimestamp(certificate.until, UTC).strftime("%Y-%m-%d")
        if certificate.broken:
            problem = f"{certificate.path}: {certificate.broken}"
            yield Check("certificates").fail(problem, "give a PEM file")
        elif certificate.until <= facts.now:
            yield Check("certificates").fail(f"{certificate.path} ended on {day}", "renew it")
        elif certificate.until < facts.now + _SOON:
            yield Check("certificates").warn(f"{certificate.path} ends on {day}", "renew it")
        else:
            yield Check("certificates").ok(f"{certificate.path} is good until {day}")


def _address(entry: ExtenderConfig, route: int | Unread | None) -> Finding:
    name, place = Check("extender-address"), endpoint(entry)
    if isinstance(route, Unread):
        return route.finding(name)
    if route == _NO_PATH:
        return name.fail(
            f"{entry.url_prefix}/{entry.filter_verb}: somebody listens, but not to that path",
            "start the extender with the same file: gpushare serve --scheduler-config",
        )
    if route is not None and route != _NEEDS_POST:
        return name.fail(
            f"{entry.url_prefix}/{entry.filter_verb}: a GET was answered by {route}, an extender"
            f" says {_NEEDS_POST}",
            "look who listens there",
        )
    if place.host.endswith((".svc", ".cluster.local")) or ".svc." in place.host:
        return name.warn(
            f"{place.host} is a name of the cluster's DNS, which a kube-scheduler in the host"
            " network does not ask",
            "use 127.0.0.1 or the Service's cluster IP, or dnsPolicy ClusterFirstWithHostNet",
        )
    if route is None:
        return name.skip(
            f"{place.host}:{place.port} was not called from here",
            "" if place.https else "run this where kube-scheduler runs, with --extender",
        )
    return name.ok(f"{entry.url_prefix} answers, and knows the verb {entry.filter_verb}")


def _tls(entry: ExtenderConfig) -> Finding:
    place = endpoint(entry)
    if not place.https:
        if place.loopback:
            return Check("tls").ok("plain http within one machine")
        return Check("tls").warn(
            f"plain http to {place.host}: whoever reaches that port can bind pods",
            "use 127.0.0.1, or mutual TLS (--tls-cert, --tls-key, --tls-client-ca,"
            " --tls-client-names)",
        )
    tls = entry.tls or TlsConfig()
    if not (tls.cert_file or tls.cert_data):
        return Check("tls").fail(
            "tlsConfig names no client certificate, and the extender answers nobody without one",
            "give tlsConfig.certFile and keyFile",
        )
    if tls.insecure or (entry.enable_https and not tls.has_ca):
        return Check("tls").warn(
            "https without a CA: kube-scheduler does not verify who answers",
            "give tlsConfig.caFile (and serverName where urlPrefix names an IP address)",
        )
    if not tls.has_ca:
        return Check("tls").warn(
            "https without a CA or enableHTTPS: kube-scheduler believes those that its image knows",
            "give tlsConfig.caFile, unless one of those has signed the extender's certificate",
        )
    return Check("tls").ok("https, verified by a CA, with a client certificate")


def check_extender(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the process at --extender."""
    answers = facts.extender
    if answers is None:
        yield Check("extender").skip(
            "not asked, so whether kube-scheduler calls it is not known",
            "give --extender http://HOST:PORT, its health listener (kubectl port-forward helps)",
        )
        return
    if isinstance(answers, Unread):
        yield answers.finding("extender")
        return
    yield _alive(answers)
    yield _version(answers)
    # The policy of each resource, and the figures of the last trial of `auto`.
    for resource, policy in ranking_policies(answers.samples).items():
        results = [
            f"{name} {allocated:.1f}" for name, allocated in policy.allocated_percent.items()
        ]
        last = f"; % of the memory allocated in the last trial: {', '.join(results)}" * bool(
            results
        )
        yield Check("policy").ok(f"pods of {resource} are ranked by {policy}{last}")
    yield _calls(answers, facts)


def _alive(answers: ExtenderAnswers) -> Finding:
    if answers.live != _OK:
        return Check("extender").fail(f"/livez says {answers.live}", "restart it, and keep its log")
    if _stands_by(answers):
        return Check("extender").warn(
            "does not lead, and is well otherwise",
            "ask the one that leads; if none of them does, look into their logs",
        )
    if answers.ready != _OK:
        problem = "; ".join(_failing(answers)) or f"/readyz says {answers.ready}"
        return Check("extender").fail(
            f"is not ready: {problem}", "look into its log; missing rights are the usual reason"
        )
    return Check("extender").ok("alive and ready")


def _failing(answers: ExtenderAnswers) -> list[str]:
    return [line[3:] for line in answers.ready_text.splitlines() if line.startswith("[-]")]


def _stands_by(answers: ExtenderAnswers) -> bool:
    """Return whether another process leads, and nothing else keeps this one from being ready."""
    failing = _failing(answers)
    return bool(failing) and all(line.startswith("leadership ") for line in failing)


def _version(answers: ExtenderAnswers) -> Finding:
    for sample in answers.samples:
        match = re.fullmatch(r'gpushare_build_info\{version="([^"]{1,64})"\}', sample)
        if match and match[1] != __version__:
            return Check("extender-version").warn(
                f"it is {match[1]}, this command is {__version__}",
                "use the command of the same version, or update the extender",
            )
        if match:
            return Check("extender-version").ok(match[1])
    return Check("extender-version").warn(
        "its metrics name no version: is it another program?",
        "give --extender the address of its --health-listen",
    )


def _calls(answers: ExtenderAnswers, facts: Facts) -> Finding:
    name = Check("filter-calls")
    if _stands_by(answers):
        return name.skip("nobody needs to call one that does not lead", "ask the one that leads")
    pending = [pod for pod in facts.known_pods.gpu if not (pod.node or pod.gated)]
    wait_seconds = total(answers.samples, "gpushare_pending_without_call_seconds") or 0.0
    todo = (
        "look whether kube-scheduler runs with the file (its flag --config), reaches urlPrefix,"
        " and manages the resource"
    )
    if wait_seconds > _PENDING_GRACE:
        problem = (
            f"a GPU pod that has room has been waiting for {wait_seconds:.0f} s without a filter"
            " call"
        )
        if wait_seconds > _RETRIED:
            return name.fail(problem, todo)
        return name.warn(problem, f"if that goes on for {_RETRIED / 60:.0f} minutes, {todo}")
    calls = total(answers.samples, "gpushare_requests_total", verb="filter") or 0.0
    if calls:
        return name.ok(f"{count(int(calls), 'filter call')} since the extender started")
    pending = [pod for pod in pending if not is_left_out(pod)]
    if any(pod.age > _PENDING_GRACE for pod in pending):
        waits = f"{count(len(pending), 'GPU pod')} waiting"
        return name.fail(f"none since the extender started, with {waits}", todo)
    return name.warn(
        "none since the extender started; no GPU pod has been waiting for one",
        "create a GPU pod and run this again",
    )
