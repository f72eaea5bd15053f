"""The measure of plain words counts the habits that it names, and nothing else."""

from pathlib import Path

from tests.support.plain_words import main, measure

_MODULE = '''
"""What came is kept; its owner knows of which card."""


class Answer:
    """A plain sentence."""


def place(asked: int, units: int) -> int:
    found = units  # noqa: F841 -- what a directive says does not count
    return found  # it is bound
'''


def test_each_habit_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(_MODULE, encoding="utf-8")
    (tmp_path / "two.py").write_text("class _Answer: ...\n", encoding="utf-8")
    (tmp_path / "made_pb2.py").write_text("what = 1\n", encoding="utf-8")
    counts = measure(tmp_path)
    assert counts.patterns == {"free what": 1, "of which, whose": 1, "it, its, they": 2}
    assert (counts.weak_names, counts.names) == (2, 3)
    assert counts.classes == {"Answer": 2}


def test_a_folder_above_a_bound_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(_MODULE, encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    (tmp_path / "one.py").write_text('"""Plain."""\nunits = 1\n', encoding="utf-8")
    assert main([str(tmp_path)]) == 0
