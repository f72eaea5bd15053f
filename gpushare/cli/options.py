"""The command line of kubectl-inspect-gpushare in kubectl's manner.

kubectl refuses flags before a plug-in's name, so the flags that name a cluster are accepted here
and passed on to kubectl.

Tested in `tests/unit/cli/test_inspect.py` and `tests/unit/cli/test_inspect_parts.py`.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpushare import __version__
from gpushare.commandline import PASSED_ON, Parser, add_connection, add_unit
from gpushare.errors import SettingsError
from gpushare.wire.annotations import ALIYUN, Names

if TYPE_CHECKING:  # help does not need it
    from gpushare.cli.kubectl import Kubectl

FORMATS = ("json", "name", "wide", "yaml")
REPORT_FORMATS = ("json", "yaml")
"""The formats of the commands that print one document."""

_EPILOG = """\
exit codes: 0 shown, 1 an error, 2 wrong usage (one line on stderr), 130 ended by Ctrl-C.
environment: KUBECTL names the kubectl to run; KUBECONFIG is read by it as always.
"""


def read_options(words: Sequence[str], environ: Mapping[str, str], prog: str) -> argparse.Namespace:
    """Return the options of a command line, with `kubectl`, `scope` (nodes) and `names` (of the
    resource).

    Raises SettingsError for a wrong value; a wrong flag ends the process with 2.
    """
    options = inspect_parser(prog).parse_intermixed_args(words)
    if options.output and options.output not in FORMATS:
        raise SettingsError(
            f'unable to match a printer suitable for the output format "{options.output[:40]}",'
            f" allowed formats are: {','.join(FORMATS)}"
        )
    if options.unit:
        from gpushare.wire.inventory import check_unit

        check_unit(options.unit)
    if options.extender:
        from gpushare.wire.metrics import check_health_url

        check_health_url(options.extender)
    if options.top and (options.output not in ("", "wide") or options.watch):
        raise SettingsError("--top is one table: leave out --output and --watch")
    if options.nodes and options.selector:
        raise SettingsError("name cannot be provided when a selector is specified")
    from gpushare.cli.lister import Scope

    options.kubectl = connection(vars(options), environ)
    options.scope = Scope(tuple(options.nodes), options.selector)
    options.names = Names.for_resource(options.resource)
    options.namespace = "" if options.all_namespaces else options.namespace
    options.headers = not options.no_headers
    return options


def connection(flag_values: Mapping[str, Any], environ: Mapping[str, str]) -> "Kubectl":
    """Return the kubectl for these flags. flag_values: by names without dashes."""
    from gpushare.cli.kubectl import Kubectl

    flags = []
    for flag in PASSED_ON:
        value = flag_values.get(flag.removeprefix("--").replace("-", "_")) or ()
        values = (value,) if isinstance(value, str) else value
        flags += [f"{flag}={text}" for text in values if text]
    return Kubectl(
        environ.get("KUBECTL") or "kubectl",
        tuple(flags),
        flag_values.get("kubeconfig") or "",
        environ,
    )


def make_parser(prog: str, description: str, epilog: str) -> Parser:
    """Return a parser in kubectl's manner, without options."""
    parser = Parser(
        prog=prog,
        description=description,
        epilog=epilog,
        # With a width given argparse does not load shutil to ask the terminal.
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100),
    )
    parser.prefix = "error"
    return parser


def inspect_parser(prog: str) -> Parser:
    """Return the parser of `inspect`."""
    parser = make_parser(prog, "Show which pods hold how much of which GPU.", _EPILOG)
    value, switch = parser.value, parser.switch
    value("nodes", "NODE", "show these nodes alone (default: all)", None, nargs="*")
    switch("-d --details", "show the pods of each node")
    value("-o --output", "FORMAT", "json|name|wide|yaml")
    switch("--top", "show what containers use of the GPUs, by NVML")
    switch("--no-headers", "lines of nodes (with -d: of pods) alone")
    switch("-w --watch", "go on and show each change")
    value("-l --selector", "LABELS", "show nodes with these labels")
    value("-n --namespace", "NAME", "show pods of this namespace alone")
    switch("-A --all-namespaces", "show pods of all (the default)")
    value("--resource", "NAME", "(default: %(default)s)", ALIYUN.resource)
    add_unit(parser)
    text = "http://HOST:PORT of its health listener; shows which policy ranks pods, too"
    value("--extender", "URL", text)
    add_connection(parser)
    version = f"kubectl-inspect-gpushare {__version__}"
    parser.add_argument("--version", action="version", version=version)
    return parser
