"""The hub on a real Redis: one connection, counted channels, nothing missed when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import unquote, urlsplit

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from server.hub import Hub
from server.watch import MAILBOX, MAILBOX_BYTES, Message, Watch
from tasks.settings import Settings
from tasks.store import listen as listen_module
from tests.rig import store_at
from tests.serving import until

CHANNEL = "slowcall:events:one"


@asynccontextmanager
async def running(settings: Settings, ping_s: float = 60) -> AsyncIterator[tuple[Hub, Redis]]:
    async with store_at(settings) as store, Hub(store.redis, ping_s=ping_s) as hub:
        yield hub, store.redis


async def told_to_read(watch: Watch, within_s: float = 10) -> list[Message]:
    """Wait until the watch is told to read its log; answers the messages seen meanwhile."""
    seen: list[Message] = []
    async with asyncio.timeout(within_s):
        while True:
            await watch.wait()
            messages, reread, _ = watch.take()
            seen += messages
            if reread:
                return seen


async def messages(watch: Watch, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(5):
        while len(found) < count:
            await watch.wait()
            found += watch.take()[0]
    return found


def test_a_message_is_made_once_and_knows_whether_it_is_final() -> None:
    running = Message.read(b"7\nevent: running\ndata: {}\n\n")
    assert (running.mark, running.final) == ("7", False)
    assert running.frame == b"id: 7\nevent: running\ndata: {}\n\n"
    for name in ("done", "failed", "cancelled"):
        assert Message.read(b"8\nevent: %b\ndata: {}\n\n" % name.encode()).final
    assert not Message.read(b'9\nevent: delta\ndata: {"text": "event: done"}\n\n').final


@pytest.mark.parametrize(("count", "size"), [(MAILBOX, 1), (4, MAILBOX_BYTES // 4)])
async def test_a_full_mailbox_sends_its_owner_to_the_log(count: int, size: int) -> None:
    watch = Watch()
    for number in range(count):
        watch.post(Message(str(number), b"x" * size, b"", False))
    waiting, reread, _ = watch.take()
    assert (len(waiting), reread) == (count, False)
    for number in range(count + 1):
        watch.post(Message(str(number), b"x" * size, b"", False))
    waiting, reread, _ = watch.take()
    assert (len(waiting), reread) == (1, True)
    assert watch.take() == ([], False, False)


async def test_all_listeners_share_one_connection_and_each_message(settings: Settings) -> None:
    async with running(settings) as (hub, redis):
        with hub.watch(CHANNEL) as one, hub.watch(CHANNEL) as two, hub.watch("other") as other:
            for watch in (one, two, other):
                await told_to_read(watch)
            clients = await redis.client_list(_type="pubsub")
            assert len(clients) == 1
            await redis.publish(CHANNEL, b"1\nevent: running\ndata: {}\n\n")
            (first,), (second,) = await messages(one, 1), await messages(two, 1)
            assert first is second
            assert other.take()[0] == []


async def test_a_channel_is_left_with_its_last_listener(settings: Settings) -> None:
    async with running(settings) as (hub, redis):

        async def listening() -> int:
            return int((await redis.pubsub_numsub(CHANNEL))[0][1])

        for _ in range(100):
            with hub.watch(CHANNEL) as one, hub.watch(CHANNEL):
                await told_to_read(one)
                assert await listening() == 1
        assert hub.listeners == 0

        async def left() -> bool:
            return await listening() == 0

        await until(left, "the channel is left")


async def test_left_and_joined_at_once_is_told_to_read_only_when_live(settings: Settings) -> None:
    async with running(settings) as (hub, redis):
        with hub.watch("warm") as warm:
            await told_to_read(warm)
        for number in range(200):
            with hub.watch(CHANNEL):
                pass
            with hub.watch(CHANNEL) as watch:
                await told_to_read(watch)
                await redis.publish(CHANNEL, b"%d\nevent: running\ndata: {}\n\n" % number)
                (message,) = await messages(watch, 1)
                assert message.mark == str(number)


async def test_after_a_lost_connection_everybody_reads_again(settings: Settings) -> None:
    async with running(settings) as (hub, redis):
        with hub.watch(CHANNEL) as one, hub.watch("other") as other:
            await told_to_read(one)
            await told_to_read(other)
            for _ in range(3):
                await redis.client_kill_filter(_type="pubsub")
                await told_to_read(one)
                await told_to_read(other)
            await redis.publish(CHANNEL, b"1\nevent: running\ndata: {}\n\n")
            assert len(await messages(one, 1)) == 1


async def test_a_dead_link_is_noticed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B3: a link that swallows everything and never says that it is broken."""
    monkeypatch.setattr(listen_module, "HEARTBEAT_S", 0.1)
    async with Wire(settings) as wire, running(wire.settings) as (hub, _):
        with hub.watch(CHANNEL) as watch:
            await told_to_read(watch)
            wire.swallow()
            assert await told_to_read(watch, within_s=5) == []
            assert wire.opened >= 2


async def test_everybody_is_pinged_in_turn(settings: Settings) -> None:
    async with running(settings, ping_s=0.3) as (hub, _), AsyncExitStack() as stack:
        watches = [stack.enter_context(hub.watch(CHANNEL)) for _ in range(40)]
        pinged: set[int] = set()
        async with asyncio.timeout(0.6):
            while len(pinged) < len(watches):
                await asyncio.sleep(0.01)
                pinged |= {n for n, watch in enumerate(watches) if watch.take()[2]}


async def test_the_end_closes_all_watches_also_later_ones(settings: Settings) -> None:
    async with running(settings) as (hub, _):
        with hub.watch(CHANNEL) as watch:
            hub.end()
            await asyncio.wait_for(watch.wait(), 1)
            assert watch.closed
        with hub.watch(CHANNEL) as late:
            assert late.closed


async def test_a_hub_that_is_ended_while_it_dials_ends(settings: Settings) -> None:
    for steps in range(40):
        async with asyncio.timeout(5), running(settings):
            for _ in range(steps):
                await asyncio.sleep(0)


class Wire:
    """A proxy before Redis that can swallow what the connections opened so far send and get."""

    def __init__(self, settings: Settings) -> None:
        assert settings.redis_url
        self._path = unquote(urlsplit(settings.redis_url.get_secret_value()).path)
        self._settings = settings
        self._dead = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.opened = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        url = SecretStr(f"redis://127.0.0.1:{port}")
        self.settings = self._settings.model_copy(update={"redis_url": url})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def swallow(self) -> None:
        """From now on nothing passes on the connections that are open."""
        self._dead = self.opened

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        number = self.opened
        there = await asyncio.open_unix_connection(self._path)
        self._writers += [writer, there[1]]
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._pass(number, source, sink))
            self._tasks.add(task)

    async def _pass(
        self, number: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                if number > self._dead:
                    sink.write(data)
                    await sink.drain()
            sink.close()
