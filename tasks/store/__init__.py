"""The store: the only room that reads or writes job data in Redis, one method a transition."""

from tasks.store.records import (
    Begun,
    Claimed,
    FeedEntry,
    JobView,
    Letter,
    LogEntry,
    Moved,
    NewJob,
    NoPlace,
    Origin,
    Progress,
    Run,
    Settlement,
    StoredStep,
    Submitted,
)
from tasks.store.store import Store

__all__ = [
    "Begun",
    "Claimed",
    "FeedEntry",
    "JobView",
    "Letter",
    "LogEntry",
    "Moved",
    "NewJob",
    "NoPlace",
    "Origin",
    "Progress",
    "Run",
    "Settlement",
    "Store",
    "StoredStep",
    "Submitted",
]
