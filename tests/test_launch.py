"""`slowcall up` and its parts as processes: started, found, brought back, stopped, refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.listen import listen, url_of
from tests.commands import Command, alive, descendants, environment_of, kill, processes, run
from tests.conftest import wait_until


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """An `up` with two workers."""
    folder = tmp_path_factory.mktemp("house")
    with Command("up", "--workers", "2", "--port", "0", data_dir=folder) as command:
        command.url()
        yield command


def outcome(url: str, text: str = "hello") -> str:
    """The text that a job ends with."""
    job = httpx.post(f"{url}/jobs", json={"input": text}, headers={"prefer": "wait=30"}).json()
    assert job["status"] == "done", job
    return str(job["result"]["text"])


def one(house: Command, what: str) -> int:
    """The process of a part."""
    (pid,) = [pid for pid, command in house.family().items() if what in command]
    return pid


def test_all_is_ready_when_it_says_so(house: Command) -> None:
    url = house.url()
    assert httpx.get(f"{url}/readyz").status_code == 200
    assert outcome(url) == "HELLO"
    assert "lab" in house.find(r"model +(.*)")
    assert f"embedded Valkey in {house.data_dir}" in house.text


def test_its_curl_line_works_as_it_stands(house: Command) -> None:
    line = house.find(r"(curl \S+/jobs -H .*)")
    assert '\'{"input": "hello, slow world"}\'' in line
    posted = subprocess.run(f"{line} -s", shell=True, capture_output=True, check=True).stdout
    assert json.loads(posted)["kind"] == "chat"


@pytest.mark.parametrize("what", ["--part worker-1", "--part server", "--part lab", "valkey-serv"])
def test_a_part_that_is_killed_comes_back(house: Command, what: str) -> None:
    url, before = house.url(), one(house, what)
    kill(before)
    wait_until(lambda: back(house, what, before), f"{what} is back", 30)
    wait_until(lambda: ready(url), "all is ready again", 30)
    assert outcome(url, f"after {what}") == f"AFTER {what.upper()}"


def back(house: Command, what: str, before: int) -> bool:
    return any(pid != before and what in command for pid, command in house.family().items())


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_a_second_up_on_the_folder_is_refused_with_the_address_of_the_first(
    house: Command,
) -> None:
    again = run("up", "--port", "0", data_dir=house.data_dir)
    assert again.returncode == 2
    (line,) = again.stderr.splitlines()
    assert line.startswith("slowcall: SLOWCALL_DATA_DIR: slowcall is up already")
    assert house.url() in line


def test_a_busy_port_is_named(house: Command, tmp_path: Path) -> None:
    port = house.url().rpartition(":")[2]
    for command in ("up", "serve", "lab"):
        refused = run(command, "--port", port, data_dir=tmp_path)
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert f"port {port} is in use" in refused.stderr


def test_a_restart_takes_the_port_over_from_fifty_streams(tmp_path: Path) -> None:
    """Case F11: the port is named for as long as it is held, and free as soon as it is not."""
    with ExitStack() as stack:
        old = stack.enter_context(Command("serve", "--port", "0", data_dir=tmp_path))
        url = old.url()
        port = url.rpartition(":")[2]
        http = stack.enter_context(httpx.Client(base_url=url, limits=httpx.Limits()))
        streams = [stack.enter_context(http.stream("GET", "/jobs/stream")) for _ in range(50)]
        refused = run("serve", "--port", port, data_dir=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"port {port} is in use" in refused.stderr
        old.signal(signal.SIGTERM)
        for stream in streams:
            assert b"retry: 2000" in stream.read()
        assert old.ends(within_s=5) in (0, -signal.SIGTERM)
        new = stack.enter_context(Command("serve", "--port", port, data_dir=tmp_path))
        assert new.url() == url
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_server_and_a_worker_beside_it_join(house: Command) -> None:
    with (
        Command("serve", "--port", "0", data_dir=house.data_dir) as second,
        Command("worker", data_dir=house.data_dir) as third,
    ):
        third.find("slowcall works on embedded Valkey")
        posted = httpx.post(f"{second.url()}/jobs", json={"input": "hello"}).json()
        path = f"/jobs/{posted['job_id']}"
        wait_until(
            lambda: httpx.get(house.url() + path).json()["status"] == "done",
            "posted on one server, it is seen done on the other",
        )
        for command in (second, third):
            command.signal(signal.SIGINT)
            command.ends()
    assert ready(house.url())


def test_serve_and_worker_alone_share_a_store_whoever_started_it(tmp_path: Path) -> None:
    with (
        Command("serve", "--port", "0", data_dir=tmp_path) as server,
        Command("worker", data_dir=tmp_path) as worker,
    ):
        worker.find("slowcall works on")
        assert outcome(server.url()) == "HELLO"
        (owner,) = [c for c in (server, worker) if "valkey" in "".join(c.family().values())]
        survivor = worker if owner is server else server
        owner.signal(signal.SIGKILL)
        owner.ends()
        wait_until(lambda: "valkey" in "".join(survivor.family().values()), "the store is back")
        with Command(owner._words[0], *owner._words[1:], data_dir=tmp_path) as again:
            url = (server if survivor is server else again).url()
            wait_until(lambda: ready(url), "server and worker see each other", 30)
            assert outcome(url) == "HELLO"


def test_a_burst_ends_when_nothing_is_left(tmp_path: Path) -> None:
    with Command("serve", "--port", "0", data_dir=tmp_path) as server:
        job = httpx.post(f"{server.url()}/jobs", json={"input": "hello"}).json()
        assert run("worker", "--burst", data_dir=tmp_path).returncode == 0
        assert httpx.get(f"{server.url()}/jobs/{job['job_id']}").json()["status"] == "done"


def test_times_are_utc_wherever_the_parts_are(tmp_path: Path) -> None:
    with Command("serve", "--port", "0", data_dir=tmp_path, TZ="America/New_York") as server:
        job = httpx.post(f"{server.url()}/jobs", json={"input": "hello"}).json()
        assert run("worker", "--burst", data_dir=tmp_path, TZ="Asia/Kolkata").returncode == 0
        job = httpx.get(f"{server.url()}/jobs/{job['job_id']}").json()
    times = [job[name] for name in ("created_at", "started_at", "finished_at")]
    assert times == sorted(times)
    for text in times:
        age = datetime.now(UTC) - datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%f%z")
        assert text.endswith("Z")
        assert abs(age) < timedelta(minutes=1)


def test_any_asgi_server_can_serve_the_app(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    log = tmp_path / "log"
    with log.open("w") as lines, subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "server.app:app", "--port", str(port)],
        env=environment_of(tmp_path), cwd=tmp_path, stderr=lines,
    ) as process:  # fmt: skip
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: answers(f"{url}/healthz"), "it serves", 20)
            assert httpx.post(f"{url}/jobs", json={"input": "hello"}).status_code == 202
            below = descendants(process.pid)
            assert any("valkey" in command for command in below.values())
        finally:
            process.terminate()
            process.wait(10)
    assert alive(below) == {}
    told = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    assert {"uvicorn.error", "uvicorn.access", "slowcall.job"} <= {line["logger"] for line in told}


def answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


SLOW = {"SLOWCALL_LAB_DELAY_S": "1.5"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_waits_for_the_calls_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Command("up", "--port", "0", data_dir=tmp_path, **SLOW) as command:
        job_id = start_job(command.url())
        family = command.family()
        assert len(family) == 4
        command.signal(number)
        assert command.ends() == 0
        assert "waiting for 1 job to finish its call, up to 30 s" in command.text
        assert command.lines[-1] == "stopped"
        assert alive(family) == {}
    with Command("serve", "--port", "0", data_dir=tmp_path) as server:
        job = httpx.get(f"{server.url()}/jobs/{job_id}").json()
        assert (job["status"], job["attempts"], job["ledger"]["paid"]) == ("done", 1, 1)


def start_job(url: str) -> str:
    """Post a job and wait until it runs."""
    job_id = str(httpx.post(f"{url}/jobs", json={"input": "hello"}).json()["job_id"])
    seen: list[Any] = []

    def calls() -> bool:
        seen.append(httpx.get(f"{url}/jobs/{job_id}").json())
        return bool(seen[-1]["ledger"]["open"])

    wait_until(calls, "its call is open")
    return job_id


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    slow = {"SLOWCALL_LAB_DELAY_S": "60"}
    with Command("up", "--port", "0", data_dir=tmp_path, **slow) as command:
        start_job(command.url())
        family = command.family()
        command.signal(signal.SIGINT)
        command.find("waiting for 1 job")
        command.signal(signal.SIGINT)
        command.ends(within_s=5)
        assert alive(family) == {}


def test_ctrl_c_before_all_is_ready_stops_what_was_started(tmp_path: Path) -> None:
    with Command("up", "--port", "0", data_dir=tmp_path) as command:
        wait_until(lambda: "worker" in "".join(command.family().values()), "a worker starts")
        family = command.family()
        command.signal(signal.SIGINT)
        assert command.ends() == 0
        assert "is up" not in command.text
        assert alive(family) == {}


def test_an_up_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    with Command("up", "--port", "0", data_dir=tmp_path) as command:
        command.url()
        family = command.family()
        assert len(family) == 4
        command.signal(signal.SIGKILL)
        command.ends()
        wait_until(lambda: not alive(family), f"all are gone: {alive(family)}", 15)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"SLOWCALL_QUOTA": "many"}, "SLOWCALL_QUOTA: "),
        ({"SLOWCALL_HOST": "0.0.0.0"}, "SLOWCALL_HOST: "),
        ({"SLOWCALL_HOST": "192.0.2.1", "SLOWCALL_API_KEYS": "a:b"}, "SLOWCALL_PORT: "),
        ({"REDIS_URL": "localhost:6379"}, "REDIS_URL: "),
        ({"REDIS_URL": "redis://:hunter2@127.0.0.1:1"}, "REDIS_URL: "),
        ({"SLOWCALL_DATA_DIR": "/dev/null/x"}, "SLOWCALL_DATA_DIR: "),
    ],
)
def test_a_wrong_setting_stops_the_start_with_one_line(
    tmp_path: Path, environment: dict[str, str], line: str
) -> None:
    refused = run("up", "--port", "0", data_dir=tmp_path, **environment)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"slowcall: {line}")
    assert refused.stderr.count("\n") == 1
    assert "hunter2" not in refused.stderr


def test_a_part_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    refused = run("up", "--port", "0", data_dir=tmp_path, SLOWCALL_KINDS="no_such_module")
    assert refused.returncode == 2
    assert "slowcall: SLOWCALL_KINDS: cannot import 'no_such_module'" in refused.stderr
    assert "did not start" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
    assert not [what for _, what in processes().values() if str(tmp_path) in what]


def test_kinds_of_the_user_are_found_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from pydantic import BaseModel\n"
        "from tasks.kinds import kind\n"
        "class Nothing(BaseModel): pass\n"
        "@kind('mine', input=Nothing, description='Mine.')\n"
        "async def mine(context, input): return {'text': 'x', 'source': 'model'}\n"
    )
    with Command("serve", "--port", "0", data_dir=tmp_path, SLOWCALL_KINDS="mine") as server:
        assert "mine" in httpx.get(f"{server.url()}/kinds").text


def test_a_tasks_module_of_the_user_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").touch()
    refused = run("--help", data_dir=tmp_path, before=str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        f"slowcall: {tmp_path.resolve() / 'tasks.py'} stands in the way"
    )
    assert run("--help", data_dir=tmp_path).returncode == 0


def test_a_listener_on_version_6_of_ip_has_a_right_address() -> None:
    with listen("::1", 0) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"
