"""One pub/sub connection per process, fanned out to every stream and every wait.

A listener registers a `Watch` before its first await. The hub subscribes the channel, and once
Redis has acknowledged it, tells the watch to read its log: whatever was published before is in the
log, whatever comes after arrives here. After a lost connection the same happens again, so a
listener needs one rule only: "told to read, read; else take what came".
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any, Final

from redis.asyncio import Redis

from server.watch import Message, Watch
from tasks.store.listen import Subscription, listen

_PING_SLOTS: Final = 16
_OURS: Final = re.compile(rb"\d{1,16}(-\d{1,16})?\n")


class _Topic:
    """A channel and those who listen to it; `live` once Redis has acknowledged it."""

    __slots__ = ("watches", "live")

    def __init__(self) -> None:
        self.watches: set[Watch] = set()
        self.live = False


class _Listening(AbstractContextManager[Watch]):
    """A watch while it listens. No generator, whose frame would stay with every stream."""

    __slots__ = ("_hub", "_channel", "_slot", "_watch")

    def __init__(self, hub: Hub, channel: bytes, slot: set[Watch]) -> None:
        self._hub, self._channel, self._slot, self._watch = hub, channel, slot, Watch()

    def __enter__(self) -> Watch:
        self._slot.add(self._watch)
        self._hub.join(self._channel, self._watch)
        return self._watch

    def __exit__(self, *_: object) -> None:
        self._slot.discard(self._watch)
        self._hub.leave(self._channel, self._watch)


class Hub:
    """The process's one subscription; run it with `async with`.

    `handed_out` counts the events that it gave to watches.
    """

    def __init__(self, redis: Redis, *, ping_s: float) -> None:
        self._redis = redis
        self._ping_s = ping_s
        self._topics: dict[bytes, _Topic] = {}
        self._unacknowledged: Counter[bytes] = Counter()
        self._subscription: Subscription | None = None
        self._slots: list[set[Watch]] = [set() for _ in range(_PING_SLOTS)]
        self._next_slot = cycle(self._slots)
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False
        self.handed_out = 0

    async def __aenter__(self) -> Hub:
        hearing = listen(self._redis, self._begin, self._receive)
        self._tasks = [asyncio.create_task(hearing), asyncio.create_task(self._ping())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def listeners(self) -> int:
        """How many watches there are."""
        return sum(len(slot) for slot in self._slots)

    def watch(self, channel: str) -> AbstractContextManager[Watch]:
        """Listen to a channel; after the hub's end the watch is closed from the start."""
        return _Listening(self, channel.encode(), next(self._next_slot))

    def end(self) -> None:
        """Close every watch, present and future: the process is about to leave."""
        self._ended = True
        for watch in [watch for slot in self._slots for watch in slot]:
            watch.close()

    def join(self, channel: bytes, watch: Watch) -> None:
        """Give a watch what is told on a channel from now on."""
        topic = self._topics.get(channel)
        if topic is None:
            topic = self._topics[channel] = _Topic()
            self._subscribe(channel)
        topic.watches.add(watch)
        if topic.live:
            watch.reread()
        if self._ended:
            watch.close()

    def leave(self, channel: bytes, watch: Watch) -> None:
        """End that; a channel that nobody listens to is let go."""
        topic = self._topics[channel]
        topic.watches.discard(watch)
        if not topic.watches:
            del self._topics[channel]
            if self._subscription:
                self._subscription.unsubscribe(channel)

    def _begin(self, subscription: Subscription) -> None:
        """A connection is there, for the first time or anew."""
        self._subscription = subscription
        self._unacknowledged.clear()
        for channel, topic in self._topics.items():
            topic.live = False
            self._subscribe(channel)

    def _subscribe(self, channel: bytes) -> None:
        if self._subscription:
            self._unacknowledged[channel] += 1
            self._subscription.subscribe(channel)

    def _receive(self, what: bytes, channel: bytes, data: Any) -> None:
        topic = self._topics.get(channel)
        if what == b"message" and topic:
            self._hand_out(topic, data)
        elif what == b"subscribe":
            self._acknowledge(channel, topic)

    def _hand_out(self, topic: _Topic, payload: bytes) -> None:
        """Post an event to all its listeners; what is none of ours sends them to the log."""
        if not _OURS.match(payload):
            for watch in topic.watches:
                watch.reread()
            return
        message = Message.read(payload)
        self.handed_out += len(topic.watches)
        for watch in topic.watches:
            watch.post(message)

    def _acknowledge(self, channel: bytes, topic: _Topic | None) -> None:
        """A channel left and joined again at once is live at its last acknowledgement only."""
        self._unacknowledged[channel] -= 1
        if self._unacknowledged[channel] > 0:
            return
        del self._unacknowledged[channel]
        if topic:
            topic.live = True
            for watch in topic.watches:
                watch.reread()

    async def _ping(self) -> None:
        """The shared pinger: every watch once in a ping's time, in turns so that load is even."""
        for slot in cycle(self._slots):
            await asyncio.sleep(0.95 * self._ping_s / _PING_SLOTS)
            for watch in slot:
                watch.ping()
