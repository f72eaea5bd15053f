"""CEL selectors of devices, evaluated with the functions that Kubernetes adds.

A quantity is a list of one integer, in thousandths, so that no number equals a quantity; a semantic
version is a text. Missing of Kubernetes' functions: optional values (`?.`), `find` and `findAll`
(Python's patterns can take exponential time), sums of lists, sets, IP addresses and URLs.

The API server checks the cost of an expression before storing. Here the length is bounded, and the
time that all evaluations of one expression take together.

Tested in `tests/unit/wire/dra/test_selectors.py`.
"""

import re
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, TypeVar

from gpushare.core.claims.model import Attribute, Device
from gpushare.wire.dra.cel_functions import FUNCTIONS

if TYPE_CHECKING:
    from cel import Program

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

Clock = Callable[[], float]
"""Seconds of CPU time of this thread (time.thread_time)."""

MAX_EXPRESSION = 10 << 10
"""Characters of an expression, as the API server allows."""

_FREE_SECONDS = 0.05
_SECONDS_EACH = 1e-4
"""Time that the evaluations of one expression may take: some at once, and a little for each. After
that the expression counts as true."""

_MAX_EXPRESSIONS = 1024
_MAX_RESULTS = 1 << 16
_MAX_VERDICTS = 64
_MAX_NAMES = 256

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOMAIN = re.compile(r"""\b(?:attributes|capacity)\s*\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]""")
_TOKEN = re.compile(
    r"""
    [bB]?[rR](?:"[^"]*"|'[^']*')                         # a raw string
    | [bB]?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')     # a string
    | \bcel\s*\.\s*bind\s*\(
    | [()\[\]{},]
    """,
    re.DOTALL | re.VERBOSE,
)
_WHOLE_MAPS = frozenset({"@not_strictly_false", "_+_", "size", "type", "dyn"})
"""Functions that make an expression depend on attributes without naming them."""


