"""The program `gpushare`: commands, exit codes, and modules that are not imported."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare import __version__
from gpushare.cli.main import main

COMMANDS = (
    *("completion", "defrag"),
    *("demo", "device-plugin", "doctor", "explain", "inspect", "report"),
    "scheduler-config",
    "serve",
    "simulate",
    "whatif",
)
NEEDED = {
    "completion": ["bash"],
    "simulate": ["churn"],
    "explain": ["p"],
    "defrag": ["--for=8GiB"],
    "report": ["--prometheus=http://a"],
}
"""Without these words the command line of a command is wrong."""
HEAVY = ("flask", "gunicorn", "kubernetes", "msgspec", "numpy", "prometheus_client", "yaml")


def run(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "gpushare.cli.main", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_is_said(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"gpushare {__version__}\n"


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_every_command(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    output = capsys.readouterr().out
    assert output.startswith("usage: gpushare COMMAND")
    for command in COMMANDS:
        assert f"\n  {command}" in output


def test_a_word_that_is_no_command_ends_with_2_and_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["fly", "--high"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (
        f"gpushare: no command is called 'fly'; there are: {', '.join(COMMANDS)}\n"
        "See 'gpushare --help' for usage.\n"
    )


def test_no_word_at_all_ends_with_2_and_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: gpushare COMMAND")


def test_ctrl_c_ends_a_command_that_waits_in_silence(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = {
            "name": "c",
            "cluster": {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"},
        }
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        document = {"clusters": [cluster], "contexts": [context], "users": users}
        kubeconfig.write_text(json.dumps({**document, "current-context": "c"}))
        with (
            subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "gpushare.cli.main",
                    "doctor",
                    "--kubeconfig",
                    str(kubeconfig),
                ],
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
            silent.accept()[0],
        ):
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize("words", ["help", "demo 1-binpack"])
def test_a_command_needs_no_stdout(words: str) -> None:
    command = ["sh", "-c", f'exec "$0" -P -m gpushare.cli.main {words} >&-', sys.executable]
    ran = subprocess.run(command, stderr=subprocess.PIPE, check=False, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("command", ["help", "demo --list"])
def test_output_that_finds_no_room_is_one_line(command: str) -> None:
    words = [sys.executable, "-P", "-m", "gpushare.cli.main", *command.split()]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    message = "gpushare: the output cannot be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (1, message)


def test_a_reader_that_has_gone_ends_a_command_in_silence() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-P", "-m", "gpushare.cli.main", "help"]
    try:
        ran = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, check=False, text=True
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")


ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("environment", "letters"),
    [
        (ASCII, "ok NOT +- # ?"),
        (C_LOCALE, "ok NOT +- # ?"),
        ({"PYTHONIOENCODING": "latin-1"}, "ok NOT \u00b1 # ?"),
        ({"PYTHONIOENCODING": "utf-8"}, "\u2713 \u2717 \u00b1 \u2588 \u4e2d"),
    ],
)
def test_output_that_cannot_show_a_sign_gets_plain_letters(
    environment: dict[str, str], letters: str
) -> None:
    signs = r"\u2713 \u2717 \u00b1 \u2588 \u4e2d"
    program = f"from gpushare.cli.exit_codes import ended; ended(lambda: print('{signs}') or 0)"
    inherited = {k: v for k, v in os.environ.items() if k not in {*ASCII, *C_LOCALE}}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={**inherited, **environment},
    )
    assert ran.stdout.decode(environment.get("PYTHONIOENCODING", "ascii")) == f"{letters}\n"


def test_the_command_ends_with_what_main_returns() -> None:
    ran = run("fly")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("gpushare: no command is called 'fly'")


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the text of `--help` with joined lines."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_a_default_once_and_no_default_that_is_nothing(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    help_text = help_of(command, capsys)
    assert re.findall(r"\(default: [^)]*\) \(default", help_text) == []
    assert "(default: none)" not in help_text
    assert "(default: )" not in help_text


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_is_told_in_two_lines_by_every_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, *NEEDED.get(command, []), "--high"])
    # Commands of `kubectl inspect gpushare` have kubectl's prefix.
    as_kubectl = ("explain", "inspect", "report", "whatif")
    first = "error" if command in as_kubectl else f"gpushare {command}"
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        f"{first}: unrecognized arguments: --high\nSee 'gpushare {command} --help' for usage.\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_of_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([command, "--help"])
    except SystemExit as end:
        code = 0 if end.code in (0, None) else 1
    assert code == 0
    assert f"gpushare {command}" in capsys.readouterr().out


def test_what_no_command_was_called_for_is_not_imported() -> None:
    program = (
        "import sys; import gpushare.cli.main as cli; cli.main(['--version']);"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == f"gpushare {__version__}\n[]\n"


BAD_FILES = {
    "missing": None,
    "not-yaml": b"{listen: [",
    "not-text": b"\xff\xfe\x00",
    "a-list": b"- listen",
    "unknown-key": b"lisen: 127.0.0.1:1",
    "wrong-kind": b"threads: many",
    "open-to-all": b"listen: 0.0.0.0:32766",
    "no-policy": b"policy: luck",
    "no-unit": b"unit: TiB",
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_serve_refuses_a_bad_file_with_2_and_one_line(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.yaml"
    if content is not None:
        path.write_bytes(content)
    assert main(["serve", "--config", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("gpushare serve: ")
    assert output.err.count("\n") == 1


def test_serve_shows_no_traceback(tmp_path: Path) -> None:
    ran = run("serve", "--config", str(tmp_path / "missing.yaml"))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("gpushare serve: ")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("guest", ["grpc", "google.protobuf", "pynvml"])
def test_without_its_extra_what_runs_on_nodes_says_what_to_install(
    guest: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The package keeps the module that is imported anew, and later tests patch the one before.
    monkeypatch.setattr("gpushare.device_plugin", None, raising=False)
    for name in list(sys.modules):
        if name.startswith("gpushare.device_plugin"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, guest, None)
    assert main(["device-plugin"]) == 2
    assert "install gpushare[device-plugin]" in capsys.readouterr().err
