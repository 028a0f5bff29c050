"""What type checkers and editors read of the blocking facade: `client/sync/__init__.pyi`.

    python -m tests.client.sync.stub      writes it anew

The methods of the facade's classes are made when they are loaded, so their signatures stand in this
file: those of the asynchronous twins, as their source has them, and those of the facade's own
methods. A test compares it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

from skylarkmq.client.sync import classes
from skylarkmq.client.sync.twin import FUTURES, Blocking, Started

STUB = Path("client/sync/__init__.pyi")
PACKAGE = "skylarkmq.client.sync"
OWN = "skylarkmq.client.sync.classes"
KEPT = {"property", "contextmanager", "overload"}
SHOWN = {"__enter__", "__exit__", "__init__", "__iter__", "__next__"}
HEAD = '"""The facade as type checkers see it. Written by `python -m tests.client.sync.stub`."""\n'


class Stub:
    """Collects the stub's text, and where the names in it come from."""

    def __init__(self) -> None:
        self.imports: dict[str, tuple[str, str]] = {}
        self.public: list[str] = list(importlib.import_module(PACKAGE).__all__)

    def text(self) -> str:
        """Return the whole file, not formatted yet."""
        parts = [self.alias(name) for name in self.public if not self.is_class(name)]
        kinds = [getattr(classes, name) for name in self.public if self.is_class(name)]
        parts += [self.class_text(kind) for kind in kinds]
        lines = [
            f"from {module} import {name} as {shown}" if name != shown else
            f"from {module} import {name}"
            for shown, (module, name) in sorted(self.imports.items())
        ]  # fmt: skip
        names = ", ".join(f'"{name}"' for name in self.public)
        return "\n".join(
            [HEAD, "import concurrent.futures", *lines, "", *parts, f"__all__ = [{names}]"]
        )

    @staticmethod
    def is_class(name: str) -> bool:
        return inspect.isclass(getattr(classes, name))

    def alias(self, name: str) -> str:
        """Return a type alias of the facade as its source has it."""
        for node in tree(OWN).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                self.note(node, OWN)
                return ast.unparse(node)
        raise LookupError(name)

    def class_text(self, kind: type) -> str:
        bases = [base for base in kind.__mro__[1:] if not issubclass(base, Blocking)]
        bases = [base for base in bases if base.__module__.startswith("skylarkmq.")][:1]
        if issubclass(kind, Started):
            bases = [Started]
        for base in bases:
            self.imports[base.__name__] = (base.__module__, base.__name__)
        head = f"class {kind.__name__}({', '.join(base.__name__ for base in bases)}):"
        body = [doc_text(kind)]
        inherited = {name for base in bases for name in dir(base)}
        for name in sorted(dir(kind), key=lambda name: (not name.startswith("__"), name)):
            public = not name.startswith("_") and name not in inherited
            is_own = getattr(kind, name) is not getattr(object, name, None)
            made = issubclass(kind, Started) if name == "__init__" else name not in inherited
            shown = name in SHOWN and is_own and made
            if public or shown:
                body.append(self.member_text(kind, name))
        return "\n\n".join(
            [head + "\n" + indent(body[0], "    "), *(indent(each, "    ") for each in body[1:])]
        )

    def member_text(self, kind: type, name: str) -> str:
        sources, module = self.sources_of(kind, name)
        return "\n\n".join(self.function_text(source, module, kind, name) for source in sources)

    def function_text(self, source: Any, module: str, kind: type, name: str) -> str:
        self.note(source, module)
        decorators = [each for each in source.decorator_list if ast.unparse(each) in KEPT]
        for each in decorators:
            self.note(each, module)
        node = ast.parse(f"def {name}(): ...").body[0]
        assert isinstance(node, ast.FunctionDef)
        node.args, node.returns, node.decorator_list = source.args, source.returns, decorators
        signature = ast.unparse(node).removesuffix("...").rstrip()
        signature = signature.replace(*FUTURES)
        body = doc_text(getattr(kind, name)) if not name.startswith("__") else "..."
        return f"{signature}\n{indent(body, '    ')}"

    def sources_of(self, kind: type, name: str) -> tuple[list[Any], str]:
        """Return the function in the source, or its overloads: the facade's own, or its twin's."""
        for base in () if name == "__init__" else kind.__mro__:
            if name in vars(base) and base.__module__.startswith(PACKAGE):
                nodes = functions(base, name)
                if nodes:
                    return nodes, base.__module__
        twin = twin_of(kind)
        settings = getattr(twin.__init__, "settings", None) if name == "__init__" else None
        if settings is not None:
            return [constructor(settings)], settings.__module__
        for base in twin.__mro__:
            wanted = {"__iter__": "__aiter__", "__next__": "__anext__"}.get(name, name)
            if wanted in vars(base):
                nodes = functions(base, wanted)
                if nodes:
                    return nodes, base.__module__
        raise LookupError(f"{kind.__name__}.{name}")

    def note(self, node: ast.AST, module: str) -> None:
        """Remember where the names of a signature come from; those of the facade are here.

        Of two things with one name, the later one is named after its module as well.
        """
        known = imported(module)
        for each in names_in(node):
            if each.id not in self.public and each.id in known:
                origin = known[each.id]
                if self.imports.setdefault(each.id, origin) != origin:
                    each.id = origin[0].rpartition(".")[2].title().replace("_", "") + each.id
                    self.imports[each.id] = origin


