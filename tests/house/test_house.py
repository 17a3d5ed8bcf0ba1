"""The house stays as it was drawn: who imports whom, how long things are, what each file is for."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterable, Iterator

from tests.house.source import ROOT, WINGS, Room, body_lines, rooms, top_level

SOURCE = rooms(*WINGS)
EVERYTHING = rooms(*WINGS, "tests")

MAY_IMPORT_REDIS = {
    "tasks/lease.py", "tasks/lanes.py", "tasks/worker.py", "tasks/arq_worker.py",
    "server/hub.py", "server/valkey.py",
}  # fmt: skip
MAY_CALL_HTTP = {
    "tasks/model.py": "asks the model",
    "tasks/wire.py": "the connections that it asks over",
    "tasks/webhooks.py": "delivers to the addresses that users gave",
    "server/terminal_client.py": "asks a slowcall server, never a model",
    "server/prove_parts.py": "a customer of the servers that it proves",
    "server/prove_orders.py": "a customer of the servers that it proves",
}
LONG_FILES: dict[str, str] = {}
HTTP_CLIENTS = {"httpx", "aiohttp", "requests", "urllib3", "httpx_aiohttp"}
EFFECTS = {
    "asyncio", "os", "time", "random", "secrets", "subprocess", "threading", "logging",
    "redis", "arq", *HTTP_CLIENTS,
}  # fmt: skip


ROW = re.compile(r"\|\s*`((?:server|tasks)/[^`]+\.py)`\s*\|\s*(.*?)\s*\|$")
"""A line of the README's table of rooms."""


def faults(rooms: Iterable[Room], rule: Callable[[Room], object]) -> dict[str, object]:
    """What the rule finds in each room; nothing, as it should be."""
    return {room.path: found for room in rooms if (found := rule(room))}


def test_both_wings_are_read() -> None:
    assert len(SOURCE) > 30
    assert {room.path.partition("/")[0] for room in SOURCE} == set(WINGS)


def test_a_file_begins_with_its_one_responsibility() -> None:
    def silent(room: Room) -> bool:
        return not room.text.startswith('"""') or not room.purpose.endswith(".")

    assert faults(EVERYTHING, silent) == {}
    purposes = [room.purpose for room in SOURCE]
    assert sorted(set(purposes)) == sorted(purposes)


def test_a_script_begins_with_what_it_is_for() -> None:
    scripts = [*ROOT.glob("tasks/**/*.lua"), *ROOT.glob("static/**/*.js")]
    assert len(scripts) > 20
    starts = ("-- ", "// ", "/* ", "/** ")
    assert [path.name for path in scripts if not path.read_text().startswith(starts)] == []


def test_tasks_never_imports_server_and_neither_imports_tests() -> None:
    def wrong(room: Room) -> list[str]:
        barred = {"server", "tests"} if room.path.startswith("tasks/") else {"tests"}
        return [name for name in room.imports() if top_level(name, barred)]

    assert faults(SOURCE, wrong) == {}


def test_redis_is_spoken_in_its_own_rooms_only() -> None:
    def wrong(room: Room) -> list[str]:
        if room.path.startswith("tasks/store/") or room.path in MAY_IMPORT_REDIS:
            return []
        return [name for name in room.imports() if top_level(name, {"redis"})]

    assert faults(SOURCE, wrong) == {}


def test_http_calls_leave_by_few_doors() -> None:
    def wrong(room: Room) -> list[str]:
        if room.path in MAY_CALL_HTTP:
            return []
        return [name for name in room.imports() if top_level(name, HTTP_CLIENTS)]

    assert faults(SOURCE, wrong) == {}


def test_what_says_that_it_is_pure_has_no_effects() -> None:
    def wrong(room: Room) -> list[str]:
        if not room.purpose.startswith("PURE"):
            return []
        return [name for name in room.imports() if top_level(name, EFFECTS)]

    assert faults(SOURCE, wrong) == {}


def test_a_key_is_named_in_the_inventory_only() -> None:
    def wrong(room: Room) -> list[str]:
        return re.findall(r"""["']slowcall:[\w{]""", room.text)

    assert faults(SOURCE, wrong) == {}


def test_a_file_is_short_or_a_listed_exception() -> None:
    long = [room.path for room in SOURCE if room.lines > 300]
    assert long == sorted(LONG_FILES)


def test_functions_are_short() -> None:
    def wrong(room: Room) -> list[str]:
        return [f"{f.name}: {body_lines(f)}" for f in room.functions() if body_lines(f) > 50]

    assert faults(SOURCE, wrong) == {}
    lengths = [body_lines(function) for room in SOURCE for function in room.functions()]
    assert statistics.median(lengths) < 10


def test_what_others_use_says_what_it_means() -> None:
    def silent(room: Room) -> list[str]:
        return [node.name for node in public(room) if ast.get_docstring(node) is None]

    assert faults(SOURCE, silent) == {}


def public(room: Room) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The classes, functions and methods that other rooms may use."""
    for parent in ast.walk(room.tree):
        if not isinstance(parent, ast.Module | ast.ClassDef):
            continue
        if isinstance(parent, ast.ClassDef) and parent.name.startswith("_"):
            continue
        for node in parent.body:
            kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            if isinstance(node, kinds) and not node.name.startswith("_"):
                yield node


def test_nothing_is_left_for_later() -> None:
    later = ["TO" + "DO", "FIX" + "ME", "X" + "XX", "no" + "qa", "type: ignore" + "\n"]

    def wrong(room: Room) -> list[str]:
        return [word for word in later if word in room.text]

    assert faults(EVERYTHING, wrong) == {}


def test_the_readme_lists_the_rooms_as_they_call_themselves() -> None:
    rows = [row for line in readme().splitlines() if (row := ROW.match(line))]
    purposes = {room.path: room.purpose for room in SOURCE if "__init__" not in room.path}
    assert {row[1]: row[2] for row in rows} == purposes, "make rooms writes them anew"


def readme() -> str:
    """The README's text."""
    return (ROOT / "README.md").read_text()
