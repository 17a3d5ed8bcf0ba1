"""The registry of kinds: what a job can do, by name, with its validated input."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import Fault, InvalidInput, SettingsError

if TYPE_CHECKING:
    from tasks.context import Context

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}")

BUILT_IN: Final = ("tasks.kinds.chat", "tasks.kinds.summarize", "tasks.kinds.agent")


class UploadedFile(BaseModel):
    """What an upload says of the document that came beside the input."""

    model_config = ConfigDict(extra="forbid", title="File")

    name: str
    type: str
    size: int


@dataclass(frozen=True, slots=True)
class Kind:
    """What a job of this name does: `perform(context, input)` answers its result.

    `sample(input)` is the recorded answer for when no model answers (None: there is none).
    `max_attempts` and `timeout_s` (of one call) hold where a job says nothing of its own (None: the
    settings do). A kind that takes a document has an input with a field `file` of `UploadedFile`
    and gets its pages from `context.read_document()`.
    """

    name: str
    description: str
    input_model: type[BaseModel]
    perform: Callable[[Context, Any], Awaitable[dict[str, Any]]]
    sample: Callable[[Any], str | None] | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None

    def parse(self, value: Any) -> BaseModel:
        """The input as the kind's model. Raises InvalidInput with a pointer for each fault."""
        try:
            return self.input_model.model_validate(value)
        except ValidationError as error:
            raise InvalidInput(
                f"The input does not fit the kind {self.name!r}.", faults(error, "/input")
            ) from None


_registry: dict[str, Kind] = {}
_Perform = TypeVar("_Perform", bound=Callable[..., Awaitable[dict[str, Any]]])


def kind(
    name: str,
    *,
    input: type[BaseModel],
    description: str = "",
    sample: Callable[[Any], str | None] | None = None,
    max_attempts: int | None = None,
    timeout_s: float | None = None,
) -> Callable[[_Perform], _Perform]:
    """Register an async function `(context, input) -> result` as the kind `name`.

    `input` is a pydantic model; `description` (else the docstring's first line) is shown to users;
    the others are described at `Kind`. The result is a dict with at least a `text`. Raises
    SettingsError for a name that is none, or taken.
    """

    def register(perform: _Perform) -> _Perform:
        _check(name, perform)
        text = description or (perform.__doc__ or "").strip().partition("\n")[0]
        _registry[name] = Kind(name, text, input, perform, sample, max_attempts, timeout_s)
        return perform

    return register


def _check(name: str, perform: Callable[..., Any]) -> None:
    if not _NAME.fullmatch(name):
        raise SettingsError(f"A kind's name is lower case letters, digits, - and _: {name!r}")
    if not inspect.iscoroutinefunction(perform):
        raise SettingsError(f"The kind {name!r} is not an `async def`.")
    there = _registry.get(name)
    if there is not None and there.perform.__module__ != perform.__module__:
        raise SettingsError(f"Two modules register the kind {name!r}: {there.perform.__module__}")


def load_kinds(modules: Iterable[str] = ()) -> dict[str, Kind]:
    """Import the built-in kinds and `modules`, and answer all kinds by name.

    Raises SettingsError where a module cannot be imported.
    """
    for module in (*BUILT_IN, *modules):
        try:
            importlib.import_module(module)
        except SettingsError as error:
            raise SettingsError(f"SLOWCALL_KINDS: {module}: {error}") from error
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise SettingsError(f"SLOWCALL_KINDS: cannot import {module!r}: {told}") from error
    return dict(_registry)


def faults(error: ValidationError, base: str = "") -> list[Fault]:
    """A validation error as JSON pointers (RFC 6901) below `base` and messages."""
    return [
        {"pointer": "/".join([base, *map(_token, item["loc"])]), "message": item["msg"]}
        for item in error.errors(include_input=False, include_url=False)
    ]


def _token(part: int | str) -> str:
    """One part of a JSON pointer, escaped as RFC 6901 asks."""
    return str(part).replace("~", "~0").replace("/", "~1")
