"""Python files with training recipes, read by their syntax alone: nothing is imported or run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.study.launch.sources import LaunchSource, hole

_DEEPEST = 8


@dataclass
class RecipeValue:
    """A value that a recipe gives, and the line where it does."""

    value: Any
    line: int


@dataclass
class Recipe:
    """What a recipe sets.

    Attributes
    ----------
    values
        By path: ``model.tensor_model_parallel_size``.
    calls
        Functions that are called on the way, with their arguments as far as they are literal, and
        the line.
    """

    name: str
    line: int
    values: dict[str, RecipeValue] = field(default_factory=dict)
    calls: list[tuple[str, tuple[Any, ...], int]] = field(default_factory=list)

    def put(self, path: str, value: Any, line: int) -> None:
        """Set a value; what was set below the path before is gone."""
        for key in [key for key in self.values if key.startswith(f"{path}.")]:
            del self.values[key]
        self.values[path] = RecipeValue(value, line)


def tree(source: LaunchSource) -> ast.Module:
    """Return the syntax tree of a Python file."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(source.text)
    except SyntaxError as error:
        raise source.error(f"not Python: {error.msg}", error.lineno or 0) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise source.error("not Python that can be read") from error


def functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a file by name."""
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


def exported(module: ast.Module) -> list[str]:
    """Return the names in ``__all__``."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            found = literal(node.value, {})
            return [str(each) for each in found] if isinstance(found, list) else []
    return []


