"""Write the README's table of rooms anew from what the rooms say of themselves: `make rooms`."""

from __future__ import annotations

from tests.house.source import ROOT, WINGS, rooms
from tests.house.test_house import ROW


def main() -> None:
    """Put the rows as they should be where the first of them stands."""
    path = ROOT / "README.md"
    lines = path.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if ROW.match(line))
    rest = [line for line in lines[first:] if not ROW.match(line)]
    table = [
        f"| `{room.path}` | {room.purpose} |"
        for room in rooms(*WINGS)
        if not room.path.endswith("__init__.py")
    ]
    path.write_text("\n".join([*lines[:first], *table, *rest]) + "\n")


if __name__ == "__main__":
    main()
