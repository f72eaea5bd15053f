"""`kubectl inspect gpushare`: show the pods on each GPU with their memory.

The root of the command: command line to options, cluster to report, report to text, errors to one
line and an exit code. Standard library alone, so that it starts at once; see docs/inspect.md.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NoReturn

from gpushare.cli.commands import MODULES, OF_PLUGIN
from gpushare.cli.documents import dumped, report_document
from gpushare.cli.exit_codes import ended_as_kubectl
from gpushare.cli.lister import Observed, Scope, follow, observe
from gpushare.cli.options import read_options
from gpushare.cli.report import Report, make_report
from gpushare.cli.rights import FORBIDDEN
from gpushare.cli.tables import PLAIN, Style, as_tables, style_of
from gpushare.commandline import USAGE
from gpushare.errors import ApiError
from gpushare.wire.inventory import mib_of
from gpushare.wire.printable import printable

_CLEAR = "\x1b[H\x1b[2J"


def main(argv: Sequence[str] | None = None, prog: str = "kubectl inspect gpushare") -> int:
    """Return the exit code: 0, 1 for an error, 130 after Ctrl-C, 141 if nobody reads it."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in OF_PLUGIN:
        return _command(words[0], words[1:], prog)
    return ended_as_kubectl(lambda: _run(read_options(words, os.environ, prog)))


def _command(command: str, words: Sequence[str], prog: str) -> int:
    """Return the exit code of another command of the plug-in.

    It needs more than the standard library, and more time to start.
    """
    try:
        run: Callable[..., int] = import_module(MODULES[command]).main
    except ModuleNotFoundError as error:
        lacks = f"{prog} {command}: this file has `inspect` alone ({error})"
        print(f"{lacks}; install the package gpushare: see docs/inspect.md", file=sys.stderr)
        return USAGE
    return run(words, f"{prog} {command}")


def complete(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of kubectl_complete-inspect-gpushare, which prints completions for
    kubectl.
    """
    from gpushare.cli.completion import complete_plugin

    print(complete_plugin(sys.argv[1:] if argv is None else argv, os.environ), end="")
    return 0


def render(report: Report, options: argparse.Namespace, style: Style = PLAIN) -> str:
    """Return the report in the requested format; tables in this style."""
    part = report.within(options.namespace) if options.namespace else report
    match options.output:
        case "json" | "yaml":
            return dumped(report_document(part), options.output)
        case "name":
            return "".join(f"node/{node.name}\n" for node in part.nodes)
    return as_tables(
        part, style, pods=options.details, wide=options.output == "wide", headers=options.headers
    )


def _run(options: argparse.Namespace) -> None:
    try:
        if not options.top:
            _show(options)
            return
        from gpushare.cli.top import read_uses, use_table

        observed, _ = observe(options.kubectl, options.scope, options.names)
        uses, warnings = read_uses(options.kubectl, observed.nodes)
        of_namespace = [use for use in uses if options.namespace in ("", use.namespace)]
        text = use_table(of_namespace, headers=options.headers)
    except ApiError as error:
        if error.refusal != FORBIDDEN:
            raise
        from gpushare.cli.own_pods import own_pods

        text, warnings = own_pods(options, style_of(sys.stdout, os.environ), error)
    print(text, end="", flush=True)
    for warning in warnings:
        print(f"Warning: {printable(warning)}", file=sys.stderr)


def _show(options: argparse.Namespace) -> None:
    last = ("", [""])
    style = style_of(sys.stdout, os.environ) if options.headers else PLAIN
    redraws = options.watch and sys.stdout.isatty() and options.output in ("", "wide")
    # The original's tables need no pending pods and no ConfigMaps.
    more = options.output in ("wide", "json", "yaml") or (style.bars and not options.output)
    scope = replace(options.scope, more=more)
    for number, observed in enumerate(_observations(options, scope)):
        report = _reported(observed, options)
        text = render(report, options, style)
        notes = [f"Warning: {warning}" for warning in report.warnings]
        cards = report.claims is not None and report.claims.nodes
        if not report.nodes and not cards and options.output not in ("json", "yaml"):
            notes.append(f"No nodes with {options.names.resource} found.")
        if (text, notes) == last:
            continue
        if redraws:
            print(_CLEAR + text, end="", flush=True)
        if redraws or notes != last[1]:
            print("".join(f"{printable(note)}\n" for note in notes), end="", file=sys.stderr)
        if not redraws:
            between = ""  # separator of two reports
            if options.output == "yaml" and options.watch:
                between = "---\n"
            elif number and options.output in ("", "wide") and options.headers:
                between = "\n"
            print(between + text, end="", flush=True)
        last = (text, notes)


def _reported(observed: Observed, options: argparse.Namespace) -> Report:
    """Return the report of listed objects, with cards of claims if the cluster has any, and with
    the policy and holds of a running extender if --extender names one.
    """
    report = make_report(
        observed.nodes.values(),
        observed.pods.values(),
        options.names,
        options.unit,
        pending=observed.pending.values(),
        closed_devices=observed.closed_devices,
    )
    warnings = [*report.warnings, *observed.warnings]
    if observed.slices is not None:
        from gpushare.cli.claims import claims_report

        scope, slices, claims = observed.scope, observed.slices, observed.claims or {}
        nodes = observed.listed_nodes if scope.nodes or scope.selector else None
        unit = mib_of(report.unit) << 20
        cards, notes = claims_report(slices.values(), claims.values(), unit, nodes)
        report, warnings = replace(report, claims=cards), warnings + notes
    if options.extender:
        from gpushare.cli.running_extender import read_held, read_policy

        policy, wrong = read_policy(options.extender, options.names.resource)
        holds, unheard = None, ""
        if policy is not None and options.output in ("wide", "json", "yaml"):
            holds, unheard = read_held(options.extender, options.names.resource, report.unit)
        if holds is not None:
            node_names = {node.name for node in report.nodes}
            holds = tuple(place for place in holds if place.node in node_names)
        warnings += [text for text in (wrong, unheard) if text]
        report = replace(report, policy=policy, holds=holds)
    return replace(report, warnings=tuple(warnings))


def _observations(options: argparse.Namespace, scope: Scope) -> Iterator[Observed]:
    if not options.watch:
        yield observe(options.kubectl, scope, options.names)[0]
        return
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)  # an end in order takes the kubectls along
    yield from follow(options.kubectl, scope, options.names)


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
