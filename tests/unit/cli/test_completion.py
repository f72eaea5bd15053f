"""The completion of `gpushare`, and the scripts of the shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.cli.commands import PARSERS
from gpushare.cli.completion import complete_command, main
from gpushare.cli.main import main as gpushare
from tests.unit.cli.fake_kubectl import FakeKubectl

NO_FILES = ":4"
FILES = ":0"


def completed(*words: str) -> list[str]:
    environ = {"PATH": "", "KUBECTL": "/no/such/kubectl"}
    return complete_command(words, environ).splitlines()


def test_the_first_word_is_a_command() -> None:
    *commands, directive = completed("")
    assert {*PARSERS} < {*commands}
    assert directive == NO_FILES
    assert completed("wh") == ["whatif", NO_FILES]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("completion ", ["bash", "fish", "zsh", NO_FILES]),
        ("completion b", ["bash", NO_FILES]),
        ("demo ", [FILES]),
        ("explain -o ", ["json", "yaml", NO_FILES]),
        ("explain --output=j", ["--output=json", NO_FILES]),  # one word in zsh and fish
        ("explain --output = j", ["json", NO_FILES]),  # as bash splits it
        ("explain -o =", ["json", "yaml", NO_FILES]),
        ("whatif --unit ", ["GiB", "MiB", NO_FILES]),
        ("whatif --snapshot ", [FILES]),
        ("whatif --nee", ["--need\thow many more nodes take all pods: see below", NO_FILES]),
        ("doctor -o ", ["text", "json", "yaml", NO_FILES]),
        ("scheduler-config --order ", ["ours", "shared", NO_FILES]),
        ("simulate ", ["inflation", "churn", "replay", NO_FILES]),
        ("simulate churn --warm", ["--warmup\tmean lifetimes that are not measured", NO_FILES]),
        ("simulate replay --warm", [NO_FILES]),
        ("explain ", [NO_FILES]),  # kubectl does not answer
        ("fly ", [FILES]),
    ],
)
def test_what_can_follow_is_offered(words: str, answer: list[str]) -> None:
    assert completed(*words.split(" ")) == answer


def test_pods_of_the_named_cluster_are_offered(kubectl: FakeKubectl) -> None:
    path = "get --raw /api/v1/namespaces/team/pods --context=dev --request-timeout=3s"
    kubectl.answers(path, '{"items": [{"metadata": {"name": "web-0"}}]}')
    words = ["explain", "--context=dev", "-n", "team", ""]
    assert complete_command(words, kubectl.environ).splitlines() == ["web-0", NO_FILES]


@pytest.mark.parametrize("command", sorted(PARSERS))
def test_each_option_of_a_command_is_offered(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gpushare([command, "--help"])
    options = {line.partition("\t")[0] for line in completed(command, "--")} - {NO_FILES}
    help_text = capsys.readouterr().out
    assert "--help" in options
    assert all(option in help_text for option in options)


def test_the_program_completes(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpushare(["__complete", "completion", "f"]) == 0
    assert capsys.readouterr().out == f"fish\n{NO_FILES}\n"


BASH = """\
source <(gpushare completion bash)
COMP_WORDS=({words})
COMP_CWORD=$(({at} - 1))
_gpushare
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
SHELLS = {
    "bash": BASH,
    "zsh": "autoload -U compinit; compinit -D; source <(gpushare completion zsh); echo $?",
    "fish": 'gpushare completion fish | source; complete -C "gpushare explain -o "',
}


@pytest.fixture
def program(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell with `gpushare` on PATH."""
    file = tmp_path / "gpushare"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m gpushare.cli.main "$@"\n')
    file.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("gpushare explain -o ''", ["json", "yaml"]),
        ("gpushare scheduler-config --order = s", ["shared"]),
        ("gpushare whatif --nee", ["--need"]),
    ],
)
def test_bash_shows_the_candidates(program: dict[str, str], words: str, answer: list[str]) -> None:
    script = BASH.format(words=words, at=len(words.split()))
    # compopt works in a completion alone.
    ran = subprocess.run(
        ["bash", "-c", f"compopt() {{ :; }}; {script}"],
        env=program,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ran.stdout.splitlines(), ran.stderr) == (answer, "")


@pytest.mark.parametrize(("shell", "answer"), [("zsh", ["0"]), ("fish", ["json", "yaml"])])
def test_other_shells_read_their_script(
    program: dict[str, str], shell: str, answer: list[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on PATH")
    words = [shell, "-c", SHELLS[shell]]
    ran = subprocess.run(words, env=program, capture_output=True, text=True, check=True)
    assert (ran.stdout.splitlines(), ran.stderr) == (answer, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([shell]) == 0
    assert "__complete" in capsys.readouterr().out
