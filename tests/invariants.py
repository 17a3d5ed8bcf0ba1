"""What holds of the store at any moment: read it whole, and say what is wrong.

Each check is a sentence about the store and yields a line for each fault. They hold after every
script, so they are asked after every test that used a store and after every move of the lifecycle
model.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import orjson
import redis

from tasks.keys import ALL, PREFIX, TEMPLATES, name, user_scope
from tasks.lifecycle import FINAL, IN_FLIGHT, TRANSITIONS, WAITING, Status

OF_A_JOB: Final = {"job", "input", "log", "steps", "ledger", "blob", "idem"}
"""They expire together, when their job is final and not before."""

LASTING: Final = {
    "queue": "entries leave when their job is final",
    "turns": "entries leave at their turn",
    "heads": "a user leaves when no job of theirs waits",
    "waiting": "jobs leave when they start",
    "inflight": "jobs leave when they are final",
    "index": "jobs leave when their record does",
    "expiry": "marks leave when they are pruned",
    "deadline": "jobs leave when they are final",
    "beat": "one key",
    "figures": "one key, bounded",
    "outbox": "letters leave when they are delivered",
    "letters": "letters leave when they are delivered",
    "workers": "entries are pruned when old",
    "busy": "entries leave when they are requeued or final",
    "rules": "jobs leave when a rule or a person revives them, or when they are gone",
    "lane": "a call leaves when it is settled, a place that was kept when it lapses",
    "cooldown": "models leave when their lane opens",
    "lanes": "models are pruned when nothing goes on in their lane",
    "lane_turns": "users leave when none of their jobs waits for the lane",
    "lane_line": "entries leave when a place is kept for them",
}
"""Keys that may stay without an expiry, and why that is no leak."""

LIVES: Final = {(origin, move.target) for move in TRANSITIONS for origin in move.origins} | {
    (None, Status.QUEUED)
}
"""Every pair of neighbours that the table of the lifecycle allows in a log; no pair (None, …) but
the first: `submit`."""

_STARTS: Final = {text.partition("{}")[0]: template for template, text in TEMPLATES.items()}

OUTCOMES: Final = ("paid", "open", "rejected", "not_sent", "unknown")


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job's log."""

    seq: int
    name: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Books:
    """All that a store holds, at one moment: values and times to live (ms, -1 none) by key; and
    the values by template and what fills it."""

    values: dict[str, Any]
    ttl_ms: dict[str, int]
    by_template: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, client: redis.Redis) -> Books:
        """The store as it stands; it must not move meanwhile."""
        keys = sorted(key.decode() for key in client.scan_iter(count=10_000))
        with client.pipeline() as pipe:
            for key in keys:
                pipe.type(key)
                pipe.pttl(key)
            told = pipe.execute()  # type: ignore[no-untyped-call]
            for key, kind in zip(keys, told[::2], strict=True):
                _READERS[kind.decode()](pipe, key)
            found = pipe.execute()  # type: ignore[no-untyped-call]
        pairs = zip(keys, found, strict=True)
        values = {key: _text(value) for key, value in pairs if value is not None}
        by_template: dict[str, dict[str, Any]] = defaultdict(dict)
        for key, value in values.items():
            template, rest = origin(key)
            by_template[template][rest] = value
        return cls(values, dict(zip(keys, told[1::2], strict=True)), by_template)

    def get(self, template: str, *parts: str, default: Any = None) -> Any:
        """The value of one key of the inventory."""
        return self.values.get(name(template, *parts), default)

    def all(self, template: str) -> dict[str, Any]:
        """The values of all keys made from a template, by what fills it."""
        return self.by_template.get(template, {})

    @property
    def jobs(self) -> dict[str, dict[str, str]]:
        """The records by job id."""
        return self.all("job")

    def events(self, job_id: str) -> list[Event]:
        """The log of a job."""
        return [
            Event(
                int(entry_id.partition("-")[0]),
                fields["b"].partition("\n")[0].removeprefix("event: "),
                orjson.loads(fields["b"].partition("\ndata: ")[2]),
            )
            for entry_id, fields in self.get("log", job_id, default=[])
        ]

    def lines(self, job_id: str) -> list[dict[str, Any]]:
        """The lines of a job's ledger."""
        ledger = self.get("ledger", job_id, default={})
        return [orjson.loads(line) for field, line in ledger.items() if field.startswith("c:")]


