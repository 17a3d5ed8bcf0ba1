"""Record the README's terminal, live: `python -m tests.browser.recording [FILE.svg]`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.browser.reel import Frame, svg
from tests.commands import Command, environment_of
from tests.conftest import LabModel
from tests.terminals import Terminal, replay

PICTURE = Path(__file__).with_name("terminal.svg")
ROWS, COLUMNS = 9, 80
TICK_S, HOLD_S, KEY_S = 0.2, 4.0, 0.06
COMMAND = "slowcall submit report.txt --watch"
PAGES = (
    "Orders grew by a third in spring.",
    "Most of them came from the new shop in Lyon.",
    "Returns fell to two in a hundred.",
    "The night shift packs as much as the day shift.",
    "One carrier was late on nine days.",
    "A second carrier takes over in May.",
    "Three people joined the warehouse.",
    "The plan for summer is unchanged.",
)
LAB = {
    "SLOWCALL_LAB_DELAY_S": "0.9",
    "SLOWCALL_LAB_TOKENS_PER_S": "40",
    "SLOWCALL_BACKOFF_S": "2.5",
    "SLOWCALL_JITTER": "0",
}
FAULT = {"match": PAGES[4], "status": 503, "message": "overloaded", "times": 1}


def record() -> list[Frame]:
    """Type the command into a real terminal, beside a real slowcall whose lab fails once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "report.txt").write_text("\f".join(PAGES))
        command = folder / "slowcall"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m server "$@"\n')
        command.chmod(0o755)
        with Command("up", "--port", "0", data_dir=folder, **LAB) as up:
            lab = LabModel(up.find(r"(http://127\.0\.0\.1:\d+)/ledger"))
            with lab.http:
                lab.misbehave(FAULT)
            environment = environment_of(folder)
            environment |= {
                "SLOWCALL_URL": up.url(),
                "PATH": f"{folder}:{environment['PATH']}",
                "PS1": "$ ",
                "COLORTERM": "truecolor",
            }
            shell = Terminal(
                ["sh", "-i"], environment=environment, folder=folder, rows=ROWS, columns=COLUMNS
            )
            with shell:
                return frames(shell, *play(shell))


def play(shell: Terminal) -> tuple[float, float]:
    """Use the shell as a person would; answers when that began and when it was over."""
    shell.shows("$")
    began = shell.elapsed_s
    time.sleep(1)
    for key in f"{COMMAND}\n":
        shell.press(key)
        time.sleep(KEY_S)
    shell.shows("(lab)\n$", 60)
    return began, shell.elapsed_s


def frames(shell: Terminal, began: float, over: float) -> list[Frame]:
    """What the screen showed from tick to tick; the last one stays for a while."""
    screen = replay(shell.written, rows=ROWS, columns=COLUMNS)
    shown: list[Frame] = []
    for tick in range(round((over - began) / TICK_S) + 2):
        frame = Frame.of(screen(began + tick * TICK_S), TICK_S)
        if shown and shown[-1].rows == frame.rows:
            shown[-1].lasts_s += TICK_S
        else:
            shown.append(frame)
    shown[-1].lasts_s += HOLD_S
    return shown


if __name__ == "__main__":
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    picture.write_text(svg(record(), title=f"$ {COMMAND}", rows=ROWS, columns=COLUMNS))
