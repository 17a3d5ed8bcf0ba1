"""The source as the rules see it: every file of the two wings as a syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
WINGS: Final = ("server", "tasks")


@dataclass(frozen=True)
class Room:
    """One file: its path below the root and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file as a syntax tree."""
        return ast.parse(self.text, self.path)

    @property
    def lines(self) -> int:
        """Its length."""
        return self.text.count("\n")

    @property
    def purpose(self) -> str:
        """Its docstring's first paragraph as one line."""
        return " ".join((ast.get_docstring(self.tree) or "").partition("\n\n")[0].split())

    def imports(self) -> Iterator[str]:
        """Every module that it imports, wherever in the file."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function and method, nested ones as well."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node


def rooms(*folders: str) -> list[Room]:
    """The Python files below these folders of the project."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Room(str(path.relative_to(ROOT)), path.read_text()) for path in paths]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The length of a function without its decorators and its docstring."""
    first = function.body[0]
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def top_level(module: str, names: set[str]) -> bool:
    """Whether a module belongs to one of these packages."""
    return module.partition(".")[0] in names
