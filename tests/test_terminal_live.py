"""The terminal client against the real thing: in a real terminal, in pipes, through outages."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from tests.commands import Command, environment_of, kill, run
from tests.conftest import LabModel
from tests.terminals import Terminal

PROMPT = "one two three four five six seven eight nine ten and so on to the last one"
DONE = f"{PROMPT.upper()}\ndone: 1 bought, 0 reused (lab)"
SLOWLY = {"SLOWCALL_LAB_TOKENS_PER_S": "8", "SLOWCALL_BACKOFF_S": "0.5"}


class Place:
    """A running slowcall, its lab, and a folder to work in."""

    def __init__(self, up: Command, lab: LabModel) -> None:
        self.up, self.lab = up, lab
        self.http = httpx.Client(base_url=up.url())
        self.here = {"SLOWCALL_URL": up.url()}

    def terminal(self, *words: str) -> Terminal:
        """A command of ours in a terminal of its own."""
        environment = environment_of(self.up.data_dir) | self.here
        command = [sys.executable, "-P", "-m", "server", *words]
        return Terminal(command, environment=environment, folder=self.up.data_dir)

    def piped(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of ours whose outputs are pipes."""
        return run(*words, data_dir=self.up.data_dir, **self.here)

    def newest(self) -> dict[str, str]:
        """The job that was submitted last."""
        return dict(self.http.get("/jobs?limit=1").json()["jobs"][0])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One slowcall for all tests."""
    folder = tmp_path_factory.mktemp("terminal")
    with Command("up", "--port", "0", data_dir=folder, **SLOWLY) as up:
        lab = LabModel(up.find(r"(http://127\.0\.0\.1:\d+)/ledger"))
        place = Place(up, lab)
        with place.http, lab.http:
            yield place
            up.signal(signal.SIGINT)
            up.ends()


@pytest.fixture
def place(running: Place) -> Place:
    """The running slowcall, whose lab behaves."""
    running.lab.misbehave()
    return running


def test_a_document_is_watched_through_a_retry_to_its_summary(place: Place) -> None:
    place.lab.misbehave({"match": "Page 3", "status": 503, "times": 1})
    report = place.up.data_dir / "report.txt"
    report.write_text("\f".join(f"Page {number} begins. It ends." for number in range(1, 5)))
    with place.terminal("submit", "report.txt", "--watch") as terminal:
        terminal.shows("retrying after attempt 1 of 3 (transient), again at ")
        terminal.shows("running, attempt 2 of 3")
        terminal.shows("━ 4/4 ")
        assert "running, attempt 2 of 3" in terminal.shows("[page 1] Page 1 begins.")
        assert terminal.ends() == 0
    *text, last = terminal.text.splitlines()
    assert "".join(text).endswith("[page 4] Page 4 begins.")
    assert re.fullmatch(r"done: 5 bought, \d reused \(lab\)", last)


def test_text_is_shown_as_it_is_written_and_then_once(place: Place) -> None:
    with place.terminal("submit", PROMPT, "--watch") as terminal:
        seen = terminal.shows("ONE TWO THREE")
        assert "running, attempt 1 of 3" in seen
        assert "THE LAST ONE" not in seen
        assert terminal.ends() == 0
    assert terminal.text == DONE


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(place: Place) -> None:
    with place.terminal("submit", PROMPT, "--watch") as terminal:
        terminal.shows("ONE TWO")
        terminal.press("\x03")
        assert terminal.ends() == 130
    assert place.newest()["status"] == "running"
    told, command = terminal.text.split(": slowcall ")
    assert told == "the job goes on; come back with"
    with place.terminal(*command.split()) as terminal:
        assert terminal.ends() == 0
    assert terminal.text == DONE


def test_a_server_that_ends_meanwhile_is_come_back_to(place: Place) -> None:
    with place.terminal("submit", PROMPT, "--watch") as terminal:
        terminal.shows("ONE TWO")
        kill(next(pid for pid, words in place.up.family().items() if " serve " in words))
        terminal.shows("connection lost, coming back")
        assert terminal.ends() == 0
    assert terminal.text == DONE


def test_into_a_pipe_goes_the_result_alone(place: Place) -> None:
    place.lab.misbehave({"status": 503, "times": 1})
    watched = place.piped("submit", "hello", "--watch")
    assert watched.stdout == "HELLO\n"
    lines = re.sub(r"\d\d:\d\d:\d\d", "TIME", watched.stderr).splitlines()
    assert lines[-4:] == [
        "running, attempt 1 of 3",
        "retrying after attempt 1 of 3 (transient), again at TIME",
        "running, attempt 2 of 3",
        "done: 1 bought, 0 reused (lab)",
    ]
    assert "\x1b" not in watched.stderr


def test_events_as_lines_of_json(place: Place) -> None:
    watched = place.piped("submit", "hello", "--watch", "--json")
    events = [json.loads(line) for line in watched.stdout.splitlines()]
    assert [event["id"] for event in events] == [str(n) for n in range(1, len(events) + 1)]
    names = [event["event"] for event in events]
    assert [name for name in names if name not in ("delta", "progress")] == [
        "queued", "running", "done",
    ]  # fmt: skip
    assert "".join(e["data"]["text"] for e in events if e["event"] == "delta") == "HELLO"
    assert events[-1]["data"]["result"]["text"] == "HELLO"
    assert (watched.returncode, watched.stderr) == (0, "")
    again = place.piped("watch", events[-1]["data"]["job_id"], "--json")
    assert json.loads(again.stdout.splitlines()[-1]) == events[-1]


def test_a_failed_job_has_its_own_exit_code(place: Place) -> None:
    place.lab.misbehave({"match": "unlucky", "status": 400, "message": "No such luck."})
    with place.terminal("submit", "unlucky", "--watch") as terminal:
        assert terminal.ends() == 1
    assert terminal.text.startswith("failed after 1 attempts: permanent: ")
    assert "No such luck." in terminal.text


def test_a_cancelled_job_has_its_own_exit_code(place: Place) -> None:
    with place.terminal("submit", PROMPT, "--watch") as terminal:
        terminal.shows("ONE TWO")
        place.http.post(f"/jobs/{place.newest()['job_id']}/cancel").raise_for_status()
        assert terminal.ends() == 3
    assert terminal.text == "cancelled after 1 attempts"


def test_a_reader_that_leaves_early_is_no_failure_to_talk_about(place: Place) -> None:
    """As `slowcall watch ID --json | head -1` does."""
    job_id = place.piped("submit", "hello").stdout.strip()
    command = [sys.executable, "-P", "-m", "server", "watch", job_id, "--json"]
    environment = environment_of(place.up.data_dir) | place.here
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(20)
