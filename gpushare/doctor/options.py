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
    add = parser.add_argument
    add("--scheduler-config", default="", metavar="FILE", help="the file kube-scheduler reads")
    add("--extender", default="", metavar="URL", help="http://HOST:PORT of its health listener")
    add(
        "--listen",
        default="",
        metavar="HOST:PORT",
        help="as of `gpushare serve`; tells its entry in the file from those of other extenders",
    )
    add_unit(parser, "GiB")
    add("--resource", default=ALIYUN.resource, metavar="NAME", help="(default: %(default)s)")
    add(
        "--extender-namespace",
        default="kube-system",
        metavar="NAME",
        help="where the extender has its Lease (default: %(default)s)",
    )
    add(
        "--as-extender",
        action="store_true",
        help="this account is the extender's own, so that missing rights are a failure (the default"
        " in a pod)",
    )
    add(
        "--tls-cert",
        action="append",
        default=[],
        metavar="FILE",
        help="a certificate to look at, can be repeated",
    )
    add("-o", "--output", choices=FORMATS, default="text", help="(default: %(default)s)")
    add_connection(parser)
    return parser
