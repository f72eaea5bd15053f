"""The entry of kube-scheduler's configuration that is this extender, and its address.

Knows decoded configurations and URLs; not who listens, and not where settings come from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from gpushare.addresses import is_loopback
from gpushare.errors import SettingsError
from gpushare.wire.scheduler.config import ExtenderConfig, SchedulerConfig

PREFIX = "/gpushare-scheduler"
DEFAULT_LISTEN = ("127.0.0.1", 32766)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where kube-scheduler calls: host (no brackets) and port, and the path before the verb."""

    host: str
    port: int
    path: str
    https: bool

    @property
    def loopback(self) -> bool:
        """Whether the calls stay on one machine."""
        return is_loopback(self.host)

    @property
    def listen(self) -> str:
        """HOST:PORT to listen at; localhost is IPv4, to which Go comes back when IPv6 refuses."""
        host = "127.0.0.1" if self.host == "localhost" else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def endpoint(entry: ExtenderConfig) -> Endpoint:
    """Return the parts of the entry's urlPrefix. Raises SettingsError.

    kube-scheduler checks none of it: it puts "/" and the verb behind the text and calls that.
    """
    try:
        url = urlsplit(entry.url_prefix)
        port = url.port
    except ValueError as error:
        raise SettingsError(f"urlPrefix: {entry.url_prefix[:200]!r}: {error}") from error
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise SettingsError(f"urlPrefix: {entry.url_prefix[:200]!r} is not http://HOST:PORT/PATH")
    if url.query or url.fragment or _PATH.fullmatch(url.path) is None:
        raise SettingsError(
            f"urlPrefix: {entry.url_prefix[:200]!r}: only a plain path can be served"
        )
    https = url.scheme == "https"
    default = 443 if https else 80
    return Endpoint(url.hostname, port if port else default, url.path.rstrip("/"), https)


def our_entry(config: SchedulerConfig, listen: tuple[str, int] | None) -> ExtenderConfig:
    """Return the entry that is this extender.

    Raises SettingsError, naming the candidates if unclear, and if its routes cannot be served.

    listen: the (host, port) asked for, if any. Of several entries ours is the one whose urlPrefix
    has that port (without one: our path, /gpushare-scheduler), else the one with a bindVerb. Of two
    with one URL, of which one has the filterVerb and the other the bindVerb and no
    managedResources, both are ours; kube-scheduler takes no resource twice.
    """
    named = [(f"extenders[{i}]", entry) for i, entry in enumerate(config.extenders)]
    able = [item for item in named if item[1].filter_verb or item[1].bind_verb]
    if not able:
        raise SettingsError("extenders: none has a filterVerb or a bindVerb, so none can be us")
    # A key that does not tell the entries apart is passed over.
    candidates = [item for item in able if _is_at(item[1], listen)] or able
    candidates = [item for item in candidates if item[1].bind_verb] or candidates
    if len(candidates) > 1:
        names = ", ".join(f"{where} ({entry.url_prefix[:80]})" for where, entry in candidates)
        raise SettingsError(
            f"{names}: more than one could be this extender; give --listen the port of its"
            " urlPrefix, or it alone a bindVerb"
        )
    where, entry = candidates[0]
    entry = _joined(entry, config.extenders)
    try:
        endpoint(entry)
    except SettingsError as error:
        raise SettingsError(f"{where}.{error}") from error
    verbs = {
        "filterVerb": entry.filter_verb,
        "prioritizeVerb": entry.prioritize_verb,
        "bindVerb": entry.bind_verb,
        "preemptVerb": entry.preempt_verb,
    }
    for field, verb in verbs.items():
        if _PATH.fullmatch(f"/{verb}") is None:
            raise SettingsError(f"{where}.{field}: {verb[:80]!r} cannot be served as a path")
    served = [verb for verb in verbs.values() if verb]
    if len(set(served)) < len(served):
        raise SettingsError(f"{where}: each verb needs a path of its own")
    return entry


def _joined(binder: ExtenderConfig, entries: Sequence[ExtenderConfig]) -> ExtenderConfig:
    """Return the entry with the filterVerb of the binder's URL as if it had its bindVerb, too."""
    if binder.filter_verb or not binder.bind_verb or binder.managed_resources:
        return binder
    url = binder.url_prefix.rstrip("/")
    filtering = [e for e in entries if e.filter_verb and e.url_prefix.rstrip("/") == url]
    if len(filtering) != 1:
        return binder
    return replace(
        filtering[0],
        bind_verb=binder.bind_verb,
        http_timeout=binder.http_timeout,
        ignorable=binder.ignorable or filtering[0].ignorable,
        binds_every_pod=True,
    )


def _is_at(entry: ExtenderConfig, listen: tuple[str, int] | None) -> bool:
    try:
        place = endpoint(entry)
    except SettingsError:
        return False
    return place.path == PREFIX if listen is None else place.port == listen[1]


def listening_warning(entry: ExtenderConfig, listen: tuple[str, int] | None, tls: bool) -> str:
    """Return why the scheduler's calls may not arrive, in one line; "" if nothing looks wrong.

    listen: the (host, port) asked for, None for the default; tls: whether we speak TLS.
    """
    place = endpoint(entry)
    if listen is None and not place.loopback:
        return (
            f"urlPrefix: kube-scheduler will call {place.host}:{place.port}; without --listen only"
            f" {DEFAULT_LISTEN[0]}:{DEFAULT_LISTEN[1]} is listened at"
        )
    if listen is not None and listen[1] not in (0, place.port):
        return (
            f"urlPrefix: kube-scheduler will call port {place.port}, but --listen says {listen[1]};"
            " right only if something forwards the one to the other"
        )
    if listen is not None and not _can_reach(listen[0], place):
        return (
            f"urlPrefix: kube-scheduler will call {place.host}, but --listen says {listen[0]};"
            " right only if something forwards the one to the other"
        )
    if place.https != tls:
        return (
            "urlPrefix: kube-scheduler will call by https, but there is no --tls-cert"
            if place.https
            else "urlPrefix: kube-scheduler will call by plain http, but --tls-cert asks for TLS"
        )
    return ""


def _can_reach(host: str, place: Endpoint) -> bool:
    """Return whether calls of the endpoint can reach a listener at the host."""
    if host in ("0.0.0.0", "::"):  # noqa: S104  # compared, not listened at
        return True
    if place.loopback and "localhost" not in (host, place.host):
        return host == place.host
    return Endpoint(host, place.port, "", place.https).loopback == place.loopback


_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?", re.ASCII)