def origin(key: str) -> tuple[str, str]:
    """The template that a key is made from, and what fills it; an unknown one is its own."""
    if key in _STARTS:
        return _STARTS[key], ""
    start = key[: key.find(":", len(PREFIX)) + 1]
    return (_STARTS[start], key[len(start) :]) if start in _STARTS else (key, "")


def status_of(job: dict[str, str]) -> Status:
    """Where a record stands."""
    return Status(job["status"].strip('"'))


def runs(job: dict[str, str]) -> bool:
    """Whether a worker has it."""
    return status_of(job) is Status.RUNNING


def entry_of(job_id: str, job: dict[str, str]) -> str:
    """The queue entry of a record's present life."""
    return f"{job_id}:{job['life']}"


def faults(books: Books) -> list[str]:
    """Everything that is wrong with the store; nothing, as it should be."""
    return [f"{check.__name__}: {line}" for check in CHECKS for line in check(books)]


def lifetimes(books: Books) -> Iterator[str]:
    """What belongs to a job expires with it and not before; all else expires or is listed."""
    for key in books.values:
        ttl_ms = books.ttl_ms[key]
        template, rest = origin(key)
        if template in OF_A_JOB:
            job_id = str(books.values[key]) if template == "idem" else rest
            job = books.jobs.get(job_id)
            if job is None:
                yield f"{key} has no job"
            elif status_of(job) not in FINAL and ttl_ms != -1:
                yield f"{key} expires, and its job is not final"
            elif status_of(job) in FINAL:
                own_ms = books.ttl_ms[name("job", job_id)]
                if abs(own_ms - ttl_ms) > 50 or ttl_ms < 0:
                    yield f"{key} expires in {ttl_ms} ms, its job in {own_ms}"
        elif template == "feed":
            if name("index", ALL, ALL, rest) not in books.values:
                yield f"{key} is there, and no job whose end would remove it"
        elif ttl_ms == -1 and template not in LASTING:
            yield f"{key} never expires"


def places(books: Books) -> Iterator[str]:
    """Every job that is not final has exactly one place, from which somebody will move it on; the
    queues, turns and heads hold nothing else."""
    found: Counter[str] = Counter()
    for kind, queue in books.all("queue").items():
        for entry, _ in queue:
            job_id = entry.partition(":")[0]
            job = books.jobs.get(job_id)
            if job is None or entry != entry_of(job_id, job) or job["kind"] != kind:
                yield f"the queue of {kind} holds {entry}, which is nobody's"
            found[entry] += 1
    queued = set(found)
    for key, turns in books.all("turns").items():
        kind, _, user = key.partition(":")
        if books.get("heads", kind, default={}).get(user) is None:
            yield f"{user}'s turns of {kind} have no head before them"
        for entry, _ in turns:
            job_id = entry.partition(":")[0]
            job = books.jobs.get(job_id)
            stands = job and (entry_of(job_id, job), job["kind"], job["user"])
            if stands != (entry, kind, user):
                yield f"the turns of {key} hold {entry}"
            found[entry] += 1
    for kind, heads in books.all("heads").items():
        for user, entry in heads.items():
            job = books.jobs.get(entry.partition(":")[0], {})
            if entry not in queued or job.get("user") != user or job.get("kind") != kind:
                yield f"the head of {user}, {entry}, is in no queue"
    for job_id, job in books.jobs.items():
        entry, expected = entry_of(job_id, job), 0 if status_of(job) in FINAL else 1
        if found[entry] != expected:
            yield f"{entry}, {status_of(job)}, has {found[entry]} places"


