"""One reading of the credentials, and the connections that are opened with them.

Knows the official client, which reads kubeconfigs, credentials and certificates and configures the
connection pool; makes no calls itself.
"""

import ipaddress
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import urllib3
from kubernetes import config as kube_config
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject

from gpushare.errors import SettingsError
from gpushare.kube.connection import PlainConnection, TlsConnection
from gpushare.kube.refusal import one_line

log = logging.getLogger(__name__)

_SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
# How long a token is used before the official client is asked again whether it has expired.
_TOKEN_CHECK_SECONDS = 5.0


class Session:
    """One reading of the credentials, and the connections that were opened with them."""

    def __init__(self, settings: Configuration, user_agent: str) -> None:
        self._settings: Any = settings
        self._lock = threading.Lock()
        self._authorization = _authorization(settings.api_key.get("BearerToken"))
        self._checked = time.monotonic()
        host = urlsplit(settings.host)
        manager = RESTClientObject(settings).pool_manager
        proxied = isinstance(manager, urllib3.ProxyManager) and host.scheme == "http"
        # A plain-http proxy wants the absolute URL; a server may live below a path (Rancher).
        self.prefix = settings.host.rstrip("/") if proxied else host.path.rstrip("/")
        self.pool = manager.connection_from_url(settings.host)
        tls = host.scheme == "https"
        self.pool.ConnectionCls = TlsConnection if tls else PlainConnection
        self._fixed = {"User-Agent": user_agent, "Accept": "application/json"}
        if proxied:
            self._fixed["Host"] = host.netloc

    @property
    def anonymous(self) -> bool:
        """Whether its calls name nobody: no token and no certificate could be read, or there is
        none. kube-apiserver takes them for system:anonymous, so it says 403 and not 401.
        """
        return not (self._authorization or self._settings.cert_file)

    def headers(self, content_type: str | None) -> dict[str, str]:
        """Return the headers of a call; asks the official client for a new token when one is due.

        In a cluster it reads the token file again each minute; an exec plug-in runs when its token
        has expired. Should that fail, the old token is used, and the server's 401 tells.
        """
        with self._lock:
            if time.monotonic() - self._checked > _TOKEN_CHECK_SECONDS:
                try:
                    token = self._settings.get_api_key_with_prefix("BearerToken")
                    self._authorization = _authorization(token) or self._authorization
                except Exception as error:  # a plug-in may raise anything
                    log.warning("credentials not refreshed error=%s", one_line(error))
                self._checked = time.monotonic()
            authorization = self._authorization
        headers = dict(self._fixed)
        if authorization:
            headers["Authorization"] = authorization
        if content_type is not None:
            headers["Content-Type"] = content_type
        return headers


def _authorization(token: str | None) -> str:
    """Return what the header says, "" where only `Bearer` came of a token that is being written."""
    return token.strip() if token and len(token.split()) > 1 else ""


def read_settings(kubeconfig: str | None, context: str | None, pool_size: int) -> Configuration:
    """Return the official client's settings for one cluster. Raises SettingsError."""
    settings = Configuration(host="")
    if kubeconfig:
        where = _kubeconfig_name(kubeconfig, context)
    elif os.environ.get("KUBERNETES_SERVICE_HOST") and _SERVICE_ACCOUNT_TOKEN.exists():
        where = "the service account of this pod"
    else:
        raise SettingsError("no kubeconfig given, and no service account of a pod found here")
    try:
        if kubeconfig:
            kube_config.load_kube_config(  # type: ignore[no-untyped-call]  # it has no annotations
                kubeconfig, context, client_configuration=settings, persist_config=False
            )
        else:
            kube_config.load_incluster_config(settings)  # type: ignore[no-untyped-call]  # neither
    except Exception as error:  # the loader raises KeyError, TypeError, YAML errors and more
        raise SettingsError(f"{where} cannot be used: {one_line(error)}") from error
    if not urlsplit(settings.host).hostname:
        raise SettingsError(f"{where} cannot be used: its cluster names no server")
    settings.keep_alive = True
    settings.connection_pool_maxsize = pool_size
    if settings.proxy in getproxies().values() and _is_loopback(settings.host):
        # Go never sends calls to this machine to a proxy of the environment; nor do we.
        settings.proxy = None
    return settings


def _kubeconfig_name(kubeconfig: str, context: str | None) -> str:
    """Return how to name the kubeconfig in a message. Raises SettingsError if none exists."""
    files = [Path(name).expanduser() for name in kubeconfig.split(os.pathsep) if name]
    if not any(file.exists() for file in files):
        raise SettingsError(f"kubeconfig {kubeconfig} does not exist")
    return f"kubeconfig {kubeconfig}" + (f" with context {context!r}" if context else "")


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
