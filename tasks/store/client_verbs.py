"""What a server asks of the store: submit, read, list, cancel, retry, delete, logs and feeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from uuid import uuid4

from tasks.errors import (
    JobNotFound,
    KeyReused,
    MalformedRequest,
    QuotaExceeded,
    RecordDamaged,
    WrongStatus,
)
from tasks.keys import ALL, idempotency_part, name, user_scope
from tasks.lifecycle import CANCEL, REVIVE, SUBMIT, Status
from tasks.store.base import StoreBase
from tasks.store.fragments import dumps, loads, quoted, status_set, unquoted
from tasks.store.records import FeedEntry, JobView, LogEntry, NewJob, Origin, Submitted

_FEED_ID: Final = re.compile(r"\d{1,16}-\d{1,16}")
_CURSOR: Final = re.compile(r"(\d{1,16}(?:\.\d{1,17})?)_([0-9a-f]{32})")
_QUOTA_RETRY_S: Final = 5
_PAGE_BYTES: Final = 4_194_304
NO_TRACE: Final[Mapping[str, str]] = MappingProxyType({})
_UNTOLD: Final = {"state": "waiting", "attempts": 0, "status": None, "next_at": None}
_Entry = tuple[bytes, dict[bytes, bytes]]


class ClientVerbs(StoreBase):
    """The server's half of the store. `user_id` None means all users."""

    async def submit(
        self, new: NewJob, *, quota: int = 0, trace: Mapping[str, str] = NO_TRACE
    ) -> Submitted:
        """Store a job, or find the one that came before with the same idempotency key.

        `trace` is what its attempts go on in (W3C Trace Context, empty: in none).
        Raises KeyReused (same key, other body) and QuotaExceeded (`quota` in flight, 0: no limit).
        """
        job_id = uuid4().hex
        word, in_flight, *view = await self.scripts.call(
            "submit",
            *_record(new, trace),
            job=job_id,
            user=new.user_id,
            kind=new.kind,
            input=dumps(new.input),
            quota=quota,
            idem=idempotency_part(new.user_id, new.idempotency_key) if new.idempotency_key else "",
            fingerprint=new.fingerprint,
            status=quoted(SUBMIT.target),
            deadline_ms=_ms(new.deadline_s),
            expires_ms=_ms(new.expires_s),
            blob=new.blob or b"",
        )
        if word == b"reused":
            raise KeyReused("This idempotency key came before with another body: use a new key.")
        if word == b"full":
            raise _quota_exceeded(quota)
        return Submitted(_view(view), replayed=word == b"replay", in_flight=int(in_flight))

    async def read(self, job_id: str) -> JobView:
        """The job as it stands. Raises JobNotFound, RecordDamaged."""
        view = await self.scripts.call("read", job=job_id)
        if not view:
            raise _unknown()
        if not _is_whole(view):
            raise RecordDamaged
        return _view(view)

    async def list_jobs(
        self,
        *,
        user_id: str | None,
        status: Status | None = None,
        kind: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> tuple[list[JobView], str | None]:
        """A page of jobs, newest first, and the cursor of the next one (None: it was the last).

        A page of jobs with large results is shorter than `limit`. Raises MalformedRequest for a
        cursor that is not one of ours.
        """
        page: list[list[bytes]] = []
        while not page:
            score, after = _read_cursor(cursor)
            next_score, next_id, *page = await self.scripts.call(
                "list",
                kind=kind or ALL,
                status=quoted(status) if status else ALL,
                scope=_scope(user_id),
                limit=limit,
                bytes=_PAGE_BYTES,
                score=score,
                after=after,
            )
            cursor = f"{next_score.decode()}_{next_id.decode()}" if next_id else None
            if cursor is None:
                break
        return [_view(view) for view in page if _is_whole(view)], cursor

    async def cancel(self, job_id: str) -> JobView:
        """End a job that is not final; its worker is told. Raises JobNotFound, WrongStatus."""
        (word,) = await self.scripts.call_once(
            "conclude",
            job=job_id,
            run="",
            **{"from": status_set(CANCEL.origins)},
            status=quoted(CANCEL.target),
            result=b"null",
            error=b"null",
            alert=0,
        )
        _did(word, "Only a job that is not final can be cancelled.")
        return await self.read(job_id)

    async def revive(self, job_id: str, *, quota: int = 0, input: Any = None) -> JobView:
        """Begin a new life of a failed or cancelled job, its steps kept; `input` replaces its own.

        Raises JobNotFound, WrongStatus, QuotaExceeded.
        """
        word, _ = await self.scripts.call_once(
            "revive",
            job=job_id,
            quota=quota,
            **{"from": status_set(REVIVE.origins)},
            status=quoted(REVIVE.target),
            input=b"" if input is None else dumps(input),
        )
        if word == b"full":
            raise _quota_exceeded(quota)
        _did(word, "Only a failed or cancelled job can be retried.")
        return await self.read(job_id)

    async def origin(self, job_id: str) -> Origin:
        """What the job was asked for. Raises JobNotFound."""

        async def both() -> Any:
            async with self.redis.pipeline(transaction=True) as pipe:
                pipe.get(name("input", job_id))
                pipe.hget(name("job", job_id), "edited")
                return await pipe.execute()

        input, edited = await self.ask(both)
        if input is None:
            raise _unknown()
        return Origin(loads(input), edited=edited is not None)

    async def delete(self, job_id: str) -> None:
        """Remove everything of a final job. Raises JobNotFound, WrongStatus."""
        (word,) = await self.scripts.call_once("delete", job=job_id)
        _did(word, "Only a final job can be deleted: cancel it first.")

    async def ledger(self, job_id: str) -> list[dict[str, Any]]:
        """The lines of a job's ledger in the order in which the calls began."""
        fields = await self.ask(lambda: self.redis.hgetall(name("ledger", job_id)))
        lines = [loads(line) for field, line in fields.items() if field.startswith(b"c:")]
        return sorted(lines, key=lambda line: line["no"])

    async def log(self, job_id: str, after: int = 0, limit: int = 1000) -> list[LogEntry]:
        """Up to `limit` events of a job that follow number `after`."""
        entries = await self.ask(
            lambda: self.redis.xrange(name("log", job_id), min=f"({after}-0", count=limit)
        )
        return [_log_entry(entry_id, fields) for entry_id, fields in entries]

    async def feed(
        self, user_id: str | None, after: str, limit: int = 1000
    ) -> list[FeedEntry] | None:
        """Up to `limit` events of a user's jobs that follow `after`; what was deleted is empty.

        None where `after` is no place in the feed: junk, ahead of it, or trimmed away.
        """
        key = name("feed", _scope(user_id))
        if not _FEED_ID.fullmatch(after):
            return None
        entries = await self.ask(lambda: self.redis.xrange(key, min=after, count=limit + 1))
        if after != "0-0":
            if not entries or entries[0][0].decode() != after:
                return None
            entries = entries[1:]
        return await self._feed_entries(entries[:limit])

    async def _feed_entries(self, entries: list[_Entry]) -> list[FeedEntry]:
        async def fetch() -> list[list[_Entry] | Exception]:
            async with self.redis.pipeline(transaction=False) as pipe:
                for _, fields in entries:
                    seq = f"{int(fields[b's'])}-0"
                    pipe.xrange(name("log", fields[b"j"].decode()), min=seq, max=seq)
                found: list[list[_Entry] | Exception] = await pipe.execute(raise_on_error=False)
                return found

        logs = await self.ask(fetch) if entries else []
        return [
            FeedEntry(feed_id.decode(), _block(found))
            for (feed_id, _), found in zip(entries, logs, strict=True)
        ]

    async def feed_position(self, user_id: str | None) -> str:
        """The id of the newest event of a feed; `0-0` when there is none."""
        newest = await self.ask(
            lambda: self.redis.xrevrange(name("feed", _scope(user_id)), count=1)
        )
        return newest[0][0].decode() if newest else "0-0"


def _record(new: NewJob, trace: Mapping[str, str]) -> list[str | bytes | int]:
    """The rest of a new job's record, for `submit.lua`: field, fragment, field, fragment …"""
    options = {
        "timeout_s": new.timeout_s,
        "on_unknown": new.on_unknown,
        "memo": new.memo,
        "trace": dict(trace),
    }
    record: list[str | bytes | int] = [
        *("user_id", dumps(new.user_id), "options", dumps(options)),
        *("metadata", dumps(new.metadata), "max_attempts", new.max_attempts, "attempts", 0),
    ]
    if new.on_unknown == "park":
        record += ["parked", 1]
    if model := _model_of(new.input):
        record += ["model", model]
    if new.callback_url:
        record += ["callback_url", dumps(new.callback_url), "callback", dumps(_UNTOLD)]
    return record


def _model_of(input: Any) -> str:
    """The model that an input names; '' where it names none."""
    model = input.get("model") if isinstance(input, dict) else None
    return model if isinstance(model, str) else ""


def _scope(user_id: str | None) -> str:
    return ALL if user_id is None else user_scope(user_id)


def _ms(seconds: float | None) -> int | str:
    return "" if seconds is None else round(seconds * 1000)


def _view(view: list[bytes]) -> JobView:
    body, status, user, seq = view
    job_id = body[11:43].decode()
    return JobView(job_id, user.decode(), unquoted(status), int(seq), body)


def _is_whole(view: list[bytes]) -> bool:
    """Whether the record is still JSON: one that something else wrote to must not break a list."""
    try:
        return bool(loads(view[0]))
    except ValueError:
        return False


def _block(found: list[_Entry] | Exception) -> bytes:
    """The event that was looked up in a log; empty where the log is gone, or is none of ours."""
    return found[0][1][b"b"] if isinstance(found, list) and found else b""


def _log_entry(entry_id: bytes, fields: dict[bytes, bytes]) -> LogEntry:
    block = fields[b"b"]
    event = block[len(b"event: ") : block.index(b"\n")].decode()
    return LogEntry(int(entry_id.partition(b"-")[0]), event, block)


def _read_cursor(cursor: str | None) -> tuple[str, str]:
    if cursor is None:
        return "", ""
    match = _CURSOR.fullmatch(cursor)
    if not match:
        raise MalformedRequest("The cursor is not one of ours: take next_cursor of the last page.")
    return match[1], match[2]


def _unknown() -> JobNotFound:
    return JobNotFound("There is no such job, or it is not yours.")


def _quota_exceeded(quota: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{quota} jobs are in flight, as many as a user may have (SLOWCALL_QUOTA).",
        limit=quota,
        retry_after_s=_QUOTA_RETRY_S,
    )


def _did(word: bytes, sentence: str) -> None:
    if word == b"none":
        raise _unknown()
    if word == b"wrong":
        raise WrongStatus(sentence)