def waiting(books: Books) -> Iterator[str]:
    """The list of those that wait is the jobs that wait."""
    expected = {job_id for job_id, job in books.jobs.items() if status_of(job) in WAITING}
    for job_id in {member for member, _ in books.get("waiting", default=[])} ^ expected:
        yield f"{job_id} {'is not' if job_id in expected else 'is'} in it"


def quotas(books: Books) -> Iterator[str]:
    """A user's jobs in flight are those of theirs that are not final."""
    expected: dict[str, set[str]] = defaultdict(set)
    for job_id, job in books.jobs.items():
        if status_of(job) in IN_FLIGHT:
            expected[job["user"]].add(job_id)
    found = books.all("inflight")
    for user in found.keys() | expected.keys():
        if found.get(user, set()) != expected.get(user, set()):
            yield f"{user} has {expected.get(user)} in flight, counted are {found.get(user)}"


def indexes(books: Books) -> Iterator[str]:
    """Each job is in three indexes of its user and of all: all jobs, its kind, its status."""
    gone = {mark.partition("\n")[0] for mark, _ in books.get("expiry", default=[])} - {*books.jobs}
    expected: dict[str, set[str]] = defaultdict(set)
    for job_id, job in books.jobs.items():
        for kind, status in ((ALL, ALL), (job["kind"], ALL), (ALL, job["status"])):
            for scope in (ALL, user_scope(job["user"])):
                expected[f"{kind}:{status}:{scope}"].add(job_id)
    found = books.all("index")
    for key in expected.keys() | found.keys():
        members = {member for member, _ in found.get(key, [])} - gone
        if members != expected[key]:
            yield f"{key} holds {members}, expected are {expected[key]}"


def timetables(books: Books) -> Iterator[str]:
    """Final jobs, and only they, are marked to be pruned; whoever waits with a deadline is watched,
    and nobody final is."""
    marks = [mark.split("\n") for mark, _ in books.get("expiry", default=[])]
    marked = Counter(job_id for job_id, *_ in marks if job_id in books.jobs)
    watched = {member for member, _ in books.get("deadline", default=[])}
    for job_id, job in books.jobs.items():
        final = status_of(job) in FINAL
        if marked[job_id] != int(final):
            yield f"{job_id}, {status_of(job)}, has {marked[job_id]} marks"
        unstarted = job.get("started_at", "null") == "null" and job.get("expires")
        if job_id in watched and final:
            yield f"{job_id} is final, and its deadline is watched"
        if (
            status_of(job) in WAITING
            and (job.get("deadline") or unstarted)
            and job_id not in watched
        ):
            yield f"{job_id} waits, and its deadline is not watched"
    for job_id, *said in marks:
        if job_id in books.jobs:
            job = books.jobs[job_id]
            if said != [job["kind"], job["status"], job["user"]]:
                yield f"the mark of {job_id} says {said}"


def logs(books: Books) -> Iterator[str]:
    """The numbers of a log have no gap; its states follow the table; one final event ends a life,
    and nothing lies between it and the next one; progress never goes back."""
    for job_id, job in books.jobs.items():
        events = books.events(job_id)
        if [event.seq for event in events] != list(range(1, int(job["seq"]) + 1)):
            yield f"{job_id} counts {job['seq']}, its log {[event.seq for event in events]}"
        for before, after in pairwise(events):
            if before.name in FINAL and after.name != Status.QUEUED:
                yield f"{job_id} has {after.name} after {before.name}"
        states = [event for event in events if event.name in set(Status)]
        for move in pairwise([None, *(Status(event.name) for event in states)]):
            if move not in LIVES:
                yield f"{job_id} moved from {move[0]} to {move[1]}"
        if not states or states[-1].name != status_of(job):
            yield f"{job_id} is {status_of(job)}, its log ends {states[-1:]}"
        lives = 1 + sum(event.name in FINAL for event in states[:-1])
        if lives != int(job["life"]):
            yield f"{job_id} is in life {job['life']}, its log tells of {lives}"
        done = [event.data["progress"]["done"] for event in events if "progress" in event.data]
        if done != sorted(done):
            yield f"{job_id} goes back: {done}"
        if any(event.data["job_id"] != job_id for event in events):
            yield f"{job_id} logs another job"


