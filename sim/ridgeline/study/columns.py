"""Formulas over the columns of a row: constraints and derived columns, without running code.

A formula is arithmetic on names, numbers and quantities in quotes. The loss of a language model by
a scaling law (`workload.scaling_law`) is a function: ``chinchilla_loss(parameters, tokens)``.

It is parsed by Python's own parser, of whose tree only the nodes in this module are understood;
anything else is an error.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline import units
from ridgeline.errors import ConfigError, RidgelineError, nearest
from ridgeline.workload.scaling_law import SCALING_LAWS

MAX_LENGTH = 500
Number = int | float
_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda a, b: float(a) ** float(b),  # as floats: a power of whole numbers has no bound
}
_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}
_LOSS = "_loss"  # behind the name of a scaling law


@dataclass(frozen=True)
class Formula:
    """An expression over columns; `names` are the columns that it reads, as they are written."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def value(self, row: Mapping[str, Any]) -> Any:
        """Evaluate over a row.

        Raises
        ------
        ConfigError
            If the row lacks a column, or the arithmetic is impossible (a division by zero).
        """
        try:
            return _value(self.tree, row)
        except ConfigError:
            raise
        except (ArithmeticError, ValueError, TypeError, RidgelineError) as error:
            raise ConfigError(f"{self.text!r} cannot be computed: {error}") from error


def _function(name: str) -> Callable[..., Any] | None:
    """Return a function by its name in formulas; None if there is none."""
    law = name.removesuffix(_LOSS)
    return SCALING_LAWS[law].loss if name != law and law in SCALING_LAWS else _FUNCTIONS.get(name)


def parse_formula(text: str) -> Formula:
    """Read a formula.

    Raises
    ------
    ConfigError
        If it is too long, cannot be parsed, or holds anything but arithmetic, comparison, and, or,
        not, the functions abs, ceil, floor, log2, log10, max, min and sqrt, and losses by scaling
        laws.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"a formula has at most {MAX_LENGTH} characters, found {len(text)}")
    try:
        tree = ast.parse(text.replace("\n", " ").strip(), mode="eval").body
        names = frozenset(_names(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{text!r} is not a formula: {getattr(error, 'msg', error)}") from error
    return Formula(text, tree, names)


def resolve(name: str, columns: Iterable[str]) -> str:
    """Return the column that a name means: itself, or the only one that ends with it.

    Raises
    ------
    ConfigError
        If there is none, or several.
    """
    columns = list(columns)
    if name in columns:
        return name
    found = [column for column in columns if column.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{name!r} may be any of {', '.join(found)}: write more of its path")
    raise ConfigError(
        f"there is no column {name!r}{nearest(name, columns)} (there are: {', '.join(columns)})"
    )


def number(value: Any) -> Any:
    """Return the SI value of a quantity such as "900 GB/s"; other values as they are."""
    if isinstance(value, str):
        try:
            return units.quantity(value)
        except ConfigError:
            return value
    return value


def _names(node: ast.expr) -> Iterable[str]:
    """Yield the column names in a tree, and refuse every node that has no meaning here."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return
        case ast.Name() | ast.Attribute():
            yield _dotted(node)
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Not(), operand=operand):
            parts = [operand]
        case ast.BoolOp(values=values):
            parts = values
        case ast.Compare(left=left, ops=ops, comparators=right_) if all(
            type(op) in _COMPARE for op in ops
        ):
            parts = [left, *right_]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if _function(name):
            parts = args
        case _:
            raise ConfigError(
                f"{ast.unparse(node)!r} is not allowed in a formula; there are + - * / // % **, "
                f"comparisons, and, or, not, and "
                f"{', '.join([*_FUNCTIONS, *(law + _LOSS for law in SCALING_LAWS)])}"
            )
    for part in parts:
        yield from _names(part)


def check_divisors(formula: Formula) -> None:
    """Raise ConfigError where a divisor is the number zero, whatever a row holds."""
    for node in ast.walk(formula.tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            try:
                is_zero = not list(_names(node.right)) and _value(node.right, {}) == 0
            except (ArithmeticError, ValueError, TypeError):
                continue  # what it is, is said when it is computed
            if is_zero:
                raise ConfigError(f"{ast.unparse(node)!r} divides by zero")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ConfigError(f"{ast.unparse(node)!r} is not the name of a column")


def _value(node: ast.expr, row: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - a case a node
    match node:
        case ast.Constant(value=value):
            return number(value)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, row), _value(right, row)
            if isinstance(a, str) or isinstance(b, str):  # a text times a number would be a text
                raise TypeError(f"{a if isinstance(a, str) else b!r} is not a number")
            return _BINARY[type(op)](a, b)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, row)
        case ast.UnaryOp(op=op, operand=operand):
            return -_value(operand, row) if isinstance(op, ast.USub) else _value(operand, row)
        case ast.BoolOp(op=op, values=values):
            together = all if isinstance(op, ast.And) else any
            return together(_value(part, row) for part in values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            chain = [_value(part, row) for part in (left, *comparators)]
            pairs = zip(ops, chain, chain[1:], strict=False)
            return all(_COMPARE[type(op)](a, b) for op, a, b in pairs)
        case ast.Call(func=ast.Name(id=name), args=args):
            function = _function(name)
            assert function is not None  # `_names` has seen that there is one
            return function(*(_value(part, row) for part in args))
    value = number(row[resolve(_dotted(node), row)])
    if value is None or value == "":
        raise ValueError(f"{_dotted(node)!r} has no value in this row")
    return value
