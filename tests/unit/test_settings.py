"""The sources of settings, and the refusals of one line."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import pytest
import yaml

from gpushare.addresses import is_loopback
from gpushare.errors import SettingsError
from gpushare.settings import SPARE_THREADS, Settings, address, read_settings, unknown_variables

EVERYWHERE = "0.0.0.0"  # noqa: S104 -- what must be refused
NAMELESS = {"tls-cert": "c", "tls-key": "k", "tls-client-ca": "a"}
TLS = NAMELESS | {"tls-client-names": "n"}


def read(
    *argv: str, environ: Mapping[str, str] | None = None, file: object = None, path: str = "f.yaml"
) -> Settings:
    """The settings from these; `file` is the document at `path`."""

    def read_file(requested_path: str) -> object:
        assert requested_path == path
        return file

    arguments = ["--config", path] if file is not None else []
    return read_settings([*arguments, *argv], environ or {}, read_file)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    return text


def test_without_anything_said_the_defaults_are_safe() -> None:
    settings = read()
    assert settings == Settings()
    assert settings.listen == ""
    assert is_loopback(address(settings.health_listen, "")[0])
    assert settings.leadership == "lease"
    assert not settings.insecure_listen


def test_a_flag_wins_over_the_environment_that_over_the_file_that_over_the_default() -> None:
    file, environ, flag = {"threads": 30}, {"GPUSHARE_THREADS": "40"}, ["--threads", "50"]
    assert read().threads == 80
    assert read(file=file).threads == 30
    assert read(file=file, environ=environ).threads == 40
    assert read(*flag, file=file, environ=environ).threads == 50
    assert read(*flag).threads == 50
    assert read(environ=environ).threads == 40


def test_each_setting_has_its_own_precedence() -> None:
    settings = read(
        "--policy=spread",
        environ={"GPUSHARE_POLICY": "x", "GPUSHARE_UNIT": "MiB"},
        file={"policy": "y", "unit": "z", "namespace": "gpu"},
    )
    assert (settings.policy, settings.unit, settings.namespace) == ("spread", "MiB", "gpu")


def test_the_file_may_be_named_by_the_environment_and_the_flag_wins() -> None:
    document: dict[str, object] = {"policy": "spread"}

    def read_file(path: str) -> object:
        return document if path == "named" else {"policy": "other"}

    environ = {"GPUSHARE_CONFIG": "named"}
    assert read_settings([], environ, read_file).policy == "spread"
    assert read_settings(["--config", "x"], environ, read_file).policy == "other"
    assert read_settings([], {"GPUSHARE_CONFIG": ""}, read_file).policy == "auto"


@pytest.mark.parametrize("setting", fields(Settings), ids=lambda setting: setting.name)
def test_every_setting_has_a_flag_a_variable_and_a_key(setting: Any) -> None:
    value = {
        bool: True,
        int: 2000 if setting.name == "body_limit" else 99,
    }.get(setting.type, "[::1]:9" if "listen" in setting.name else "kube")
    value = setting.metadata["choices"][-1] if setting.metadata["choices"] else value
    flag = "--" + setting.name.replace("_", "-")
    more_settings: dict[str, Any] = dict.fromkeys(TLS, "x") if "tls" in setting.name else {}
    more_settings.pop(flag[2:], None)
    argv = [flag] if value is True else [flag, str(value)]
    from_flag = read(*argv, file=more_settings)
    variable = f"GPUSHARE_{setting.name.upper()}"
    from_environ = read(environ={variable: str(value)}, file=more_settings)
    from_file = read(file={**more_settings, flag[2:]: value})
    assert from_flag == from_environ == from_file
    assert getattr(from_flag, setting.name) == value


def test_help_tells_of_every_setting_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert end.value.code == 0
    # Help is also wrapped at hyphens.
    text = " ".join(capsys.readouterr().out.split()).replace("- ", "-")
    for setting in fields(Settings):
        assert f"--{setting.name.replace('_', '-')}" in text
        assert setting.metadata["help"] in text
        if setting.default:
            assert f"(default: {setting.metadata['default']})" in text
    assert "gpushare serve" in text


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "on"])
def test_a_switch_may_be_said_in_several_ways(text: str) -> None:
    assert read(environ={"GPUSHARE_INSECURE_LISTEN": text}).insecure_listen
    assert not read(
        "--no-insecure-listen", environ={"GPUSHARE_INSECURE_LISTEN": text}
    ).insecure_listen


@pytest.mark.parametrize("key", ["pairing", "leadership", "events"])
def test_on_and_off_may_be_said_in_a_file_and_in_the_environment(key: str) -> None:
    off = False if key == "events" else "off"
    assert getattr(read(file=yaml.safe_load(f"{key}: off")), key) == off
    assert getattr(read(environ={f"GPUSHARE_{key.upper()}": "off"}), key) == off
    if key != "leadership":
        on = True if key == "events" else "on"
        assert getattr(read(file=yaml.safe_load(f"{key}: on")), key) == on


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("threads", "many", "'many' is not int"),
        ("threads", "-3", "'-3' is not int"),
        ("threads", "1_000", "'1_000' is not int"),
        ("threads", "٣٠", "is not int"),
        ("threads", 30.5, "30.5 is not int"),
        ("threads", True, "True is not int"),
        ("threads", None, "None is not int"),
        ("insecure-listen", "yes", "'yes' is not bool"),
        ("insecure-listen", 1, "1 is not bool"),
        ("policy", 7, "7 is not str"),
        ("policy", ["spread"], "['spread'] is not str"),
        ("pairing", "maybe", "'maybe' is none of auto, on, off"),
        ("log-level", True, "True is none of debug, info, warning, error"),
        ("filter-answer", "", "'' is none of auto, all, best"),
        ("leadership", "lease ", "is none of lease, scheduler, off"),
        ("log-level", "trace", "'trace' is none of debug, info, warning, error"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_file_and_key(
    key: str, value: object, text: str
) -> None:
    message = refused(lambda: read(file={key: value}))
    assert message.startswith(f"f.yaml: {key}: ")
    assert text in message
    if isinstance(value, str):
        variable = f"GPUSHARE_{key.replace('-', '_').upper()}"
        message = refused(lambda: read(environ={variable: value}))
        assert message.startswith(f"{variable}: ")
        assert text in message


@pytest.mark.parametrize("argv", [["--threads", "many"], ["--pairing", "maybe"], ["--nothing"]])
def test_a_wrong_flag_ends_with_2_and_names_it(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        read(*argv)
    assert end.value.code == 2
    assert argv[0] in capsys.readouterr().err


@pytest.mark.parametrize("document", [[], "text", 7, True])
def test_a_file_that_is_no_mapping_is_refused(document: object) -> None:
    assert refused(lambda: read(file=document)) == "f.yaml: must be a mapping of settings"


def test_an_empty_file_is_refused_too() -> None:
    message = refused(lambda: read_settings(["--config", "f"], {}, lambda _path: None))
    assert message == "f: must be a mapping of settings"


@pytest.mark.parametrize("key", ["thread", "body_limit", "config", 7, ""])
def test_a_key_that_is_no_setting_is_refused_with_those_there_are(key: object) -> None:
    message = refused(lambda: read(file={key: 1}))
    assert message.startswith(f"f.yaml: {str(key)!r} is no setting; there are: ")
    assert "body-limit" in message


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--threads", str(SPARE_THREADS)], "threads: "),
        (["--threads", "0"], "threads: "),
        (["--threads", "1001"], "threads: "),
        (["--neighbours", "101"], "neighbours: 101 is not from 0 to 100"),
        (["--neighbours", "-1"], "neighbours: -1 is not"),
        (["--body-limit", "1023"], "body-limit: "),
        (["--body-limit", str(2**24 + 1)], "body-limit: "),
        (["--listen", "32766"], "listen: "),
        (["--health-listen", "localhost"], "health-listen: "),
        (["--listen", "127.0.0.1:32767"], "health-listen: port 32767 is that of listen"),
        (["--ui-listen", "127.0.0.1:32767"], "ui-listen: port 32767 is that of health-listen"),
        (["--ui-listen", "127.0.0.1:7", "--health-listen", "[::]:7"], "is that of health-listen"),
        (["--claims", "GPU"], "claims: 'GPU' is no name"),
        (["--tls-cert", "c"], "belong together"),
        (["--tls-cert", "c", "--tls-key", "k"], "belong together"),
        (["--tls-client-names", "kube-scheduler"], "tls-client-names needs"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(argv: list[str], text: str) -> None:
    assert text in refused(lambda: read(*argv))


@pytest.mark.parametrize("ui", ["127.0.0.1:0", "[::1]:32767", "127.0.0.1:1"])
def test_ports_of_different_addresses_may_be_equal(ui: str) -> None:
    assert read("--ui-listen", ui).ui_listen == ui


def test_variables_that_are_no_settings_are_found_but_for_those_of_services() -> None:
    environ = dict.fromkeys(
        (
            *("GPUSHARE_POLICIES", "GPUSHARE_POLICY", "GPUSHARE_CONFIG", "OTHER_POLICY"),
            *("GPUSHARE_EXTENDER_SERVICE_HOST", "GPUSHARE_EXTENDER_PORT_80_TCP_ADDR"),
            *("GPUSHARE_EXTENDER_PORT", "GPUSHARE_EXTENDER_SERVICE_PORT_HTTP"),
        ),
        "x",
    )
    assert unknown_variables(environ) == ["GPUSHARE_POLICIES"]


@pytest.mark.parametrize(
    "host",
    [EVERYWHERE, "[::]", "10.0.0.1", "example.com", "[::ffff:10.0.0.1]", "127.0.0.1.example.com"],
)
def test_a_listener_others_can_reach_needs_mutual_tls_or_a_word(host: str) -> None:
    listen = f"{host}:32766"
    assert "--insecure-listen" in refused(lambda: read("--listen", listen))
    assert "--insecure-listen" in refused(lambda: read(environ={"GPUSHARE_LISTEN": listen}))
    assert "--insecure-listen" in refused(lambda: read(file={"listen": listen}))
    assert read("--listen", listen, "--insecure-listen").listen == listen
    assert read("--listen", listen, file=TLS).listen == listen


def test_blanks_around_the_names_that_may_call_do_not_count() -> None:
    assert read("--tls-client-names", " a, b c", file=TLS).callers == {"a", "b c"}
    assert read().callers == frozenset()


def test_tls_without_the_names_that_may_call_is_refused_with_the_reason() -> None:
    everywhere = ("--insecure-listen", "--listen", f"{EVERYWHERE}:1")
    message = refused(lambda: read(file=NAMELESS))
    assert message == refused(lambda: read(*everywhere, file=NAMELESS))
    assert "tls-client-names is missing" in message
    assert "every kubelet" in message
    assert "system:kube-scheduler" in message


@pytest.mark.parametrize("names", [",", " ", "a,", "a,,b"])
def test_an_empty_name_is_refused_since_without_names_any_signed_certificate_may_call(
    names: str,
) -> None:
    assert "tls-client-names" in refused(lambda: read("--tls-client-names", names, file=TLS))


def test_there_is_no_page_unless_it_is_asked_for() -> None:
    assert read().ui_listen == ""
    assert read("--ui-listen", "127.0.0.1:1").ui_callers == frozenset()


def test_a_page_that_others_can_reach_needs_certificates_and_the_names_that_may_see_it() -> None:
    listen = ("--ui-listen", f"{EVERYWHERE}:32768")
    message = refused(lambda: read(*listen))
    assert message == refused(lambda: read(*listen, "--insecure-listen"))
    assert message.startswith("ui-listen: ")
    assert "kubectl port-forward" in message
    assert "ui-listen" in refused(lambda: read(*listen, file=TLS))
    names = ("--ui-tls-client-names", "operator, auditor")
    assert read(*listen, *names, file=TLS).ui_callers == {"operator", "auditor"}
    assert "needs tls-cert" in refused(lambda: read(*listen, *names))
    empty = refused(lambda: read(*listen, "--ui-tls-client-names", "a,", file=TLS))
    assert "has an empty name" in empty


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_a_loopback_listener_needs_nothing(host: str) -> None:
    assert read("--listen", f"{host}:0").listen == f"{host}:0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses_are_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert address(text, "listen") == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            ":80",
            "host",
            "host:",
            "host:x",
            "host:-1",
            "host:65536",
            "host:٨٠",
            "h:000080",
        ),
        # gunicorn would not find the port of these.
        *("::1:80", "::1", "[::1", "[::1]", "[]:80", "[host]:80", "]::1[:80"),
    ],
)
def test_other_texts_are_no_addresses(text: str) -> None:
    message = refused(lambda: address(text, "listen"))
    assert message == f"listen: {text!r} is not HOST:PORT (of IPv6: [HOST]:PORT)"
