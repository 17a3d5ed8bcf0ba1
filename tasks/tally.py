"""PURE: count how far a run is, in units, steps of a plan, or words."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.store.records import Progress


class Tally:
    """The progress of one run; every change answers the progress to tell."""

    def __init__(self) -> None:
        self.now = Progress(0, None, "")
        self._unit = ""
        self._plan: dict[str, str] = {}
        self._ticked: set[str] = set()

    def expect(self, total: int, unit: str, plan: Mapping[str, str] | None) -> Progress:
        """Count in `total` units from now on; `plan` says which step does what."""
        self._unit = unit
        self._plan = dict(plan or {})
        return self.set(self.now.done, total, f"{unit} {self.now.done} of {total}")

    def set(self, done: int, total: int | None, note: str) -> Progress:
        """So much is done; a `total` or `note` left out stays as it was."""
        total = self.now.total if total is None else total
        self.now = Progress(done, total, note or self.now.note, self._told_plan())
        return self.now

    def one_more(self, step: str) -> Progress:
        """`step` is done."""
        self._ticked.add(step)
        done = self.now.done + 1
        return self.set(
            done, None, f"{self._unit} {done} of {self.now.total}" if self._unit else ""
        )

    def _told_plan(self) -> list[dict[str, object]] | None:
        return [
            {"step": step, "title": title, "done": step in self._ticked}
            for step, title in self._plan.items()
        ] or None
