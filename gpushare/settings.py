"""Settings: one frozen value, read once.

The value of a setting comes from the flag, else the environment variable (GPUSHARE_ and the flag's
name), else the file of --config, else the default. Only composition roots read settings.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from gpushare.addresses import is_loopback
from gpushare.commandline import Parser
from gpushare.errors import SettingsError

MAX_MOVES = 1000
"""Upper bound of the moves an hour: the ConfigMap that records the moves has room for more."""

MAX_NEIGHBOURS = 100
"""Upper bound of the neighbours: a limit that no device reaches would only cost time."""

MAX_BODY = 16 * 1024 * 1024
"""Upper bound of a request body in bytes: 5,000 whole Node objects are less."""

SPARE_THREADS = 16
"""Threads that binds leave to the other verbs: binds wait for the API server, the others do not."""

_EVERYWHERE = frozenset(("0.0.0.0", "::"))  # noqa: S104 -- compared, not listened at
_OF_SERVICE = re.compile(r"_SERVICE_(HOST|PORT(_.+)?)$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?$")
"""Ends of the environment variables that Kubernetes makes from Services."""

_DRIVER = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The name of a namespace."""

_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
_METAVARS = {
    "listen": "HOST:PORT",
    "health_listen": "HOST:PORT",
    "ui_listen": "HOST:PORT",
    **dict.fromkeys(("kubeconfig", "scheduler_config"), "FILE"),
    **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), "FILE"),
    **dict.fromkeys(("context", "policy", "shadow", "namespace", "identity"), "NAME"),
    "claims": "DRIVER",
    "placeholders": "NAME",
    **dict.fromkeys(
        ("candidates", "pod_policies", "tls_client_names", "ui_tls_client_names"),
        "NAME[,NAME...]",
    ),
    **dict.fromkeys(("threads", "body_limit", "defrag_moves_per_hour", "neighbours"), "N"),
    **dict.fromkeys(("defrag_after", "reserve_after"), "SECONDS"),
    "unit": "UNIT",
}


