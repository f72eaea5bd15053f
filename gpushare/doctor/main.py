"""`gpushare doctor`: print the mistakes in the setup of a cluster, one line for each check.

The composition root: command line and files to facts, facts to findings, findings to text. Nothing
is changed.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpushare.commandline import columns_of
from gpushare.doctor.certificate import ends_at
from gpushare.doctor.checks.autoscalers import placeholders_namespace
from gpushare.doctor.checks.scheduler_file import entry_of
from gpushare.doctor.collect import Collector, facts_without, read_extender, read_route
from gpushare.doctor.facts import Certificate, Facts, SchedulerFile, Unread
from gpushare.doctor.options import doctor_parser
from gpushare.doctor.report import as_document, as_text, failed, run_checks
from gpushare.errors import SettingsError
from gpushare.kube.client import ServerTimeClient
from gpushare.kube.session import ConnectionFlags
from gpushare.settings import address
from gpushare.wire.annotations import Names
from gpushare.wire.inventory import check_unit
from gpushare.wire.metrics import check_health_url
from gpushare.wire.scheduler.config import decode_scheduler_config
from gpushare.yamlfile import read_as_kubernetes


def main(argv: Sequence[str], prog: str = "gpushare doctor") -> int:
    """Print the report. 1: a check failed. A wrong command line ends the process with 2."""
    parser = doctor_parser(prog)
    options = parser.parse_args(argv)
    try:
        check_unit(options.unit)
        namespace = options.extender_namespace
        if namespace.strip("/.") != namespace or "/" in namespace:
            raise SettingsError(f"--extender-namespace: {namespace[:80]!r} is no namespace")
        if options.listen:
            address(options.listen, "--listen")
        if options.extender:
            check_health_url(options.extender)
        names = Names.for_resource(options.resource)
        flags = ConnectionFlags.of(vars(options))
    except SettingsError as error:
        parser.error(str(error))
    warn_once_of_unverified_tls()
    findings = run_checks(_facts(options, names, flags))
    if options.output != "text":
        print(as_document(findings, options.output), end="")
    else:
        colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print(as_text(findings, colours=colours, columns=columns_of(sys.stdout)), end="")
    return 1 if failed(findings) else 0


def warn_once_of_unverified_tls() -> None:
    """Show urllib3's warning about insecure-skip-tls-verify once, and not for each request."""
    warnings.filterwarnings("once", message="Unverified HTTPS request")


def _facts(options: argparse.Namespace, names: Names, flags: ConnectionFlags) -> Facts:
    now = time.time()
    url = options.extender.rstrip("/")
    extender = read_extender(url) if url else None
    scheduler = _scheduler(options.scheduler_config)
    certificates = []
    for path in options.tls_cert:
        try:
            # Comments beside the certificate may have any encoding.
            until = ends_at(Path(path).read_text(encoding="latin-1"))
            certificates.append(Certificate(path, until))
        except (OSError, ValueError) as error:
            certificates.append(Certificate(path, broken=" ".join(str(error).split())))
    try:
        client = ServerTimeClient(flags, 1, "gpushare-doctor")
    except SettingsError as error:
        api = Unread(str(error), "give --kubeconfig FILE and, if need be, --context NAME")
        facts = facts_without(api, now, "not read: there is no API server to ask")
    else:
        try:
            collector = Collector(client, names, options.unit, options.extender_namespace)
            facts = collector.collect(scheduler, placeholders_namespace(extender))
        finally:
            client.close()
    facts = replace(
        facts,
        scheduler=scheduler,
        extender=extender,
        certificates=tuple(certificates),
        names=names,
        unit=options.unit,
        namespace=options.extender_namespace,
        listen=address(options.listen, "--listen") if options.listen else None,
        own_account=options.as_extender or not flags.kubeconfig,
    )
    entry = entry_of(facts)
    asks = url and entry is not None and bool(entry.filter_verb)
    return replace(facts, route=read_route(entry, url)) if asks and entry else facts


def _scheduler(path: str) -> SchedulerFile | Unread | None:
    if not path:
        return None
    try:
        document = read_as_kubernetes(path)
        if document is None:
            raise SettingsError(f"{path}: is empty")
        config = decode_scheduler_config(document)
    except SettingsError as error:
        return Unread(
            str(error) if str(error).startswith(path) else f"{path}: {error}",
            "correct it, or take the file of `gpushare scheduler-config`",
        )
    return SchedulerFile(path, config, document)
