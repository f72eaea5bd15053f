"""The command line of `gpushare doctor`, without the imports of the command.

Tested in `tests/unit/cli/test_start.py`.
"""

import argparse

from gpushare.commandline import Parser, add_connection, add_unit
from gpushare.wire.annotations import ALIYUN

FORMATS = ("text", "json", "yaml")

_EPILOG = """\
exit codes: 0 nothing is mis-wired (warnings there may be), 1 a check failed, 2 wrong usage.
docs/doctor.md explains each line.
"""


def doctor_parser(prog: str = "gpushare doctor") -> Parser:
    """Return the parser of `doctor`."""
    parser = Parser(
        prog=prog,
        description="Say what is mis-wired, one line for each check. Changes nothing.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    value = parser.value
    value("--scheduler-config", "FILE", "the file kube-scheduler reads")
    value("--extender", "URL", "http://HOST:PORT of its health listener")
    text = "as of `gpushare serve`; tells its entry in the file from those of other extenders"
    value("--listen", "HOST:PORT", text)
    add_unit(parser, "GiB")
    value("--resource", "NAME", "(default: %(default)s)", ALIYUN.resource)
    text = "where the extender has its Lease (default: %(default)s)"
    value("--extender-namespace", "NAME", text, "kube-system")
    text = (
        "this account is the extender's own, so that missing rights are a failure (the default in"
    )
    parser.switch("--as-extender", f"{text} a pod)")
    parser.values("--tls-cert", "FILE", "a certificate to look at, can be repeated")
    value("-o --output", None, "(default: %(default)s)", "text", choices=FORMATS)
    add_connection(parser)
    return parser
