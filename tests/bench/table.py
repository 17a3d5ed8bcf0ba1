"""Figures of a bench: medians, their spread, our ratio to each peer; as Markdown and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

OURS: Final = "slowcall"


@dataclass(slots=True)
class Table:
    """One table: a row for each subject, a column for each measure, a list of values in a cell."""

    title: str
    note: str = ""
    cells: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, subject: str, measure: str, value: float) -> None:
        """One run's figure. A measure's name says its unit."""
        self.cells.setdefault((subject, measure), []).append(value)

    @property
    def subjects(self) -> list[str]:
        """The rows, ours first."""
        return list(dict.fromkeys(subject for subject, _ in self.cells))

    @property
    def measures(self) -> list[str]:
        """The columns."""
        return list(dict.fromkeys(measure for _, measure in self.cells))

    def ratio(self, subject: str, measure: str) -> float | None:
        """Our median over that of the subject; None without both, and for ourselves."""
        ours, theirs = self.cells.get((OURS, measure)), self.cells.get((subject, measure))
        if subject == OURS or not ours or not theirs or not median(theirs):
            return None
        return median(ours) / median(theirs)

    def markdown(self) -> str:
        """The table, each cell a median, its spread and, for a peer, our ratio to it."""
        measures = self.measures
        lines = [f"### {self.title}", "", f"| | {' | '.join(measures)} |", "|---" * len(measures)]
        lines[-1] += "|---|"
        for subject in self.subjects:
            cells = (self._cell(subject, measure) for measure in measures)
            lines.append(f"| {subject} | {' | '.join(cells)} |")
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def _cell(self, subject: str, measure: str) -> str:
        values = self.cells.get((subject, measure))
        if not values:
            return "–"
        text = _short(median(values))
        if max(values) > min(values):
            text += f" ({_short(min(values))}–{_short(max(values))})"
        ratio = self.ratio(subject, measure)
        return text if ratio is None else f"{text} ×{ratio:.2f}"

    def document(self) -> dict[str, Any]:
        """The same for programs: every value of every cell."""
        rows = [
            {
                "subject": subject,
                "measure": measure,
                "values": values,
                "median": median(values),
                "ratio": self.ratio(subject, measure),
            }
            for (subject, measure), values in self.cells.items()
        ]
        return {"title": self.title, "note": self.note, "rows": rows}


def _short(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def quantile(values: list[float], share: float) -> float:
    """The value below which that share of the values lies; they need not be sorted."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]