def _setting(
    default: object, text: str, choices: Sequence[str] = (), default_text: str = ""
) -> Any:  # noqa: ANN401 -- as dataclasses.field
    """Return a field of Settings.

    `default_text`: description of the default for the help, if the value alone is unclear.
    """
    usual = ("on" if default else "off") if isinstance(default, bool) else str(default)
    metadata = {"help": text, "choices": tuple(choices), "default": default_text or usual}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of `gpushare serve`."""

    listen: str = _setting(
        "",
        "where kube-scheduler calls",
        default_text="what the scheduler-config calls if loopback, else 127.0.0.1:32766",
    )
    health_listen: str = _setting("127.0.0.1:32767", "where probes and metrics are answered")
    ui_listen: str = _setting(
        "", "where people see the cluster on a page, /ui", default_text="nowhere"
    )
    kubeconfig: str = _setting(
        "", "kubeconfig of the API server", default_text="KUBECONFIG; in a pod its service account"
    )
    context: str = _setting("", "context of the kubeconfig")
    scheduler_config: str = _setting("", "kube-scheduler's own configuration or Policy file")
    unit: str = _setting("GiB", "memory unit of the cluster: GiB, MiB, or a chunk such as 256MiB")
    policy: str = _setting("auto", "placement policy of pods that name none")
    candidates: str = _setting(
        "shadow-price,device-bestfit,binpack",
        "comma-separated policies, of which the policy auto is the one that does best in trials",
    )
    pod_policies: str = _setting(
        "all", "comma-separated policies that a pod may choose by its annotation; all of them; none"
    )
    neighbours: int = _setting(
        0,
        "other pods that a pod's device has at most, while there is such a device with room; 0: any"
        " number",
    )
    shadow: str = _setting(
        "",
        "policy of which metrics and the page say what it would have done; it decides nothing",
    )
    pairing: str = _setting(
        "auto",
        "hold back equal pods until the device plug-in has served one; auto: but on nodes whose"
        " plug-in says that it serves by identity",
        ("auto", "on", "off"),
    )
    filter_answer: str = _setting(
        "auto",
        "filter answers all nodes that fit, or the best one alone; auto: the best one if"
        " kube-scheduler's file says that our order decides",
        ("auto", "all", "best"),
    )
    leadership: str = _setting(
        "lease",
        "lead by a Lease of our own, while our kube-scheduler holds its Lease, or always",
        ("lease", "scheduler", "off"),
    )
    namespace: str = _setting(
        "kube-system", "namespace of our Lease and of unhealthy-gpu ConfigMaps"
    )
    identity: str = _setting(
        "", "name of this process in the Lease", default_text="host name and a uuid"
    )
    threads: int = _setting(80, "requests served at once; 16 of them are kept from binds")
    any_cpu: bool = _setting(False, "run on all CPUs; else all threads keep to one of them")
    body_limit: int = _setting(MAX_BODY, "largest request body in bytes")
    insecure_listen: bool = _setting(False, "allow --listen beyond loopback without mutual TLS")
    tls_cert: str = _setting("", "certificate file of --listen")
    tls_key: str = _setting("", "key file of --listen")
    tls_client_ca: str = _setting("", "CA file that the caller's certificate must be signed by")
    tls_client_names: str = _setting(
        "", "comma-separated names (CN, DNS) of which a caller's certificate must have one"
    )
    ui_tls_client_names: str = _setting(
        "",
        "comma-separated names of which a certificate must have one to see the page; without them"
        " the page is plain HTTP, for loopback alone",
    )
    scale_down_guard: bool = _setting(
        False, "annotate nodes whose GPU pods would have no device elsewhere, for autoscalers"
    )
    placeholders: str = _setting(
        "",
        "namespace in which pods ask autoscalers for a node, for pods that wait for a device",
        default_text="nowhere",
    )
    kueue: bool = _setting(
        False, "answer Kueue's admission checks: whether all pods of a workload have devices"
    )
    defrag_moves_per_hour: int = _setting(
        0, "pods evicted an hour at most, so that a pod that waits fits; 0: none"
    )
    defrag_after: int = _setting(
        300, "seconds that a pod must have fitted nowhere before others are moved for it"
    )
    reserve_after: int = _setting(
        0, "seconds that a pod waits before the node that opens first is reserved for it; 0: never"
    )
    claims: str = _setting(
        "",
        "DRA driver whose devices are ranked for pods with claims, and told",
        default_text="none, and no claim is looked at",
    )
    events: bool = _setting(True, "write events about pods and nodes")
    metrics_detail: str = _setting(
        "devices",
        "metrics say who holds memory: of devices alone, by namespace too, or by pod as well",
        ("devices", "namespaces", "pods"),
    )
    log_level: str = _setting("info", "what is logged", ("debug", "info", "warning", "error"))
    log_format: str = _setting("text", "how it is logged", ("text", "json"))

    @property
    def callers(self) -> frozenset[str]:
        """Accepted names of a caller's certificate; empty without TLS."""
        return _names(self.tls_client_names)

    @property
    def ui_callers(self) -> frozenset[str]:
        """Accepted names of the certificate of a viewer of the page; empty without TLS."""
        return _names(self.ui_tls_client_names)


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",")) if text else frozenset()


def serve_parser(prog: str = "gpushare serve") -> Parser:
    """Return the parser of `serve`."""
    parser = Parser(prog=prog, description="Run the scheduler extender.")
    parser.add_argument("--config", metavar="FILE", help="settings as YAML, keys as the flags")
    for setting in fields(Settings):
        _add_flag(parser, setting)
    return parser


