"""The inventory of keys: no two names meet, and every name is in it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tasks import keys
from tasks.keys import ALL, PREFIX, TEMPLATES, idempotency_part, name, user_scope

texts = st.text("ab:1{}*=é", min_size=1, max_size=6)


@given(texts, texts, texts, texts)
def test_users_and_keys_never_meet(user: str, key: str, other: str, another: str) -> None:
    """`a:b` with `c` is not `a` with `b:c` (case D3)."""
    same = (user, key) == (other, another)
    assert (idempotency_part(user, key) == idempotency_part(other, another)) == same


def test_a_separator_is_no_way_into_another_s_keys() -> None:
    assert idempotency_part("a:b", "c") != idempotency_part("a", "b:c")


@given(texts)
def test_no_user_is_all_users(user: str) -> None:
    assert user_scope(user) != ALL


def test_no_template_begins_like_another() -> None:
    """So that what fills one never reaches into another."""
    starts = sorted(text.partition("{}")[0] for text in TEMPLATES.values())
    holes = [start for start in starts if start.endswith(":")]
    for start in holes:
        assert [other for other in starts if other.startswith(start)] == [start]


def test_every_template_is_described() -> None:
    described = set(
        re.findall(r"^(\w+) +(?:hash|stream|string|zset|set|list) ", keys.__doc__ or "", re.M)
    )
    channels = {template for template in TEMPLATES if template.endswith("_channel")}
    assert described == TEMPLATES.keys() - channels


def test_all_lie_under_one_prefix() -> None:
    assert all(text.startswith(PREFIX) for text in TEMPLATES.values())


def test_a_name_takes_whatever_a_user_is_called() -> None:
    assert name("inflight", "{}:*\n") == f"{PREFIX}inflight:{{}}:*\n"