def twin_of(kind: type) -> type:
    """Return the asynchronous class that `blocking` was given."""
    for node in tree(OWN).body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for each in node.decorator_list:
                assert isinstance(each, ast.Call)
                return getattr(classes, ast.unparse(each.args[0]))
    raise LookupError(kind)


def names_in(node: ast.AST) -> Iterator[ast.Name]:
    """Return the names in a function's signature, or in a whole expression."""
    parts: list[Any] = [node]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts = [node.args, *([node.returns] if node.returns else [])]
    for part in parts:
        yield from [each for each in ast.walk(part) if isinstance(each, ast.Name)]


def doc_text(documented: object) -> str:
    """Return the first line of a docstring; `help` and the reference have all of it."""
    first = (inspect.getdoc(documented) or "").partition("\n")[0].replace("\\", "\\\\")
    return f'"""{first}"""' if first else "..."


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


@cache
def class_nodes(module: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree(module)) if isinstance(node, ast.ClassDef)]


def functions(owner: type, name: str) -> list[Any]:
    """Return the method of that name; one with overloads as these alone."""
    found = [
        each
        for node in class_nodes(owner.__module__)
        if node.name == owner.__name__
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name
    ]
    return found if len(found) == 1 else found[:-1]


def constructor(settings: type) -> ast.FunctionDef:
    """Return the constructor of a class of settings, that of a dataclass as if it were written.

    Numbers and texts stand as their values, other defaults as the source has them.
    """
    parts = ["self"]
    for each in inspect.signature(settings).parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in "".join(parts):
            parts.append("*")
        star = "*" if each.kind is each.VAR_POSITIONAL else ""
        plain = each.default is None or isinstance(each.default, int | float | str | tuple)
        default = repr(each.default) if plain else default_in_source(settings, each.name)
        end = "" if each.default is each.empty else f" = {default}"
        parts.append(f"{star}{each.name}: {each.annotation}{end}")
    (node,) = ast.parse(f"def __init__({', '.join(parts)}) -> None: ...").body
    assert isinstance(node, ast.FunctionDef)
    return node


def default_in_source(settings: type, name: str) -> str:
    """Return the default of a setting as it is written: of a field, or of a keyword."""
    for node in class_nodes(settings.__module__):
        for each in ast.walk(node) if node.name == settings.__name__ else ():
            if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == name and each.value:
                return ast.unparse(each.value)
            if isinstance(each, ast.arguments):
                found = zip(each.kwonlyargs, each.kw_defaults, strict=True)
                for argument, value in found:
                    if argument.arg == name and value is not None:
                        return ast.unparse(value)
    return "..."


@cache
def imported(module: str) -> dict[str, tuple[str, str]]:
    """Return the module's global names: where each comes from, and its name there."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = (module, node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[target.id] = (module, target.id)
    return found


def formatted(text: str) -> str:
    """Return the text as the project formats its code."""
    for arguments in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(STUB), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


def generated() -> str:
    """Return what the file should have."""
    return formatted(Stub().text())


if __name__ == "__main__":
    STUB.write_text(generated(), encoding="utf-8")