def records(books: Books) -> Iterator[str]:
    """A record says what its status says: a worker when it runs, a budget that is kept, a result,
    an error and an end where they belong."""
    for job_id, job in books.jobs.items():
        status = status_of(job)
        if not 0 <= int(job["attempts"]) <= int(job["max_attempts"]):
            yield f"{job_id} has {job['attempts']} attempts of {job['max_attempts']}"
        if runs(job) and not job.get("worker"):
            yield f"{job_id} runs, and nobody runs it"
        for field, expected in (
            ("finished_at", status in FINAL),
            ("result", status is Status.DONE),
            ("error", status is Status.FAILED or (status is Status.RETRYING and "")),
            ("retry_at", status is Status.RETRYING),
        ):
            if expected != "" and (job.get(field, "null") != "null") != expected:
                yield f"{job_id} is {status}, its {field} {job.get(field)}"


def ledgers(books: Books) -> Iterator[str]:
    """The sums that a job shows are those of its ledger's lines; no call is open but of its run."""
    for job_id, job in books.jobs.items():
        lines = books.lines(job_id)
        outcomes = Counter(line["outcome"] for line in lines)
        for outcome in OUTCOMES:
            if (shown := int(job.get(outcome, 0))) != outcomes[outcome]:
                yield f"{job_id} shows {shown} {outcome}, its ledger {outcomes[outcome]}"
        for tokens in ("input_tokens", "output_tokens"):
            if int(job.get(tokens, 0)) != sum(line.get(tokens, 0) for line in lines):
                yield f"{job_id} shows {job.get(tokens, 0)} {tokens}"
        for line in lines:
            if line["outcome"] == "open" and not (runs(job) and line["run"] == int(job["run"])):
                yield f"{job_id} has a call open of run {line['run']}, and is in {job['run']}"


def lanes(books: Books) -> Iterator[str]:
    """Only open calls have a place in their model's lane (one whose lease has lapsed may have lost
    it); in its line wait jobs that say so; only what was claimed keeps its kind busy."""
    places = {
        (model, place)
        for model, members in books.all("lane").items()
        for place, _ in members
        if place.count(":") == 2
    }
    calls = {
        (line["model"], f"{job_id}:{line['run']}:{line['call']}")
        for job_id in books.jobs
        for line in books.lines(job_id)
        if line["outcome"] == "open"
    }
    for model, place in places - calls:
        yield f"{place} has a place in {model}"
    for key, line in books.all("lane_line").items():
        for entry, _ in line:
            job = books.jobs.get(entry.partition(":")[0], {})
            if job.get("status", "null").strip('"') not in WAITING or "lane" not in job:
                yield f"{entry} stands in {key}"
    for kind, busy in books.all("busy").items():
        for entry, _ in busy:
            job_id = entry.partition(":")[0]
            job = books.jobs.get(job_id, {})
            if not (job and runs(job)) or entry != entry_of(job_id, job):
                yield f"{entry} keeps {kind} busy"


CHECKS: Final[tuple[Callable[[Books], Iterator[str]], ...]] = (
    *(lifetimes, places, waiting, quotas, indexes, timetables),
    *(logs, records, ledgers, lanes),
)


_READERS: Final[dict[str, Callable[[Any, str], object]]] = {
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    "hash": lambda pipe, key: pipe.hgetall(key),
    "stream": lambda pipe, key: pipe.xrange(key),
    "set": lambda pipe, key: pipe.smembers(key),
    "string": lambda pipe, key: pipe.get(key),
    "none": lambda pipe, key: pipe.get(key),
}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, dict):
        return {_text(key): _text(item) for key, item in value.items()}
    if isinstance(value, list | set | tuple):
        return type(value)(_text(item) for item in value)
    return value