def read_settings(
    argv: Sequence[str], environ: Mapping[str, str], read_file: Callable[[str], object]
) -> Settings:
    """Return the settings from flags, environment and file, checked.

    read_file: path of a YAML file -> document. Raises SettingsError; a wrong flag ends the process
    with argparse's exit code 2.
    """
    parsed = vars(serve_parser().parse_args(argv))
    flags = {key: value for key, value in parsed.items() if value is not None}
    path = flags.pop("config", None) or environ.get("GPUSHARE_CONFIG")
    values: dict[str, Any] = {setting.name: setting.default for setting in fields(Settings)}
    values |= _from_file(path, read_file) if path else {}
    for setting in fields(Settings):
        variable = f"GPUSHARE_{setting.name.upper()}"
        if variable in environ:
            values[setting.name] = _typed(setting, environ[variable], variable)
    settings = Settings(**(values | flags))
    _check(settings)
    return settings


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the GPUSHARE_ variables that belong to no setting.

    Variables that Kubernetes makes from Services are excluded.
    """
    setting_variables = {f"GPUSHARE_{setting.name.upper()}" for setting in fields(Settings)}
    return sorted(
        name
        for name in environ
        if name.startswith("GPUSHARE_")
        and name not in setting_variables | {"GPUSHARE_CONFIG"}
        and not _OF_SERVICE.search(name)
    )


def address(text: str, name: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; port 0 means any free port.

    Raises SettingsError that begins with `name`.
    """
    host, colon, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else -1
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not colon or not bare or bracketed != (":" in bare) or not 0 <= number <= 65535:
        raise SettingsError(f"{name}: {text!r} is not HOST:PORT (of IPv6: [HOST]:PORT)")
    return bare, number


def _add_flag(parser: argparse.ArgumentParser, setting: "Field[Any]") -> None:
    flag = "--" + setting.name.replace("_", "-")
    default_text = setting.metadata["default"]
    text = setting.metadata["help"] + f" (default: {default_text})" * bool(default_text)
    if setting.type is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=text)
        return
    parser.add_argument(
        flag,
        type=setting.type if callable(setting.type) else str,
        choices=setting.metadata["choices"] or None,
        metavar=_METAVARS.get(setting.name),
        help=text,
    )


def _from_file(path: str, read_file: Callable[[str], object]) -> dict[str, object]:
    document = read_file(path)
    if not isinstance(document, dict):
        raise SettingsError(f"{path}: must be a mapping of settings")
    settings_by_key = {setting.name.replace("_", "-"): setting for setting in fields(Settings)}
    values: dict[str, object] = {}
    for key, value in document.items():
        setting = settings_by_key.get(str(key))
        if setting is None:
            raise SettingsError(
                f"{path}: {str(key)!r} is no setting; there are: {', '.join(settings_by_key)}"
            )
        values[setting.name] = _typed(setting, value, f"{path}: {key}")
    return values


def _typed(setting: "Field[Any]", value: object, place: str) -> object:
    """Return the value as the setting's type; text is read as a flag's would be."""
    typed_value: object = value
    if isinstance(value, str) and setting.type is bool:
        typed_value = _SWITCH.get(value.lower(), value)
    elif isinstance(value, str) and setting.type is int and value.isascii() and value.isdigit():
        typed_value = int(value)
    elif isinstance(value, bool) and setting.metadata["choices"]:
        typed_value = "on" if value else "off"  # YAML takes these words for true and false
    if type(typed_value) is not setting.type:
        raise SettingsError(f"{place}: {value!r} is not {getattr(setting.type, '__name__', '')}")
    if setting.metadata["choices"] and typed_value not in setting.metadata["choices"]:
        raise SettingsError(
            f"{place}: {value!r} is none of {', '.join(setting.metadata['choices'])}"
        )
    return typed_value


