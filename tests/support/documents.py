"""The documents that commands print, held against their schema."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "gpushare.io-v1.json"


@cache
def schema() -> dict[str, Any]:
    """Return the schema of all documents."""
    whole: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return whole


@cache
def _validator(kind: str) -> Any:
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema()["$defs"]})


def check(document: Mapping[str, Any]) -> None:
    """Raise AssertionError for a document with a key that its schema lacks, or without one."""
    read_back = json.loads(json.dumps(document))
    mistakes = [
        f"{error.json_path}: {error.message[:300]}"
        for error in _validator(str(document["kind"])).iter_errors(read_back)
    ]
    assert not mistakes, mistakes
