"""What an error of Redis means: no use of the store now, or a record that is not ours."""

from __future__ import annotations

import re
from typing import Final

from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from tasks.errors import RecordDamaged, StoreUnavailable

FAILED: Final = (ConnectionError, TimeoutError, ResponseError)
"""What redis-py raises when a command has no reply, or an error for one."""

_CODE: Final = re.compile(r"(?!WRONGTYPE)[A-Z]{3,} ")


def meaning_of(error: Exception) -> StoreUnavailable | RecordDamaged:
    """A damaged record where a command met a value of another type, no number, no JSON.

    All else may be otherwise later: nobody answers, or Redis refuses for reasons of its own (no
    memory, no disk, too few replicas, no primary, no right). Those begin with a code, or have a
    class in redis-py.
    """
    if type(error) is ResponseError and not _CODE.match(str(error)):
        return RecordDamaged()
    return StoreUnavailable(f"Redis is of no use now: {error}")
