"""One reading of the credentials, and the connections with these credentials.

Knows the official client, which reads kubeconfigs, credentials and certificates and configures the
connection pool; makes no calls. The first session imports the official client: the import takes as
long as the rest of a command.

The connections of urllib3 send a call in one piece, in time or not at all.

Tested in `tests/unit/kube/test_client_credentials.py` and `tests/unit/kube/test_client_in_time.py`.
"""

import logging
import math
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit
from urllib.request import getproxies

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context

from gpushare.addresses import is_loopback
from gpushare.errors import SettingsError
from gpushare.kube.responses import one_line
from gpushare.kube.trust import trust_as_kubernetes
from gpushare.logline import Line

if TYPE_CHECKING:
    from kubernetes.client import Configuration

log = logging.getLogger(__name__)

_SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# Seconds until the official client checks again whether the token has expired.
_TOKEN_CHECK_SECONDS = 5.0
# Seconds that calls wait for a new token at most: an exec plug-in may hang.
_TOKEN_WAIT_SECONDS = 5.0
# The files that urllib3 would read at each connection.
_FILES = ("ca_certs", "ca_cert_data", "cert_file", "key_file")
# The characters that stay unquoted in the path of an address.
_SAFE = "/:@!$&'()*+,;=~%"


class TooLateError(HTTPError):
    """A call was not sent: the send deadline is over."""

    def __init__(self) -> None:
        super().__init__("not sent: its time was over before it could be")


class SendDeadline(threading.local):
    """The deadline of the call of this thread, and whether any byte of the call was sent.

    `not_after`: monotonic seconds. There is one per thread, since urllib3 passes no further values
    to connections.
    """

    not_after: float = math.inf
    sent: bool = False


send_deadline = SendDeadline()


class OneWriteConnection(HTTPConnection):
    """A connection that sends head and body in one write, and keeps the socket.

    http.client sends head and body apart, and at each system call another thread may take the
    interpreter lock (and over TLS, each would be a separate record). http.client also drops the
    socket when the answer says `close`.

    The check of the deadline comes last, after the connect: a name server that does not answer,
    say, holds `connect` for 5 s, whatever the time-out.
    """

    live: socket.socket | None = None
    _parts: list[bytes] | None = None

    def connect(self) -> None:
        """Open the connection."""
        super().connect()
        self.live = self.sock

    def request(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 -- as the base class
        """Send a call. Raises TooLateError after the deadline."""
        self._parts = []
        try:
            super().request(*args, **options)
            message = b"".join(self._parts)
        finally:
            self._parts = None
        if self.sock is None:
            self.connect()
        if time.monotonic() > send_deadline.not_after:
            raise TooLateError
        send_deadline.sent = True
        self.send(message)

    def send(self, data: Any) -> None:  # noqa: ANN401 -- as the base class
        """Send bytes, or keep them until the call is complete."""
        if self._parts is None:
            super().send(data)
        else:
            self._parts.append(data)


class TlsConnection(OneWriteConnection, HTTPSConnection):
    """The same over TLS."""


_Headers = dict[str, str] | urllib3.HTTPHeaderDict

_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|[hms]))+|[0-9]+")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}


@dataclass(frozen=True, slots=True)
class ConnectionFlags:
    """kubectl's flags that name a cluster and an account; "" for those of the kubeconfig."""

    kubeconfig: str = ""
    """A file, or several joined by `:`; "" for the service account of this pod."""
    context: str = ""
    cluster: str = ""
    user: str = ""
    server: str = ""
    as_user: str = ""
    as_groups: tuple[str, ...] = ()
    request_timeout: float = 0.0
    """Seconds for each call in place of the caller's; 0 for those of the caller."""

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "ConnectionFlags":
        """Return the flags for values of `commandline.add_connection`, by names without dashes.

        Without a kubeconfig it is kubectl's usual one. Raises SettingsError for a wrong value.
        """

        def last(name: str) -> str:
            value = values.get(name) or ""
            return value if isinstance(value, str) else str([*cast("list[str]", value)][-1])

        groups = tuple(cast("list[str]", values.get("as_group") or ()))
        if groups and not last("as"):
            raise SettingsError("--as-group needs --as")
        duration = last("request_timeout")
        if duration and _DURATION.fullmatch(duration) is None:
            raise SettingsError(f"--request-timeout: {duration[:40]!r} is no duration such as 30s")
        parts = re.findall(r"([0-9.]+)(ms|[hms]|)", duration)
        return cls(
            kubeconfig=last("kubeconfig") or usual_kubeconfig(),
            context=last("context"),
            cluster=last("cluster"),
            user=last("user"),
            server=last("server"),
            as_user=last("as"),
            as_groups=groups,
            request_timeout=sum(float(number) * _SECONDS[unit] for number, unit in parts),
        )


