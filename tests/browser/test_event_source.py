"""A browser's own EventSource, left to itself: its connection is cut, and it closes none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.browser.conftest import Server
from tests.browser.hand import Hand
from tests.conftest import wait_until

WATCH = """(address) => {
    window.heard = [];
    const source = new EventSource(address);
    for (const name of ['queued', 'running', 'delta', 'done']) {
        source.addEventListener(name, (event) => {
            window.heard.push([Number(event.lastEventId), name, JSON.parse(event.data).text]);
        });
    }
    window.source = source;
}"""


class Cutter:
    """A way to the server that can be cut: whatever goes through it then breaks off."""

    def __init__(self, port: int) -> None:
        self.requests = 0
        self._port = port
        self._open: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._carriers: list[threading.Thread] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def cut(self) -> None:
        """Break every connection off."""
        ends, self._open = self._open, []
        for end in ends:
            _shut(end)

    def close(self) -> None:
        """Let nobody in any more."""
        _shut(self._door)
        self._listener.join(5)
        self.cut()
        for carrier in self._carriers:
            carrier.join(5)

    def _listen(self) -> None:
        with self._door, suppress(OSError):
            while True:
                near, _ = self._door.accept()
                carrier = threading.Thread(target=self._connect, args=(near,), daemon=True)
                self._carriers.append(carrier)
                carrier.start()

    def _connect(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._port)) as far:
            self._open += [near, far]
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.requests += data.count(b"/stream HTTP/1.1\r\n")
                target.sendall(data)
        _shut(source)
        _shut(target)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cutter(server: Server) -> Iterator[Cutter]:
    cutter = Cutter(server.port)
    yield cutter
    cutter.close()


def hears(page: Page, count: int) -> None:
    """It comes to so many events."""
    wait_until(lambda: page.evaluate("window.heard.length") >= count, f"{count} events")


def test_it_hears_everything_once_and_rests_after_the_end(
    browse: Callable[..., BrowserContext], hand: Hand, cutter: Cutter
) -> None:
    """Cases B9, B10: three cuts of its connection, then 204: no request more."""
    job_id = hand.submit("long")
    run = hand.start()
    page = browse(base_url=cutter.url).new_page()
    page.goto(f"{cutter.url}/healthz")
    page.evaluate(WATCH, f"{cutter.url}/jobs/{job_id}/stream")
    for number in range(1, 4):
        hand.write(run, f"before cut {number}")
        hears(page, 2 * number + 1)
        cutter.cut()
        hand.write(run, f"during cut {number}")
    hears(page, 8)
    hand.finish(run, "the end")
    closed = "window.source.readyState === EventSource.CLOSED"
    wait_until(lambda: page.evaluate(closed), "the 204 ends it")
    heard = page.evaluate("window.heard")
    assert [number for number, _, _ in heard] == list(range(1, len(heard) + 1))
    told = [text for _, name, text in heard if name == "delta"]
    assert told == [f"{when} cut {n}" for n in range(1, 4) for when in ("before", "during")]
    assert heard[-1][1] == "done"
    wait_until(lambda: cutter.requests == 5, f"5 requests, not {cutter.requests}")
    page.wait_for_timeout(2500)  # it would come back after 2 s
    assert cutter.requests == 5, "the first, one for each cut, and the one that a 204 ended"
