"""Schemathesis: calls made up from the OpenAPI document; statuses and answers are as it says.

Whether a call is refused is not judged by its status: filter and bind have none but 200.
"""

import warnings
from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Err
from schemathesis.specs.openapi import checks

from tests.badinput.world import BadWorld, url

_CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def conform(world: BadWorld, examples: int, number: int) -> tuple[Counter[str], list[str]]:
    """(calls by operation and mode, findings). examples: of each operation in each mode."""
    sent: Counter[str] = Counter()
    findings: list[str] = []
    schema = schemathesis.openapi.from_url(url(world))
    for found in schema.get_all_operations():
        if isinstance(found, Err):
            findings.append(f"the document is wrong: {found.err()}")
            continue
        operation = found.ok()
        for mode in GenerationMode:
            name = f"{operation.label} ({mode.value})"
            try:
                calls = operation.as_strategy(generation_mode=mode)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    sent[name] = _call(calls, examples, number)
            except Unsatisfiable:
                sent[name] = 0  # a call without a body or parameters cannot be wrong
            except (Failure, FailureGroup) as error:
                findings.append(f"{name}: {error} {getattr(error, 'exceptions', '')}")
    return sent, findings + world.changes()


def _call(calls: SearchStrategy[Any], examples: int, number: int) -> int:
    """How many calls were made. Raises Failure or FailureGroup where one is not as described."""
    sent = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @seed(number)
    @given(case=calls)
    def conforms(case: Any) -> None:
        nonlocal sent
        sent += 1
        case.call_and_validate(checks=_CHECKS, timeout=20)

    conforms()
    return sent
