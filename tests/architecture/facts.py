"""What the rules ask of a Python file, found in one pass over its tree; the trees are not kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.architecture.sources import ROOTS_FOLDER, tree_of


class ClassSize(NamedTuple):
    """How large a class is: its own methods, and the attributes that these set on `self`."""

    name: str
    methods: int
    attributes: int
    description: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one file; a number is that of a line."""

    is_described: bool  # it has a docstring
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    """What stands before the last dot, the name called, the line."""
    imports: list[tuple[str, int, bool]] = field(default_factory=list)
    """Modules named in an import, relative ones with a dot; whether names are taken from them."""
    needed_at_import: list[str] = field(default_factory=list)
    """Modules that the file loads while it is itself loaded, and names that may be modules."""
    needed_at_run: list[str] = field(default_factory=list)
    """The same, and those that it loads later; only what types need is left out."""
    functions: list[tuple[str, int, int]] = field(default_factory=list)
    """Name, line, how many lines."""
    constructors: list[tuple[str, int]] = field(default_factory=list)
    """Class, how many arguments."""
    classes: list[ClassSize] = field(default_factory=list)


@cache
def facts_of(path: Path) -> Facts:
    """Return what the rules ask of a file."""
    tree = tree_of(path)
    facts = Facts(ast.get_docstring(tree) is not None)
    for_types = {id(node) for node in imports_for_types(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                facts.calls.append((shown(called.value), called.attr, node.lineno))
            elif isinstance(called, ast.Name):
                facts.calls.append(("", called.id, node.lineno))
                if called.id == "on_first_use" and isinstance(node.args[0], ast.Constant):
                    facts.needed_at_run.append(str(node.args[0].value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            facts.imports.extend(named_by(node))
            if id(node) not in for_types:
                facts.needed_at_run.extend(loaded_by(node))
        elif isinstance(node, ast.ClassDef):
            facts.constructors.extend(constructors_of(node))
            facts.classes.append(size_of_class(node))
    facts.functions.extend(sizes_in(tree.body))
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            facts.needed_at_import.extend(loaded_by(statement))
    return facts


@cache
def function_sizes(path: Path) -> list[tuple[str, int, int]]:
    """Return the functions of a file of which nothing else is asked."""
    return [*sizes_in(tree_of(path).body)]


def sizes_in(body: list[ast.stmt]) -> Iterator[tuple[str, int, int]]:
    """Yield the functions among statements, at any depth; no function stands in an expression."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or 0) - node.lineno + 1
        for name in ("body", "orelse", "finalbody"):
            yield from sizes_in(getattr(node, name, ()))  # type: ignore[arg-type]
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from sizes_in(part.body)


def shown(node: ast.expr) -> str:
    """Return an expression as it is written; what stands in brackets is left out."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{shown(node.value)}.{node.attr}"
    if isinstance(node, ast.Call):
        return f"{shown(node.func)}()"
    if isinstance(node, ast.Subscript):
        return f"{shown(node.value)}[]"
    return "" if isinstance(node, ast.Constant) else ast.unparse(node)


def named_by(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, int, bool]]:
    """Yield the modules that an import names."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno, False) for alias in node.names)
        return
    module = "." * node.level + (node.module or "")
    if module == ROOTS_FOLDER:  # from skylarkmq import store
        yield from ((f"{module}.{alias.name}", node.lineno, True) for alias in node.names)
    else:
        yield module, node.lineno, True


def imports_for_types(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the imports below `if TYPE_CHECKING:`, which no running program sees."""
    for statement in tree.body:
        if isinstance(statement, ast.If) and shown(statement.test) == "TYPE_CHECKING":
            for part in statement.body:
                yield from (n for n in ast.walk(part) if isinstance(n, ast.Import | ast.ImportFrom))


def loaded_by(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the modules that an import loads, and the names in them that may be modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def constructors_of(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """Yield a class that has a constructor of its own, and how many arguments that takes."""
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            arguments = method.args
            count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
            yield node.name, count - 1  # itself aside


def size_of_class(node: ast.ClassDef) -> ClassSize:
    """Return how large a class is, with its docstring."""
    attributes: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Assign | ast.AnnAssign):
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            attributes.update(
                target.attr
                for target in targets
                if isinstance(target, ast.Attribute) and shown(target.value) == "self"
            )
    methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
    return ClassSize(node.name, methods, len(attributes), ast.get_docstring(node) or "")
