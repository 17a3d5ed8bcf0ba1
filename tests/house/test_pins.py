"""The pinned parts: exact, without addresses, and complete for all that is installed with us."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.source import ROOT

PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.+!]*)")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = (ROOT / "constraints.txt").read_text().splitlines()


def pins() -> dict[str, str]:
    """Name -> exact version."""
    return {canonicalize_name(name): version for name, version in map(pin, LINES)}


def pin(line: str) -> tuple[str, str]:
    """The two halves of a line."""
    found = PIN.fullmatch(line)
    assert found, f"not a pin: {line!r}"
    return found[1], found[2]


def wanted() -> list[Requirement]:
    """What we ask for ourselves: to run, to test, to build."""
    project = PROJECT["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    build = [*PROJECT["build-system"]["requires"], "editables"]
    return [Requirement(line) for line in [*project["dependencies"], *extras, *build]]


def needed() -> set[str]:
    """The names of all that comes with what we ask for, on this platform."""
    found: set[str] = set()
    waiting = [(item, extra) for item in wanted() for extra in ("", *item.extras)]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name in found and not extra:
            continue
        found.add(name)
        try:
            below = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        inner = [Requirement(line) for line in below]
        waiting += [(item, active) for item in inner for active in ("", *requirement.extras)]
    return found


def test_a_line_is_a_name_and_an_exact_version_in_order() -> None:
    names = [canonicalize_name(pin(line)[0]) for line in LINES]
    assert sorted(set(names)) == sorted(names)


def test_all_that_is_installed_with_us_is_pinned() -> None:
    assert sorted(needed() - pins().keys()) == []


def test_the_pins_are_what_we_ask_for() -> None:
    versions = pins()
    for requirement in wanted():
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement
