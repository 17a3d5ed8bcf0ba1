"""A dry run: a kind performed without a model, to say what a retry would reuse and at most buy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from tasks.calls import Reply
from tasks.context import Context, fingerprint
from tasks.kinds import Kind
from tasks.settings import Settings
from tasks.store import Progress, StoredStep
from tasks.tally import Tally

T = TypeVar("T")

_LONGEST_S: Final = 5.0
_LIKELY: Final = 1000
"""Characters of an answer that is not there yet and has no like."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a run would take from the store, and how many calls it would make if none fails; None
    where that depends on answers that are not there yet."""

    steps_kept: int
    calls_at_most: int | None


class _Unforeseen(Exception):
    """Only a real run can say what comes of this step."""


class Rehearsal(Context):
    """A context in which every call is counted and answered by a blank of likely length."""

    def __init__(
        self,
        settings: Settings,
        stored: Mapping[str, StoredStep],
        models: Mapping[str, str],
        *,
        edited: bool,
    ) -> None:
        self.settings = settings
        self.kept: set[str] = set()
        self.bought: set[str] = set()
        self._stored = dict(stored)
        self._models = models
        self._edited = edited
        self._tally = Tally()
        texts = [step.value["text"] for step in stored.values() if _is_reply(step.value)]
        self._blank = Reply("x" * max(map(len, texts), default=_LIKELY), "model", "", "stop", [])

    async def step(
        self, name: str, make: Callable[[], Awaitable[T]], *, key: Any = None, **_: Any
    ) -> T:
        """The stored result."""
        return self._kept(name, fingerprint(key)).value  # type: ignore[no-any-return]

    async def read_document(self, step: str = "read") -> list[str]:
        """The stored pages."""
        return self._kept(step, fingerprint(None)).value  # type: ignore[no-any-return]

    async def ask(self, body: Mapping[str, Any], *, step: str, **_: Any) -> Reply:
        """The stored answer, or a blank that would be bought."""
        model = body.get("model") or self.settings.ai_model or self._models.get(step, "")
        try:
            return Reply(**self._kept(step, fingerprint({**body, "model": model})).value)
        except _Unforeseen:
            self.bought.add(step)
            return self._blank

    async def tell_text(self, step: str, text: str) -> None:
        """Nobody listens."""

    async def _tell(self, progress: Progress) -> None:
        """Nobody watches."""

    def _kept(self, step: str, hash: str) -> StoredStep:
        stored = self._stored.get(step)
        if stored is None or (self._edited and stored.hash != hash):
            raise _Unforeseen(step)
        self.kept.add(step)
        return stored


async def rehearse(
    kind: Kind,
    input: Any,
    settings: Settings,
    stored: Mapping[str, StoredStep],
    models: Mapping[str, str],
    *,
    edited: bool,
) -> Price:
    """The price of a new life with this input.

    `stored` are the steps that are there, `models` the model that each step asked last; `edited`:
    a step whose request is another one now is computed anew. Raises InvalidInput.
    """
    rehearsal = Rehearsal(settings, stored, models, edited=edited)
    given = kind.parse(input)
    try:
        async with asyncio.timeout(_LONGEST_S):
            await kind.perform(rehearsal, given)
    except Exception:
        # A kind may trip over a blank in its own way: what it would buy is then not known.
        return Price(len(rehearsal.kept), None)
    return Price(len(rehearsal.kept), len(rehearsal.bought))


def _is_reply(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= asdict(Reply("", "", "", "", [])).keys()