def literal(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - a case each
    """Return the value of an expression; a placeholder where it is not given in the file."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return names.get(name, hole(name))
        case ast.Attribute(_, attribute):
            return attribute
        case ast.List(elements) | ast.Tuple(elements) | ast.Set(elements):
            return [literal(each, names) for each in elements]
        case ast.Dict(keys, values):
            return {
                str(literal(key, names)): literal(value, names)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.UnaryOp(ast.USub(), operand):
            value = literal(operand, names)
            return -value if isinstance(value, int | float) else value
        case ast.BinOp(left, operator, right):
            return _combined(literal(left, names), operator, literal(right, names))
        case ast.Call():
            return hole(_callee(node.func))
    return hole(ast.unparse(node)[:60])


def _combined(left: Any, operator: ast.operator, right: Any) -> Any:
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    match operator:
        case ast.Mult() if numbers and abs(left) < 2**40 and abs(right) < 2**40:
            return left * right
        case ast.Add() if numbers or (isinstance(left, list) and isinstance(right, list)):
            return left + right
        case ast.Sub() if numbers:
            return left - right
        case ast.FloorDiv() if numbers and right:
            return left // right
        case ast.Mult() if isinstance(left, list) and isinstance(right, int) and right < 1000:
            return left * right
    return hole("a value that is worked out")


def _callee(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


def replaced(module: ast.Module, base: str) -> dict[str, Recipe]:
    """Return the values of module-level names: ``NAME = replace(OTHER, field=value)``.

    Parameters
    ----------
    base
        Name of the class that the first of them are instances of.
    """
    found: dict[str, Recipe] = {}
    for node in module.body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if not isinstance(target, ast.Name):
            continue
        recipe = Recipe(target.id, node.lineno)
        match node.value:
            case ast.Call(ast.Name(name), _, keywords) if name == base:
                _keywords(recipe, keywords)
            case ast.Call(function, [ast.Name(other), *_], keywords) if (
                _callee(function) == "replace" and other in found
            ):
                recipe.values |= found[other].values
                _keywords(recipe, keywords)
            case ast.Name(other) if other in found:
                recipe.values |= found[other].values
            case _:
                continue
        found[target.id] = recipe
    return found


def _keywords(recipe: Recipe, keywords: Sequence[ast.keyword], prefix: str = "") -> None:
    for each in keywords:
        if each.arg is not None:
            recipe.put(f"{prefix}{each.arg}", literal(each.value, {}), each.value.lineno)


def followed(module: ast.Module, name: str) -> Recipe:
    """Follow the function of a recipe: what it sets of its configuration, and what it calls."""
    defined = functions(module)
    recipe = Recipe(name, defined[name].lineno)
    _body(recipe, defined, defined[name], {}, 0)
    return recipe


def _body(
    recipe: Recipe,
    defined: Mapping[str, ast.FunctionDef],
    function: ast.FunctionDef,
    names: dict[str, Any],
    depth: int,
) -> None:
    for node in _statements(function.body, names):
        match node:
            case ast.Assign([ast.Name(target)], ast.Call() as call):
                if not _called(recipe, defined, call, names, depth):
                    names[target] = literal(call, names)
            case ast.Assign([ast.Tuple(targets)], ast.Call() as call):
                recipe.calls.append((_callee(call.func), (), call.lineno))
                for each in targets:
                    names.pop(ast.unparse(each), None)
            case ast.Assign([ast.Name(target)], value):
                names[target] = literal(value, names)
            case ast.Assign([ast.Attribute() as target], value):
                path = _path(target)
                if path:
                    _assigned(recipe, path, value, names)
            case ast.Expr(ast.Call() as call):
                _called(recipe, defined, call, names, depth)
            case ast.Return(ast.Call() as call):
                _called(recipe, defined, call, names, depth)


def _statements(body: Sequence[ast.stmt], names: Mapping[str, Any]) -> Iterator[ast.stmt]:
    """Yield statements, of conditions those of the way that is known to be taken."""
    for node in body:
        if not isinstance(node, ast.If):
            yield node
            continue
        holds = _holds(node.test, names)
        if holds is not None:
            yield from _statements(node.body if holds else node.orelse, names)


def _holds(test: ast.expr, names: Mapping[str, Any]) -> bool | None:
    match test:
        case ast.Compare(left, [ast.Eq() | ast.Is()], [right]):
            one, other = literal(left, names), literal(right, names)
            return None if _open(one) or _open(other) else bool(one == other)
        case ast.Compare(left, [ast.NotEq() | ast.IsNot()], [right]):
            one, other = literal(left, names), literal(right, names)
            return None if _open(one) or _open(other) else bool(one != other)
        case ast.UnaryOp(ast.Not(), operand):
            inner = _holds(operand, names)
            return None if inner is None else not inner
        case ast.Name() | ast.Constant():
            value = literal(test, names)
            return None if _open(value) else bool(value)
    return None


def _open(value: Any) -> bool:
    return isinstance(value, str) and "\ue002" in value


def _path(node: ast.expr) -> str:
    """Return ``model.x`` of ``cfg.model.x``; "" for what is no part of a configuration."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in {"cfg", "config", "recipe"}:
        return ".".join(reversed(parts))
    if isinstance(node, ast.Name) and node.id.endswith(("_cfg", "model_cfg", "provider")):
        return ".".join(["model", *reversed(parts)])
    return ""


def _assigned(recipe: Recipe, path: str, value: ast.expr, names: Mapping[str, Any]) -> None:
    if isinstance(value, ast.Call):
        recipe.put(path, hole(_callee(value.func)), value.lineno)
        arguments = tuple(literal(each, names) for each in value.args)
        inner: ast.expr = value.func
        while isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Call):
            inner = inner.value
            arguments += tuple(literal(each, names) for each in inner.args)
            inner = inner.func
        recipe.calls.append((f"{path}={_callee(value.func)}", arguments, value.lineno))
        for each in value.keywords:
            if each.arg is not None:
                recipe.values[f"{path}.{each.arg}"] = RecipeValue(
                    literal(each.value, names), each.value.lineno
                )
        return
    recipe.put(path, literal(value, names), value.lineno)


def _called(
    recipe: Recipe,
    defined: Mapping[str, ast.FunctionDef],
    call: ast.Call,
    names: Mapping[str, Any],
    depth: int,
) -> bool:
    """Follow a function of the same file; tell whether it makes or changes a configuration."""
    name = _callee(call.func)
    arguments = tuple(literal(each, names) for each in call.args)
    about = any("cfg" in ast.unparse(each) for each in call.args)
    if name in defined and depth < _DEEPEST:
        function = defined[name]
        given: dict[str, Any] = {}
        parameters = [each.arg for each in function.args.args]
        defaults = function.args.defaults
        for parameter, default in zip(
            parameters[len(parameters) - len(defaults) :], defaults, strict=True
        ):
            given[parameter] = literal(default, {})
        given |= dict(zip(parameters, arguments, strict=False))
        given |= {each.arg: literal(each.value, names) for each in call.keywords if each.arg}
        given.pop("cfg", None)
        _body(recipe, defined, function, given, depth + 1)
        return True
    if about or name.endswith("_config") or name.startswith("_") or "common" in name:
        recipe.calls.append((name, arguments, call.lineno))
        return True
    return False
