"""A file of YAML is read, or refused in one line that names it."""

from pathlib import Path

import pytest

from gpushare.errors import SettingsError
from gpushare.yamlfile import (
    MAX_DEPTH,
    MAX_YAML,
    parse_yaml,
    read_as_kubernetes,
    read_documents,
    read_yaml,
)


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
    with pytest.raises(SettingsError) as raised:
        read_yaml(str(file))
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


def test_a_text_from_elsewhere_is_refused_with_its_place() -> None:
    with pytest.raises(SettingsError, match=r"^ConfigMap policy: "):
        parse_yaml("{", "ConfigMap policy")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_yaml(str(tmp_path / "none.yaml"))


def as_kubernetes(folder: Path, text: str) -> object:
    file = folder / "scheduler.yaml"
    file.write_text(text)
    return read_as_kubernetes(str(file))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e2", 100),
        ("1.0", 1),
        ("1_000", 1000),
        ("017", 15),
        ("0o17", 15),
        ("0x1F", 31),
        ("-5", -5),
        ("1.5", 1.5),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("y", True),
        ("off", False),
        ("~", None),
        ('"1"', "1"),
        ("=", "="),
    ],
)
def test_a_scalar_is_what_kubernetes_programs_take_it_for(
    text: str, value: object, tmp_path: Path
) -> None:
    document = as_kubernetes(tmp_path, f"a: {text}\n---\nanother: document\n")
    assert document == {"a": value}
    assert isinstance(document, dict)
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' stands twice"),
        ("a:\n- b: 1\n  b: 2\n", "line 3: the key 'b' stands twice"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice in one object"),
        ('{"a": 1,}', r"line 1 column [89]"),  # the words are other ones from Python 3.13 on
        ("{a: 1}", "double quotes"),
        ('{"a": NaN}', "NaN is no JSON"),
        ("a: 08", None),
    ],
)
def test_what_kubernetes_programs_refuse_is_refused(
    text: str, message: str | None, tmp_path: Path
) -> None:
    if message is None:
        assert as_kubernetes(tmp_path, text) == {"a": 8}
        return
    with pytest.raises(SettingsError, match=message) as raised:
        as_kubernetes(tmp_path, text)
    assert str(raised.value).startswith(str(tmp_path))


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 1000000 values.* line 6"),
        (MERGES, "more than 1000000 values"),
        ("a: &a [*a]", "an alias stands within what it stands for"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested in more than 64 levels"),
        ("[" * 5000, "nested in more than 64 levels"),
        ("1:" * 3000 + "1", "is too long"),
        ("9" * 3000, "is too long"),
        ("x" * (MAX_YAML + 1), "of YAML; write JSON"),
        ("a: 1\n---\na: 2\n", "has 2 documents"),
    ],
    ids=["aliases", "merges", "circle", "deep", "open", "sexagesimal", "number", "long", "two"],
)
def test_what_stands_for_more_than_it_is_gets_refused(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=f"^here: .*{words}"):
        parse_yaml(text, "here")


def test_aliases_within_the_bounds_are_read_and_long_texts_too() -> None:
    document = parse_yaml(f"a: &a {{x: 1}}\nb: [*a, *a]\nc: {'y' * 1000}\nd: {{<<: *a}}", "here")
    assert document == {"a": {"x": 1}, "b": [{"x": 1}] * 2, "c": "y" * 1000, "d": {"x": 1}}


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[" * 100_000], ids=["objects", "lists"])
def test_deep_json_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="nested"):
        read_documents(str(file))


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(SettingsError, match="/dev/zero: has more than"):
        read_yaml("/dev/zero")
