"""Every Redis key and channel: its type, its content, its lifetime. Nothing else names one.

The same templates are handed to the Lua scripts, so that both wings build the same names.
`{}` is filled with ids that hold no `:` (job ids, kinds) or, at the end, with anything; up to three
stand at the end of a name and nothing but `:` between them, so that a script can join them cheaply.

name       type    content                                              lifetime
job        hash    the record: JSON fragments by contract name, and     KEEP_S after it is final
                   the private fields listed in store/lua/lib.lua
input      string  what the job was asked for (JSON)                    with the job
log        stream  the job's events, ids `seq-0`, ready-made bytes      with the job
steps      hash    step -> request hash, line feed, JSON result         with the job
ledger     hash    `c:{call}` -> line (JSON), `n:{step}` -> key number  with the job
blob       string  an uploaded document, until its pages are stored     with the job, or less
idem       string  job id; `{user length}:{user}:{key}`                 with the job
queue      zset    arq's queue of one kind: entry -> due time or lease  entries until final
turns      zset    one user's entries of one kind behind their head     entries until their turn
heads      hash    user -> the entry that is in the queue for them      until none of them waits
waiting    zset    all jobs that wait, by the time they would start     entries until they start
inflight   set     one user's jobs that are not final (the quota)       members until final
index      zset    job ids by submission; one for each of user or all,  members with the job
                   status or all, kind or all
expiry     zset    final jobs by the time they are gone, for pruning    members until pruned
rules      zset    failed jobs that a rule will revive, by then         members until revived or
                                                                        gone
deadline   zset    jobs that have a deadline, by that time              members until final
lane       zset    the calls to one model under way, and slots kept     entries until their call
                   for who comes next, by lease                         ends or the lease lapses
lanes      set     models with calls, a line or a pause                 members as long as so
cooldown   hash    model -> it asks for no call before this time (ms)   models until then
lane_turns zset    users who wait for a lane, by their last turn        members until none waits
lane_line  zset    entries of one user that wait for a lane, by age     entries until their turn
memo       string  `{hash}:{user}` -> job and step that answered it     KEEP_S, or until its job
                                                                        is deleted
pace       string  how long a job of a kind and model takes (ms)        KEEP_S after the last done
busy       zset    entries of one kind that were claimed                entries until requeued or
                                                                        final
outbox     zset    letters of one topic that have to leave, by when due entries until delivered
letters    hash    entry -> the letter (JSON)                           entries until delivered
figures    hash    counters for /metrics: name and labels -> number     none: one key, bounded
feed       stream  ids and numbers of events of a user's jobs, capped   until their last job is gone
op         string  a script's reply, or a worker's last claim, by id    OP_KEEP_S
beat       string  when any worker last renewed its leases (ms)         none: one key
grace      string  no lease is taken over before this time (ms)         as long as it holds
workers    hash    worker id -> what it says of itself (JSON)           entries: pruned when old
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "slowcall:"

TEMPLATES: Final = {
    "job": PREFIX + "job:{}",
    "input": PREFIX + "input:{}",
    "log": PREFIX + "log:{}",
    "steps": PREFIX + "steps:{}",
    "ledger": PREFIX + "ledger:{}",
    "blob": PREFIX + "blob:{}",
    "idem": PREFIX + "idem:{}",
    "queue": PREFIX + "queue:{}",
    "turns": PREFIX + "turns:{}:{}",
    "heads": PREFIX + "heads:{}",
    "waiting": PREFIX + "waiting",
    "inflight": PREFIX + "inflight:{}",
    "index": PREFIX + "index:{}:{}:{}",
    "expiry": PREFIX + "expiry",
    "rules": PREFIX + "rules",
    "deadline": PREFIX + "deadline",
    "lane": PREFIX + "lane:{}",
    "lanes": PREFIX + "lanes",
    "cooldown": PREFIX + "cooldown",
    "lane_turns": PREFIX + "lane_turns:{}",
    "lane_line": PREFIX + "lane_line:{}",
    "memo": PREFIX + "memo:{}",
    "pace": PREFIX + "pace:{}:{}",
    "busy": PREFIX + "busy:{}",
    "outbox": PREFIX + "outbox:{}",
    "letters": PREFIX + "letters:{}",
    "figures": PREFIX + "figures",
    "feed": PREFIX + "feed:{}",
    "op": PREFIX + "op:{}",
    "beat": PREFIX + "beat",
    "grace": PREFIX + "grace",
    "workers": PREFIX + "workers",
    # channels
    "job_channel": PREFIX + "events:{}",
    "feed_channel": PREFIX + "feeds:{}",
    "wake_channel": PREFIX + "wake",
    "control_channel": PREFIX + "control",
}

OP_KEEP_S: Final = 300
FEED_LENGTH: Final = 10_000

ALL: Final = "*"
"""The scope of all users; a user's own scope is `user_scope(user)`, which never equals it."""


def name(template: str, *parts: str) -> str:
    """The full name of a key or channel of the inventory."""
    return TEMPLATES[template].format(*parts)


def user_scope(user_id: str) -> str:
    """The part of index and feed names that stands for one user."""
    return f"={user_id}"


def idempotency_part(user_id: str, key: str) -> str:
    """User and key, length-prefixed: `a:b` with `c` is never `a` with `b:c` (case D3)."""
    return f"{len(user_id)}:{user_id}:{key}"
