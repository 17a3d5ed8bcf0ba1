"""How the lab model is told to misbehave: rules that pick calls and say what goes wrong."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Fault(BaseModel):
    """A rule. Which calls: those whose messages contain `match`, without the first `skip` of them,
    then each `every`-th, at most `times` in all. What happens: the other fields; a call meets the
    first rule that picks it.

    `delay_s` comes first and goes with any of the others. `status` (with `message`, `retry_after`,
    `headers`) and `drop: before` sell nothing, nor does `error_after`. What is cut, hangs or is
    dropped `after` it was read is sold: the model did the work. The `…_after` count pieces sent.
    """

    model_config = ConfigDict(extra="forbid")

    match: str = ""
    skip: int = Field(0, ge=0)
    every: int = Field(1, ge=1)
    times: int | None = Field(None, ge=0)

    delay_s: float = Field(0, ge=0)
    status: int | None = Field(None, ge=400, le=599)
    message: str = "The lab was told to fail."
    code: str | None = None
    retry_after: str | None = None
    headers: dict[str, str] = {}
    drop: Literal["before", "after"] | None = None
    error_after: int | None = Field(None, ge=0)
    cut_after: int | None = Field(None, ge=0)
    hang_after: int | None = Field(None, ge=0)

    def error(self) -> dict[str, Any]:
        """The error object as OpenAI's endpoints write it."""
        kind = "invalid_request_error" if (self.status or 500) < 500 else "server_error"
        code = self.code or self.status
        return {"error": {"message": self.message, "type": kind, "code": code}}


NO_FAULT = Fault()
_FAULTS = TypeAdapter(list[Fault])


class Faults:
    """The rules in force, with a count of the calls that each has matched and picked."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []
        self._matched: list[int] = []
        self._picked: list[int] = []

    def load(self, body: bytes) -> None:
        """Put these rules (a JSON list) in force instead of the old. Raises ValidationError."""
        self._rules = _FAULTS.validate_json(body)
        self._matched = [0] * len(self._rules)
        self._picked = [0] * len(self._rules)

    def pick(self, text: str) -> Fault:
        """The fault that a call with these messages meets."""
        for number, rule in enumerate(self._rules):
            if rule.match in text and self._takes(number, rule):
                return rule
        return NO_FAULT

    def _takes(self, number: int, rule: Fault) -> bool:
        self._matched[number] += 1
        position = self._matched[number] - rule.skip
        if position < 1 or position % rule.every or self._picked[number] == rule.times:
            return False
        self._picked[number] += 1
        return True
