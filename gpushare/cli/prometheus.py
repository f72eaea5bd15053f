"""Ask a Prometheus, or what answers like one, by its HTTP API, for the GPU-hours of `report`.

Standard library only. What a Prometheus answers is not trusted: an answer is bounded, and what is
no number is left out. Knows no prices and no output.
"""

import http.client
import json
import math
import re
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn
from urllib.parse import urlencode, urlsplit

from gpushare.addresses import is_loopback
from gpushare.cli.facts import elements, mapping, text
from gpushare.cli.parsers import BY_NAMESPACE, BY_WORKLOAD
from gpushare.errors import MessageError, SettingsError

_PATIENCE = 120.0
"""Seconds; Prometheus itself gives a query two minutes."""
_LONGEST = 64 * 2**20
"""Bytes of an answer."""
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,4})([mhdw])", re.ASCII)
_MOST_DAYS = 400

Sample = tuple[Mapping[str, str], float]
"""Labels and value."""


def seconds_of(duration: str, flag: str) -> int:
    """Return the seconds of a duration such as 7d. Raises SettingsError."""
    match = _DURATION.fullmatch(duration)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 5 * 60 <= seconds <= _MOST_DAYS * 86_400:
        raise SettingsError(
            f"{flag}: {duration[:40]!r} is not from 5m to {_MOST_DAYS}d, as in 90m, 12h, 7d or 4w"
        )
    return seconds


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a token is for the address that the user named."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class Prometheus:
    """One Prometheus. token: of the header Authorization, or "". Raises SettingsError for another
    URL than of HTTP.
    """

    url: str
    token: str = ""
    warnings: list[str] = field(default_factory=list)
    """Warnings so far, each once."""

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_http = False
        if not is_http:
            raise SettingsError(f"--prometheus: {self.url[:200]!r} is not http://HOST:PORT")

    def query(self, expression: str) -> list[Sample]:
        """Return the samples of an expression now, without values that are no finite number.

        Raises MessageError that says what to do.
        """
        document = self._post("/api/v1/query", {"query": expression})
        for warning in map(text, elements(document.get("warnings"))):
            self.warn(warning)
        answer = mapping(document.get("data"))
        if document.get("status") != "success" or answer.get("resultType") != "vector":
            self._fail("is no answer of Prometheus' API: is it the address of a Prometheus?")
        return [*_samples(answer)]

    def warn(self, warning: str) -> None:
        """Keep a warning for the user."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    def _post(self, path: str, fields: Mapping[str, str]) -> Mapping[str, object]:
        request = urllib.request.Request(  # noqa: S310 -- the scheme was checked
            f"{self.url.rstrip('/')}{path}", data=urlencode(fields).encode()
        )
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        handlers: list[type | urllib.request.BaseHandler] = [_NoRedirect]
        if is_loopback(urlsplit(self.url).hostname or ""):
            # As in kube/session.py: no call to this machine, nor its token, is for a proxy.
            handlers.append(urllib.request.ProxyHandler({}))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=_PATIENCE) as answer:
                body = answer.read(_LONGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._fail(
                f"does not answer ({error}): name what Prometheus listens at, or forward it with"
                " kubectl port-forward"
            )
        if len(body) > _LONGEST:
            self._fail("answers more than 64 MiB: ask for one namespace with -n")
        return _object(body)

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        try:
            refusal = _object(error.read(2**16))
        except (OSError, http.client.HTTPException):
            refusal = {}
        message, status = text(refusal.get("error"))[:300], error.code
        advice = "is it the address of a Prometheus?"
        if status in (401, 403):
            advice = "name a file with a token by --token-file"
        elif status in (422, 503) or text(refusal.get("errorType")) in ("execution", "timeout"):
            advice = "ask for a shorter time with --since, or for one namespace with -n"
        elif status in (301, 302, 303, 307, 308):
            message = f"redirects to {text(error.headers.get('Location'))[:200]}"
            advice = "name that address"
        self._fail(f"refuses the query: {status} {message or error.reason}; {advice}")

    def _fail(self, what: str) -> NoReturn:
        raise MessageError(f"{self.url} {what}")


def _object(body: bytes) -> Mapping[str, object]:
    """Return the JSON object; {} for another text."""
    try:
        return mapping(json.loads(body))
    except (ValueError, RecursionError):
        return {}


def _samples(answer: Mapping[str, object]) -> Iterator[Sample]:
    for sample in map(mapping, elements(answer.get("result"))):
        labels = {str(key): text(value) for key, value in mapping(sample.get("metric")).items()}
        pair = elements(sample.get("value"))
        try:
            value = float(text(pair[1]))
        except (IndexError, ValueError):
            continue
        if math.isfinite(value):
            yield labels, value


_HOUR = 3600.0
_COUNTERS = {
    BY_NAMESPACE: ("gpushare_namespace", "namespaces"),
    BY_WORKLOAD: ("gpushare_workload", "pods"),
}
"""By --by: the beginning of the counters, the least --metrics-detail."""
LABELS = {BY_NAMESPACE: ("namespace",), BY_WORKLOAD: ("namespace", "workload")}
"""By --by: the labels of a row."""
USED = "gpushare_device_plugin_container_memory_used_bytes"
HELD = "gpushare_pod_memory_allocated_bytes"
"""The extender's metric of the 500 pods that hold most, with their workloads."""
NAMELESS = "whose workloads the extender does not tell: it names the 500 pods that hold most"
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,127}")
_VALUE = re.compile(r"[^\ud800-\udfff]{1,1024}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Names = tuple[str, ...]


@dataclass(slots=True)
class HolderHours:
    """The GPU-hours of a namespace or a workload."""

    by_model: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Promised, by model."""
    compute: float = 0.0
    used: float | None = None
    """None if nothing measured it."""

    @property
    def promised(self) -> float:
        """The sum of all models."""
        return sum(self.by_model.values())


@dataclass(frozen=True, slots=True)
class CostReport:
    """The answers of Prometheus."""

    rows: Mapping[Names, HolderHours]
    idle: Mapping[str, float]
    """Idle GPU-hours by model."""


def check_namespace(name: str) -> None:
    """Raise SettingsError if the value of the flag --namespace is no name of a namespace."""
    if not _NAMESPACE.fullmatch(name):
        raise SettingsError(f"--namespace: {name[:80]!r} is no name of a namespace")


def matchers_of(words: Iterable[str]) -> dict[str, str]:
    """Return labels by name of words such as cluster=prod. Raises SettingsError."""
    matchers = {}
    for word in words:
        name, _, value = word.partition("=")
        if not _LABEL.fullmatch(name) or not _VALUE.fullmatch(value):
            raise SettingsError(f"--match: {word[:80]!r} is no LABEL=VALUE")
        if name == "namespace":
            raise SettingsError("--match: the flag for a namespace is -n")
        matchers[name] = value
    return matchers


@dataclass(frozen=True, slots=True)
class Window:
    """The series of one cluster in a Prometheus, over a time until now."""

    prometheus: Prometheus
    seconds: int
    matchers: Mapping[str, str] = field(default_factory=dict)
    """Labels that all series have."""

    def now(self, metric: str, **labels: str) -> str:
        """Return the selector of the metric; a label "" chooses nothing."""
        pairs = {**self.matchers, **labels}
        # PromQL escapes as JSON does, but refuses JSON's pairs of surrogates.
        chosen = (
            f"{name}={json.dumps(value, ensure_ascii=False)}"
            for name, value in pairs.items()
            if value
        )
        return f"{metric}{{{','.join(chosen)}}}"

    def over(self, metric: str, **labels: str) -> str:
        """Return the selector of the metric over all of the time."""
        return f"{self.now(metric, **labels)}[{self.seconds}s]"

    def lacks(self, metric: str, advice: str) -> MessageError:
        """Return the error about a metric that is not there."""
        return MessageError(f"{self.prometheus.url} has no {metric} in this time: {advice}")

    def namespaces(self, metric: str) -> set[str]:
        """Return the namespaces that the metric had."""
        expression = f"group by (namespace) (last_over_time({self.over(metric)}))"
        names = {labels.get("namespace", "") for labels, _ in self.prometheus.query(expression)}
        return {name for name in names if _NAMESPACE.fullmatch(name)}

    def workloads(self, namespace: str) -> dict[str, str]:
        """Return the workload of each pod of the namespace that held GPU memory, as far as the
        extender says.
        """
        metric = self.over(HELD, namespace=namespace)
        samples = self.prometheus.query(f"group by (pod, workload) (last_over_time({metric}))")
        return {
            labels.get("pod", ""): labels["workload"]
            for labels, _ in samples
            if labels.get("workload")
        }


def read_report(window: Window, by: str, namespace: str) -> CostReport:
    """Return the GPU-hours. Raises MessageError."""
    expression = f"sum by (model, state) (increase({window.over('gpushare_gpu_seconds_total')}))"
    samples = list(window.prometheus.query(expression))
    idle = {
        labels.get("model", ""): value / _HOUR
        for labels, value in samples
        if labels.get("state") == "idle"
    }
    if not samples:
        raise window.lacks(
            "gpushare_gpu_seconds_total",
            "have it scrape the port health of the extender (docs/alerts.md), of this release or a"
            " later one",
        )
    (beginning, detail), names = _COUNTERS[by], LABELS[by]
    grouped = ", ".join((*names, "model"))
    rows = defaultdict[Names, HolderHours](HolderHours)
    for kind in ("gpu_seconds", "gpu_compute_seconds"):
        counter = window.over(f"{beginning}_{kind}_total", namespace=namespace)
        for labels, value in window.prometheus.query(f"sum by ({grouped}) (increase({counter}))"):
            row = rows[tuple(labels.get(name, "") for name in names)]
            if kind == "gpu_seconds":
                row.by_model[labels.get("model", "")] += value / _HOUR
            else:
                row.compute += value / _HOUR
    if not rows and not namespace:
        raise window.lacks(
            f"{beginning}_gpu_seconds_total",
            f"no pod held a GPU, or the extender lacks --metrics-detail {detail}",
        )
    _add_used(window, rows, is_by_workload=by == BY_WORKLOAD)
    return CostReport(rows, idle)


def _add_used(window: Window, rows: dict[Names, HolderHours], *, is_by_workload: bool) -> None:
    """Add what containers used, one namespace after the other, so that no answer is too large."""
    step = 60 if window.seconds <= 86_400 else 300
    pods = ", pod" if is_by_workload else ""
    for namespace in sorted({names[0] for names in rows}):
        if not _NAMESPACE.fullmatch(namespace):  # the sum of the others
            continue
        shares = (
            "max by (namespace, pod, container, uuid)"
            f" ({window.now(USED, namespace=namespace)}) / on (uuid) group_left ()"
            f" max by (uuid) ({window.now('gpushare_device_plugin_device_memory_bytes')})"
        )
        expression = (
            f"sum by (namespace{pods})"
            f" (sum_over_time(({shares})[{window.seconds}s:{step}s])) * {step}"
        )
        workloads = window.workloads(namespace) if is_by_workload else {}
        nameless = list[float]()
        for labels, value in window.prometheus.query(expression):
            pod = labels.get("pod", "")
            names = (namespace, workloads.get(pod, f"Pod/{pod}")) if pods else (namespace,)
            if names in rows:
                rows[names].used = (rows[names].used or 0.0) + value / _HOUR
            elif pod not in workloads:
                nameless.append(value / _HOUR)
        if nameless:
            window.prometheus.warn(
                f"{namespace}: USED lacks {sum(nameless):.1f} GPU-hours of {len(nameless)} pods"
                f" {NAMELESS}"
            )
