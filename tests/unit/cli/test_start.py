"""Help needs the standard library alone, and not the imports of the command."""

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

import pytest

from gpushare.cli import parsers
from gpushare.cli.commands import MODULES, PARSERS, parser_of
from gpushare.commandline import PASSED_ON
from gpushare.doctor.options import doctor_parser
from gpushare.explain import defrag

HEAVY = ("numpy", "urllib3", "flask", "msgspec", "gunicorn", "yaml")


@pytest.mark.parametrize("command", sorted(PARSERS))
def test_help_imports_nothing_heavy(command: str) -> None:
    code = f"""
import json, sys
from gpushare.cli.main import main
try:
    main([{command!r}, "--help"])
except SystemExit:
    pass
print(json.dumps(sorted(set(sys.modules) & set({HEAVY!r}))), file=sys.stderr)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert f"usage: gpushare {command}" in process.stdout
    assert json.loads(process.stderr.splitlines()[-1]) == []


@pytest.mark.parametrize("command", sorted(PARSERS))
def test_help_is_that_of_the_command(command: str) -> None:
    text = []
    run: Callable[..., object] = import_module(MODULES[command]).main
    if command == "inspect":
        run = partial(run, prog="gpushare inspect")
    for ask in (parser_of(command).parse_args, run):
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            ask(["-h"])
        text.append(out.getvalue())
    assert text[0] == text[1]
    assert text[0]


def test_a_mistake_beside_help_is_told_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        doctor_parser().parse_args(["--unit"])
    assert "gpushare doctor" in capsys.readouterr().err


def test_the_default_of_moves_is_that_of_plans() -> None:
    assert parsers.MOVES == defrag.MOST_MOVES


@pytest.mark.parametrize(
    "command", ["defrag", "doctor", "explain", "inspect", "scheduler-config", "simulate", "whatif"]
)
def test_an_option_is_written_alike_in_every_command(command: str) -> None:
    needed = {"simulate": ["churn"], "explain": ["p"], "defrag": ["--for=8GiB"]}
    words = [*needed.get(command, []), "--kubeconfig=f", *(f"{flag}=c" for flag in PASSED_ON)]
    values = parser_of(command).parse_args(words)
    assert values.kubeconfig == "f"
    assert {getattr(values, flag.strip("-").replace("-", "_"))[0] for flag in PASSED_ON} == {"c"}
    if command != "scheduler-config":
        values = parser_of(command).parse_args([*words, "-o=json", "--unit=MiB"])
        assert (values.output, values.unit) == ("json", "MiB")


def test_an_empty_value_takes_no_other_word() -> None:
    values = parser_of("explain").parse_args(["-n=", "web-0"])
    assert values.namespace == ""