class Session:
    """One reading of the credentials, and the connections with these credentials."""

    def __init__(self, settings: "Configuration", user_agent: str, flags: ConnectionFlags) -> None:
        from kubernetes.client.rest import RESTClientObject  # noqa: PLC0415 -- see above

        self._settings: Any = settings
        self._lock = threading.Lock()
        self._authorization = _authorization(settings.api_key.get("BearerToken"))
        self._checked = time.monotonic()
        self._check: threading.Thread | None = None
        host = urlsplit(settings.host)
        tls = host.scheme == "https"
        settings.proxy_ssl_context = context = _tls(settings) if tls else None
        manager = RESTClientObject(settings).pool_manager
        proxied = isinstance(manager, urllib3.ProxyManager) and host.scheme == "http"
        # A plain-http proxy wants the absolute URL; a server may live below a path (Rancher).
        self.prefix = settings.host.rstrip("/") if proxied else quote(host.path, _SAFE).rstrip("/")
        pool_options = {"ssl_context": context, **dict.fromkeys(_FILES)}
        self.pool = manager.connection_from_url(settings.host, pool_options)
        self.pool.ConnectionCls = TlsConnection if tls else OneWriteConnection
        address = host.netloc.rpartition("@")[2]
        self._fixed_headers: _Headers = {
            "Host": address if address.isascii() else address.encode("idna").decode(),
            "User-Agent": user_agent,
            "Accept": "application/json",
        }
        if flags.as_user:
            headers = urllib3.HTTPHeaderDict(self._fixed_headers)
            headers["Impersonate-User"] = flags.as_user
            for group in flags.as_groups:
                headers.add("Impersonate-Group", group)
            self._fixed_headers = headers

    @property
    def anonymous(self) -> bool:
        """Whether calls have no identity: there is no token and no certificate.

        kube-apiserver treats such calls as system:anonymous, and answers 403 and not 401.
        """
        return not (self._authorization or self._settings.cert_file)

    def headers(self, content_type: str | None) -> _Headers:
        """Return the headers of a call; ask the official client for a new token when one is due.

        In a cluster the official client reads the token file again each minute; an exec plug-in
        runs after the token has expired. After a failure, and while a plug-in does not answer, the
        old token stays, and the server answers 401 to a bad one.
        """
        with self._lock:
            now, before = time.monotonic(), self._check
            if now - self._checked > _TOKEN_CHECK_SECONDS:
                self._check = reading(before, self._check_token)
                if self._check is not before:
                    self._checked = now
            check, last_moment = self._check, self._checked + _TOKEN_WAIT_SECONDS
        if check is not None:
            check.join(max(last_moment - now, 0.0))
        authorization = self._authorization
        headers = self._fixed_headers.copy()
        if authorization:
            headers["Authorization"] = authorization
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers

    def _check_token(self) -> None:
        try:
            token = self._settings.get_api_key_with_prefix("BearerToken")
            self._authorization = _authorization(token) or self._authorization
        except Exception as error:  # a plug-in may raise anything
            log.warning(Line("credentials not refreshed", error=one_line(error)))
        with self._lock:
            self._checked = time.monotonic()


def reading(running: threading.Thread | None, read: Callable[[], None]) -> threading.Thread:
    """Return the thread that reads credentials: the running one, else a new one.

    An exec plug-in may hang, so no call reads by itself. After a fork no thread runs.
    """
    if running is not None and running.is_alive():
        return running
    thread = threading.Thread(target=read, name="credentials", daemon=True)
    thread.start()
    return thread


def load(flags: ConnectionFlags, pool_size: int, user_agent: str) -> Session:
    """Return a session with one cluster. Raises SettingsError with one line."""
    if flags.kubeconfig:
        source = _kubeconfig_name(flags.kubeconfig, flags.context)
    elif os.environ.get("KUBERNETES_SERVICE_HOST") and _SERVICE_ACCOUNT_TOKEN.exists():
        source = "the service account of this pod"
    else:
        raise SettingsError("no kubeconfig given, and no service account of a pod found here")
    try:
        return Session(_read_settings(flags, pool_size), user_agent, flags)
    except Exception as error:  # the loader raises KeyError, TypeError, YAML errors and more
        raise SettingsError(f"{source} cannot be used: {one_line(error)}") from error


def usual_kubeconfig() -> str:
    """Return the kubeconfig that kubectl would use; "" in a pod without one."""
    variable = os.environ.get("KUBECONFIG")
    usual = Path.home() / ".kube" / "config"
    if variable or os.environ.get("KUBERNETES_SERVICE_HOST") or not usual.exists():
        return variable or ""
    return str(usual)