def _check(settings: Settings) -> None:
    # Without --listen the address is loopback, whatever kube-scheduler's file says.
    host, _ = address(settings.listen or "127.0.0.1:32766", "listen")
    address(settings.health_listen, "health-listen")
    if not SPARE_THREADS < settings.threads <= 1000:
        raise SettingsError(f"threads: {settings.threads} is not from {SPARE_THREADS + 1} to 1000")
    if not 1024 <= settings.body_limit <= MAX_BODY:
        raise SettingsError(
            f"body-limit: {settings.body_limit} is not from 1024 to {MAX_BODY} bytes"
        )
    if not 0 <= settings.neighbours <= MAX_NEIGHBOURS:
        raise SettingsError(f"neighbours: {settings.neighbours} is not from 0 to {MAX_NEIGHBOURS}")
    if settings.claims and not _DRIVER.fullmatch(settings.claims):
        raise SettingsError(f"claims: {settings.claims!r} is no name of a DRA driver")
    if settings.placeholders and not _LABEL.fullmatch(settings.placeholders):
        raise SettingsError(f"placeholders: {settings.placeholders!r} is no name of a namespace")
    if not 0 <= settings.defrag_moves_per_hour <= MAX_MOVES:
        raise SettingsError(
            f"defrag-moves-per-hour: {settings.defrag_moves_per_hour} is not from 0 to {MAX_MOVES}"
        )
    if settings.defrag_after < 1:
        raise SettingsError(f"defrag-after: {settings.defrag_after} is less than 1 second")
    if settings.reserve_after < 0:
        raise SettingsError(f"reserve-after: {settings.reserve_after} is less than 0 seconds")
    _check_ports(settings)
    _check_access(settings, host)
    _check_ui(settings)


def _check_ports(settings: Settings) -> None:
    """Refuse two listeners at one port: the second could not start."""
    listeners: list[tuple[str, str, int]] = []
    for name in ("listen", "health_listen", "ui_listen"):
        text, flag = getattr(settings, name), name.replace("_", "-")
        if not text:
            continue
        host, port = address(text, flag)
        for other_flag, other_host, other_port in listeners:
            if port == other_port != 0 and (
                host == other_host or not _EVERYWHERE.isdisjoint((host, other_host))
            ):
                raise SettingsError(f"{flag}: port {port} is that of {other_flag}: give it another")
        listeners.append((flag, host, port))


def _check_access(settings: Settings, host: str) -> None:
    """Refuse settings that let anybody but kube-scheduler bind pods. host: of --listen."""
    tls = (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if any(tls) and not all(tls):
        raise SettingsError("tls-cert, tls-key and tls-client-ca belong together (mutual TLS)")
    if settings.tls_client_names and not all(tls):
        raise SettingsError("tls-client-names needs tls-cert, tls-key and tls-client-ca")
    if all(tls) and not settings.tls_client_names:
        raise SettingsError(
            "tls-client-names is missing: whoever has any certificate signed by tls-client-ca could"
            " bind pods, with a cluster's own CA every kubelet; name kube-scheduler's certificate"
            " by its CN or DNS name, such as system:kube-scheduler"
        )
    if "" in settings.callers:
        raise SettingsError(f"tls-client-names: {settings.tls_client_names!r} has an empty name")
    if not is_loopback(host) and not all(tls) and not settings.insecure_listen:
        raise SettingsError(
            f"listen: {settings.listen} can be reached from other machines, and whoever reaches it"
            " can bind pods; give tls-cert, tls-key, tls-client-ca and tls-client-names, or say"
            " --insecure-listen"
        )


def _check_ui(settings: Settings) -> None:
    """Refuse settings that let anybody see the names of all pods."""
    if settings.ui_tls_client_names and not settings.tls_cert:
        raise SettingsError("ui-tls-client-names needs tls-cert, tls-key and tls-client-ca")
    if "" in settings.ui_callers:
        raise SettingsError(
            f"ui-tls-client-names: {settings.ui_tls_client_names!r} has an empty name"
        )
    if not settings.ui_listen:
        return
    host, _ = address(settings.ui_listen, "ui-listen")
    if not is_loopback(host) and not settings.ui_tls_client_names:
        raise SettingsError(
            f"ui-listen: {settings.ui_listen} can be reached from other machines, and the page"
            " names all pods; listen on loopback and use kubectl port-forward, or give tls-cert,"
            " tls-key, tls-client-ca and ui-tls-client-names"
        )
