"""The check of the bill of materials names missing components."""

import json
from pathlib import Path

import pytest

from tests.support.sbom import locked, main, missing

A, B = "a" * 64, "b" * 64
LOCK = f"""\
# a comment
flask==3.1.2 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via gpushare (setup.cfg)
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:{A}
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:{B}
"""


def component(name: str, version: str, *hashes: str) -> dict[str, object]:
    digests = [{"alg": "SHA-256", "content": digest} for digest in hashes]
    return {"name": name, "version": version, "externalReferences": [{"hashes": digests}]}


WHOLE = [
    component("flask", "3.1.2", A, B),
    component("numpy", "2.4.6", A),
    component("numpy", "2.5.5", B),
]


def test_a_lock_file_names_versions_and_hashes() -> None:
    assert locked(LOCK) == {
        ("flask", "3.1.2"): {A, B},
        ("numpy", "2.4.6"): {A},
        ("numpy", "2.5.5"): {B},
    }


@pytest.mark.parametrize(
    ("components", "messages"),
    [
        (WHOLE, []),
        (WHOLE[1:], ["flask 3.1.2 is not named"]),
        ([component("flask", "3.1.2", A), *WHOLE[1:]], ["flask 3.1.2 is named with other hashes"]),
        ([*WHOLE, component("x", "1")], ["x 1 is named, but not locked"]),
    ],
)
def test_what_is_missing_is_told(components: list[object], messages: list[str]) -> None:
    assert list(missing({"components": components}, locked(LOCK))) == messages


def test_it_ends_with_1_where_something_is_missing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    for components, code in ((WHOLE, 0), (WHOLE[1:], 1)):
        (tmp_path / "bom").write_text(json.dumps({"components": components}))
        assert main([str(tmp_path / "bom"), str(tmp_path / "lock")]) == code