def _authorization(token: str | None) -> str:
    """Return the value of the header; "" without a single token after `Bearer`: the token file is
    just being written, or has other text (which http.client would repeat in an error).
    """
    return token.strip() if token and len(token.split()) == 2 else ""


def _read_settings(flags: ConnectionFlags, pool_size: int) -> "Configuration":
    """Return the official client's settings for one cluster."""
    from kubernetes import config as kube_config  # noqa: PLC0415 -- see above
    from kubernetes.client import Configuration  # noqa: PLC0415
    from kubernetes.client.rest import should_bypass_proxies  # noqa: PLC0415

    settings = Configuration(host="")
    if flags.kubeconfig:
        _read_kubeconfig(flags, settings)
    elif flags.cluster or flags.user:
        raise ValueError("--cluster and --user need a kubeconfig")
    else:
        kube_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # neither
        settings.host = flags.server or settings.host
    if not urlsplit(settings.host).hostname:
        raise ValueError("its cluster names no server")
    settings.keep_alive = True
    settings.connection_pool_maxsize = pool_size
    if settings.proxy in getproxies().values() and is_loopback(
        urlsplit(settings.host).hostname or ""
    ):
        # Go never sends calls to this machine to a proxy of the environment; nor do we.
        settings.proxy = None
    used = settings.proxy and not should_bypass_proxies(settings.host, settings.no_proxy or "")
    if used and urlsplit(settings.proxy).scheme not in ("http", "https"):
        raise ValueError("its proxy is none for HTTP; SOCKS is not supported")
    return settings


def _read_kubeconfig(flags: ConnectionFlags, settings: Any) -> None:  # noqa: ANN401 -- see above
    """Fill the official client's settings by the kubeconfig.

    Raises ValueError if the program that the kubeconfig names for credentials is not there: the
    official client logs this and goes on as system:anonymous. A program that fails is another
    matter: it may have credentials later.
    """
    from kubernetes.config.kube_config import (  # noqa: PLC0415 -- as above
        KubeConfigLoader,
        KubeConfigMerger,
    )

    config = KubeConfigMerger(flags.kubeconfig).config  # type: ignore[no-untyped-call]  # as above
    context = flags.context or config["current-context"]
    named = config["contexts"].get_with_name(context)["context"]
    for kind in ("cluster", "user"):
        if name := getattr(flags, kind):
            config[f"{kind}s"].get_with_name(name)  # raises where there is none
            named.value[kind] = name
    if flags.server:
        config["clusters"].get_with_name(named["cluster"])["cluster"].value["server"] = flags.server
    loader = KubeConfigLoader(config, context, config_base_path=None)  # type: ignore[no-untyped-call]
    loader.load_and_set(settings)  # type: ignore[no-untyped-call]
    if settings.api_key or settings.cert_file:
        return
    user = config["users"].get_with_name(named["user"], safe=True) if "user" in named else None
    plug_in = user["user"].safe_get("exec") if user is not None and user["user"] else None
    if plug_in is not None and which(plug_in["command"]) is None:
        raise ValueError(f"its program for credentials is not found: {plug_in['command']}")


def _tls(settings: "Configuration") -> ssl.SSLContext:
    """Return a TLS context. Certificates are read once: the files may be deleted while in use.

    The official client writes certificates of the kubeconfig to temporary files; these are removed
    when any process that was forked later ends, or by a cleaner of /tmp.
    """
    needed = ssl.CERT_REQUIRED if settings.verify_ssl else ssl.CERT_NONE
    context = trust_as_kubernetes(create_urllib3_context(cert_reqs=needed))
    reading = "its CA"
    try:
        if settings.ssl_ca_cert:
            context.load_verify_locations(settings.ssl_ca_cert)
        else:
            context.load_default_certs()
        reading = "its client certificate or key"
        if settings.cert_file:
            # Without this, OpenSSL would ask on the terminal for the password of an encrypted key.
            context.load_cert_chain(settings.cert_file, settings.key_file, password="")
    except OSError as error:  # OpenSSL's text does not name the file
        raise ValueError(f"{reading}: {error}") from error
    return context


def _kubeconfig_name(kubeconfig: str, context: str) -> str:
    """Return how to name the kubeconfig in a message. Raises SettingsError if none can be seen."""
    files = [Path(name) for name in kubeconfig.split(os.pathsep) if name]
    for file in files:
        try:
            # From Python 3.14 on `Path.exists` returns False for an unreadable folder.
            file.expanduser().stat()
            break
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, RuntimeError) as error:  # no right to the folder; no such home
            raise SettingsError(
                f"kubeconfig {kubeconfig} cannot be used: {one_line(error)}"
            ) from error
    else:
        raise SettingsError(f"kubeconfig {kubeconfig} does not exist")
    return f"kubeconfig {kubeconfig}" + (f" with context {context!r}" if context else "")
