"""The schema of the documents: complete, valid, and strict."""

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

import gpushare
from tests.support.documents import check, schema
from tests.unit.cli.conftest import PRINTERS

PACKAGE = Path(gpushare.__file__).parent


def test_it_has_every_kind_of_document_and_is_a_schema() -> None:
    Draft202012Validator.check_schema(schema())
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    kinds = set(re.findall(r'KIND = "(GPUShare\w+)"', "\n".join(sources)))
    assert {ref["$ref"].rpartition("/")[2] for ref in schema()["oneOf"]} == {*kinds, "DoctorReport"}
    printers = [path.stem for path in PACKAGE.glob("cli/*.py") if "dumped(" in path.read_text()]
    assert sorted({*printers} - {"documents"}) == sorted(PRINTERS)


def objects(part: Any) -> list[dict[str, Any]]:
    """All objects with properties in a part of the schema."""
    items = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    own = [part] if isinstance(part, dict) and isinstance(part.get("properties"), dict) else []
    return own + [found for item in items for found in objects(item)]


def test_no_object_may_have_a_key_that_is_not_described() -> None:
    assert len(objects(schema())) > 50
    assert all(found["additionalProperties"] is False for found in objects(schema()))


def test_a_key_too_many_and_one_that_is_missing_are_found() -> None:
    document: dict[str, Any] = {"apiVersion": "gpushare.io/v1", "kind": "DoctorReport"}
    document["result"] = "ok"
    document |= {"counts": dict.fromkeys(("ok", "warn", "fail", "skip"), 0), "findings": []}
    check(document)
    with pytest.raises(AssertionError, match="'more' was unexpected"):
        check(document | {"more": 1})
    del document["findings"]
    with pytest.raises(AssertionError, match="'findings' is a required property"):
        check(document)