class _Expression:
    """A compiled expression."""

    __slots__ = ("_domains", "_functions", "_named", "_program", "_words", "seconds_left")

    def __init__(self, text: str) -> None:
        """Compile an expression. Raises ValueError."""
        self._program: Program = _cel().compile(_without_bindings(text))
        self.seconds_left = _FREE_SECONDS
        """Remaining time for evaluations."""
        functions = set(self._program.functions())
        self._functions = {name: FUNCTIONS[name] for name in functions & FUNCTIONS.keys()}
        self._domains = {double or single for double, single in _DOMAIN.findall(text)}
        """Domains in the expression: a domain that a device lacks is empty, not an error."""
        is_named = _WHOLE_MAPS.isdisjoint(functions) and "\\" not in text
        self._words = frozenset(_WORD.findall(text)) if is_named else None
        """Names of attributes and capacities that the result may depend on; None: all."""
        self._named: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Names that the result may depend on, by the names that a device has."""

    def content(self, device: Device) -> tuple[Any, ...]:
        """Return the part of a device that decides the result."""
        attributes, capacities = device.attributes, device.capacities
        return (
            device.key.driver,
            device.is_shared,
            tuple([(name, attributes[name]) for name in self._names(attributes)]),
            tuple([(name, capacities[name].value) for name in self._names(capacities)]),
        )

    def _names(self, items: Mapping[str, object]) -> tuple[str, ...]:
        """Return the names among these that decide the result."""
        names = tuple(items)
        words = self._words
        if words is None:
            return names
        relevant_names = self._named.get(names)
        if relevant_names is None:
            if len(self._named) >= _MAX_NAMES:
                self._named.clear()
            relevant_names = tuple(name for name in names if name.rpartition("/")[2] in words)
            self._named[names] = relevant_names
        return relevant_names

    def evaluate(self, content: tuple[Any, ...]) -> object:
        """Return the result for a device. Raises any error that the evaluation ends with."""
        driver, is_shared, attributes, capacities = content
        variables: dict[str, dict[str, dict[str, Any]]] = {"attributes": {}, "capacity": {}}
        for maps in variables.values():
            maps.update((domain, {}) for domain in self._domains)
        for name, attribute in attributes:
            if attribute.kind:
                domain, _, short = name.rpartition("/")
                variables["attributes"].setdefault(domain, {})[short] = _value(attribute)
        for name, amount in capacities:
            domain, _, short = name.rpartition("/")
            variables["capacity"].setdefault(domain or driver, {})[short] = [amount]
        device = {"driver": driver, "allowMultipleAllocations": is_shared, **variables}
        return self._program.execute(_cel().Context({"device": device}, self._functions))


class Selectors:
    """Compiled selectors with results; any thread may ask.

    A selector that cannot be evaluated counts as true. An expression is compiled once, and
    evaluated once for all devices with equal values of the attributes and capacities in the
    expression.
    """

    def __init__(self, clock: Clock) -> None:
        """Begin with no compiled selector."""
        self._clock = clock
        self._expressions: dict[str, _Expression | None] = {}
        """None: cannot be compiled."""
        self._results: dict[tuple[str, tuple[Any, ...]], bool] = {}
        self.unevaluated: dict[str, int] = dict.fromkeys(("compile", "evaluate", "time"), 0)
        """Devices that passed a selector because a step failed, by the step: "compile",
        "evaluate", or "time" of an expression that took too long."""

    def matches(self, selectors: tuple[str, ...], device: Device) -> bool:
        """Return whether all selectors are true of a device."""
        verdict = device.verdicts.get(selectors)
        if verdict is None:
            verdict = all(self._is_true(text, device) for text in selectors)
            if len(device.verdicts) >= _MAX_VERDICTS:
                device.verdicts.clear()
            device.verdicts[selectors] = verdict
        return verdict

    def _is_true(self, text: str, device: Device) -> bool:
        expression = self._expression(text)
        if expression is None:
            self.unevaluated["compile"] += 1
            return True
        content = expression.content(device)
        result = self._results.get((text, content))
        if result is not None:
            return result
        if expression.seconds_left < 0:
            self.unevaluated["time"] += 1
            return True
        started_at = self._clock()
        outcome = _result_of(expression.evaluate, content)
        expression.seconds_left += _SECONDS_EACH - (self._clock() - started_at)
        if not isinstance(outcome, bool):
            self.unevaluated["evaluate"] += 1
            outcome = True
        if len(self._results) >= _MAX_RESULTS:
            self._results.clear()
        self._results[text, content] = outcome
        return outcome

    def _expression(self, text: str) -> _Expression | None:
        try:
            return self._expressions[text]
        except KeyError:
            pass
        expression = None
        if len(text) <= MAX_EXPRESSION:
            expression = _result_of(_Expression, text)
        if len(self._expressions) >= _MAX_EXPRESSIONS:
            self._expressions.clear()
        self._expressions[text] = expression
        return expression


def _result_of(function: Callable[[_Argument], _Result], argument: _Argument) -> _Result | None:
    """Return the result of a function of the library, None for any error.

    The library raises the errors of the functions, and a PanicException, which is no Exception, for
    bugs of the library.
    """
    try:
        return function(argument)
    except Exception:
        return None
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


def _value(attribute: Attribute) -> object:
    return (
        str(attribute.value).partition("+")[0] if attribute.kind == "version" else attribute.value
    )


@lru_cache(maxsize=1)
def _cel() -> Any:  # noqa: ANN401  # its types are those of the package, which is not imported
    """Return the extension module of the package `cel`.

    The package itself would import a command line too, which takes 0.3 s and 15 MiB.
    """
    package = find_spec("cel")
    paths = package and package.submodule_search_locations
    spec = paths and PathFinder.find_spec("cel.cel", list(paths))
    if not spec or spec.loader is None:
        raise ImportError("common-expression-language is not installed")
    if spec.name not in sys.modules:
        # A process may load the module once, and may import the package later.
        sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[spec.name])
    return sys.modules[spec.name]


def _without_bindings(text: str) -> str:
    """Return the expression with each cel.bind(NAME, VALUE, BODY) as [VALUE].map(NAME, BODY)[0].

    That is the same, since a map of one value has one result. Raises ValueError if brackets do not
    match, or a binding has not three arguments.
    """
    if "bind" not in text:
        return text
    # (is a binding, arguments) for each open bracket; an argument is a list of texts.
    frames: list[tuple[bool, list[list[str]]]] = [(False, [[]])]
    end = 0
    for token in _TOKEN.finditer(text):
        frames[-1][1][-1].append(text[end : token.start()])
        end = token.end()
        word = token[0]
        if word[-1] in "([{" and len(word) > 1:
            frames.append((True, [[]]))
        elif word in "([{":
            frames.append((False, [[word]]))
        elif word in ")]}":
            is_binding, arguments = frames.pop()
            if not frames:
                raise ValueError("brackets do not match")
            texts = ["".join(argument) for argument in arguments]
            if is_binding:
                name, value, body = texts
                frames[-1][1][-1].append(f"[{value}].map({name}, {body})[0]")
            else:
                frames[-1][1][-1].append(texts[0] + word)
        elif word == "," and frames[-1][0]:
            frames[-1][1].append([])
        else:
            frames[-1][1][-1].append(word)
    if len(frames) > 1:
        raise ValueError("brackets do not match")
    return "".join(frames[0][1][0]) + text[end:]
