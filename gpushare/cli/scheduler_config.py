"""`gpushare scheduler-config`: print the file that makes kube-scheduler call this extender.

Knows the command line, and reads the version of a cluster; `gpushare.wire.scheduler.files` has the
text of the file.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gpushare.commandline import USAGE, Parser, add_connection
from gpushare.errors import GpuShareError, MessageError, SettingsError
from gpushare.wire.scheduler import files

_TIMEOUT = 30.0


def main(argv: Sequence[str]) -> int:
    """Print the file. 2: there is no such file, or the command line is wrong."""
    parser = scheduler_config_parser("gpushare scheduler-config")
    flags = parser.parse_args(argv)
    try:
        if flags.all is not None:
            for name, text in files.ready_made().items():
                Path(flags.all, name).write_text(text, encoding="utf-8")
            return 0
        flags.kubernetes = flags.kubernetes or _release(vars(flags))
        options = files.default_options(flags.kubernetes, flags.form, flags.order)
        options = replace(options, url=flags.url)
        if flags.resource:
            options = replace(options, resources=tuple(flags.resource))
        usual = "json" if options.form == "policy" else "yaml"
        print(files.render_file(options, flags.format or usual), end="")
    except SettingsError as error:
        parser.error(str(error))
    except OSError as error:
        print(f"gpushare scheduler-config: {error}", file=sys.stderr)
        return USAGE
    return 0


def _release(flag_values: Mapping[str, object]) -> str:
    """Return the release of the cluster, with a note on stderr. Raises SettingsError."""
    from gpushare.kube.client import KubeClient
    from gpushare.kube.session import ConnectionFlags

    try:
        client = KubeClient(ConnectionFlags.of(flag_values), 1, "gpushare-scheduler-config")
        with closing(client):
            body = client.request("GET", "/version", timeout=_TIMEOUT)
        try:
            version = json.loads(body)
            kubernetes = f"{version['major']}.{version['minor']}".rstrip("+")
        except (ValueError, TypeError, KeyError) as error:
            raise MessageError("/version of the API server names no release") from error
    except GpuShareError as error:
        needed = "--kubernetes is needed (kube-scheduler's release, such as 1.27)"
        raise SettingsError(f"{needed}, as no cluster tells its own: {error}") from error
    print(
        f"for {kubernetes}, as the cluster is; --kubernetes names another release", file=sys.stderr
    )
    return kubernetes


def scheduler_config_parser(prog: str) -> Parser:
    """Return the parser of `scheduler-config`."""
    parser = Parser(
        prog=prog,
        description="Print the file that makes kube-scheduler call this extender; `gpushare serve"
        " --scheduler-config` reads the same file.",
        epilog="docs/scheduler.md explains the choices and how to hand the file over.",
    )
    value = parser.value
    text = "kube-scheduler's release, from 1.22 to 1.37 (default: the connected cluster's)"
    value("--kubernetes", "RELEASE", text, None)
    text = "ours: our order of the nodes decides; shared: it is one voice, and preferred affinity"
    text += " outweighs it (default: ours)"
    value("--order", None, text, "ours", choices=files.ORDERS)
    text = f"where kube-scheduler finds the extender (default: {files.DEFAULT_URL})"
    value("--url", None, text, files.DEFAULT_URL)
    text = "extended resource that pods ask for, can be repeated (default: aliyun.com/gpu-mem, its"
    text += " compute and its percentage)"
    value("--resource", "NAME", text, None, action="extend", nargs="+")
    text = "for 1.22: policy, a legacy Policy, or config, v1beta2 (default: policy for 1.22)"
    value("--form", None, text, choices=files.FORMS)
    text = "yaml has comments (default: json for a Policy, else yaml)"
    value("--format", None, text, None, choices=files.STYLES)
    value("--all", "FOLDER", "write all ready-made files into a folder instead", None)
    add_connection(parser)
    return parser
