"""`gpushare serve`: the composition root. Settings -> objects -> threads -> gunicorn.

One gunicorn worker process, because two would keep two ledgers. The threads start after the fork,
because threads do not survive a fork.

Tested in `tests/integration/test_extender.py`.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from gpushare.daemon.logs import configure
from gpushare.errors import SettingsError
from gpushare.extender.door.server import Server
from gpushare.extender.factory import certificates
from gpushare.extender.process import Extender
from gpushare.extender.scheduler_file import SchedulerSettings, read_scheduler_file
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.settings import Settings, address, read_settings, unknown_variables
from gpushare.wire.fields import NAME
from gpushare.yamlfile import read_yaml


def main(argv: Sequence[str]) -> int:
    """Serve until a signal comes. Return 2 for a wrong setting, with one line on stderr."""
    try:
        settings = read_settings(argv, os.environ, read_yaml)
        _check_temporary_folder()
        for name in unknown_variables(os.environ):
            print(f"gpushare serve: {name}: no setting has this variable", file=sys.stderr)
        settings, scheduler_file = _with_scheduler_file(settings)
        tls = certificates(settings) if settings.tls_cert else None
        log_writer = configure(settings.log_level, settings.log_format)
        extender = Extender(settings, scheduler_file, log_writer)
    except SettingsError as error:
        print(f"gpushare serve: {error}", file=sys.stderr)
        return 2
    Server(
        extender.app,
        listen=settings.listen,
        threads=settings.threads,
        drain=int(BUDGET) + 2,
        log=log_writer,
        tls=tls,
        not_ready=extender.not_ready,
        start=extender.start,
        stopping=extender.stopping,
        stop=extender.stop,
    ).run()
    return 0


def _check_temporary_folder() -> None:
    """Check that temporary files can be written. Raises SettingsError.

    gunicorn has a temporary file for the worker, the official client for each certificate of a
    kubeconfig.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise SettingsError(
            f"temporary files cannot be written: {error.strerror}; mount a folder at /tmp that this"
            " user may write to, or name one by TMPDIR"
        ) from error


def _with_scheduler_file(settings: Settings) -> tuple[Settings, SchedulerSettings]:
    """Return the settings with the address that kube-scheduler's file calls, and the content of the
    file.
    """
    # The namespace goes into paths of the API, and a refused list of ConfigMaps closes no device.
    if NAME.fullmatch(settings.namespace) is None:
        raise SettingsError(f"namespace: {settings.namespace[:80]!r} is no name of a namespace")
    path = settings.scheduler_config
    listen = address(settings.listen, "listen") if settings.listen else None
    scheduler_file = read_scheduler_file(path, listen, tls=bool(settings.tls_cert))
    for warning in scheduler_file.warnings:
        print(f"gpushare serve: {path}: {warning}", file=sys.stderr)
    return replace(settings, listen=settings.listen or scheduler_file.listen), scheduler_file
