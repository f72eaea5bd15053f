"""TLS to an extender, as in kube-scheduler's makeTransport."""

import ssl
import tempfile
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.kube.trust import trust_as_kubernetes
from gpushare.wire.scheduler.config import ExtenderConfig, TlsConfig


def tls_context(config: ExtenderConfig) -> ssl.SSLContext | None:
    """Return the TLS context for the extender, None for plain http.

    `enableHTTPS` without a CA trusts any certificate. Raises SettingsError.
    """
    if not config.url_prefix.startswith("https://"):
        return None
    tls = config.tls or TlsConfig()
    try:
        file = None if tls.ca_data else tls.ca_file or None
        context = ssl.create_default_context(cafile=file, cadata=tls.ca_data or None)
        if tls.insecure or (config.enable_https and not tls.has_ca):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_certificate(context, tls)
    except OSError as error:  # errors of OpenSSL too, which do not name the file
        raise SettingsError(f"{config.url_prefix}: tlsConfig: {error}") from error
    return trust_as_kubernetes(context)


def _load_certificate(context: ssl.SSLContext, tls: TlsConfig) -> None:
    """Load the client certificate and the key; `ssl` reads them only from files."""
    if not (tls.cert_file or tls.cert_data):
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, data, file in (
            ("crt", tls.cert_data, tls.cert_file),
            ("key", tls.key_data, tls.key_file),
        ):
            path = Path(folder, name)
            if data:
                path.write_text(data, encoding="ascii")
            paths.append(str(path) if data else file)
        # Without a password OpenSSL would ask on the terminal for that of an encrypted key.
        context.load_cert_chain(paths[0], paths[1] or None, password="")
