"""A file of YAML is read, or refused in one line that names it."""

from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.yamlfile import parse_yaml, read_yaml


def test_a_file_is_read_and_an_empty_one_is_none(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("units: [1, 2]")
    assert read_yaml(str(file)) == {"units": [1, 2]}
    file.write_text("")
    assert read_yaml(str(file)) is None


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe\xfa", b"[" * 5000, b"a: 9999-99-99"])
def test_what_cannot_be_read_is_said_in_one_line_with_its_place(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingsError) as refused:
        read_yaml(str(file))
    assert str(refused.value).startswith(str(file))
    assert "\n" not in str(refused.value)


def test_a_text_from_elsewhere_is_refused_with_its_place() -> None:
    with pytest.raises(SettingsError, match=r"^ConfigMap policy: "):
        parse_yaml("{", "ConfigMap policy")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_yaml(str(tmp_path / "none.yaml"))
