"""The outbox: letters that a transition wrote, taken under a lease by whoever delivers them."""

from __future__ import annotations

import logging
from typing import Any

from tasks.store.base import StoreBase
from tasks.store.fragments import dumps, loads
from tasks.store.records import Letter

log = logging.getLogger("slowcall.store")


class Outbox(StoreBase):
    """The deliverer's part of the store. A topic is `webhook`, or `alert:` and a target."""

    async def take_letters(self, topic: str, *, lease_s: float, most: int) -> list[Letter]:
        """Up to `most` due letters, which nobody else gets for `lease_s`.

        One that holds what is not ours can tell nobody anything: it goes, with a line in the log.
        """
        taken = await self.scripts.call_once(
            "outbox_take", topic=topic, lease_ms=round(lease_s * 1000), most=most
        )
        pairs = zip(taken[::2], taken[1::2], strict=True)
        letters = [Letter(id.decode(), _payload(payload)) for id, payload in pairs]
        for letter in (letter for letter in letters if not letter.payload):
            log.error("the letter %s of %s holds what is not ours", letter.id, topic)
            await self.finish_letter(topic, letter)
        return [letter for letter in letters if letter.payload]

    async def tell_callback(self, letter: Letter, callback: dict[str, Any]) -> bool:
        """Show on the job how the delivery goes; whether the job is still there."""
        job_id, _, life = letter.id.partition(":")
        (word,) = await self.scripts.call(
            "callback", job=job_id, life=life, callback=dumps(callback)
        )
        return bool(word == b"ok")

    async def finish_letter(
        self, topic: str, letter: Letter, *, wait_s: float | None = None
    ) -> None:
        """The letter is delivered; with `wait_s` it is kept, as it is now, and due again then."""
        await self.scripts.call(
            "outbox_done",
            topic=topic,
            id=letter.id,
            wait_ms="" if wait_s is None else round(wait_s * 1000),
            payload=dumps(letter.payload),
        )


def _payload(written: bytes) -> dict[str, Any]:
    """What a letter says; empty where a record that was not ours got into it."""
    try:
        payload = loads(written)
    except ValueError:
        return {}
    return payload if isinstance(payload, dict) else {}
