"""A program tells what it does, and ends at the first thing that is not as expected."""

import pytest

from gpushare_localcluster.demo.programs import gpushare, wait_for


def test_what_comes_true_is_told_and_what_does_not_ends_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = iter([False, True])
    wait_for(lambda: next(answers), "it is so")
    assert capsys.readouterr().out == "   ✓ it is so\n"
    with pytest.raises(AssertionError, match="not so within 0 s: never"):
        wait_for(lambda: False, "never", seconds=0.0)


def test_a_command_is_shown_with_its_output_and_its_exit_code_matters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = gpushare("report", "--since", "soon", hidden=("--prometheus", "x"), code=2)
    assert text == ""
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "   $ gpushare report --since soon"
    assert "--since: 'soon' is not from 5m" in "".join(shown)
    with pytest.raises(AssertionError, match="exit code 0, and not 2"):
        gpushare("report", "--since", "soon")
