"""Who is calling: keys, the page's session, signed links, and what each of them may see."""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tasks.errors import Forbidden, JobNotFound, Unauthorized
from tasks.store.records import JobView

ADMIN: Final = "admin"
LOCAL: Final = "local"
"""Who owns a job where no keys are set and the body names nobody."""
SESSION_S: Final = 7 * 86400
SHARE_S: Final = 7 * 86400


class Keyring:
    """The keys of all users, hashed. Empty: no keys are set, and everybody on loopback is trusted.

    A user's signing secret is made from the user's keys: every server that has the same keys
    takes the same sessions and links, and a key that is taken away ends those that it allowed.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._salt = secrets.token_bytes(32)
        self._keys: list[tuple[str, bytes]] = []
        self._secrets: dict[str, bytes] = {}
        for name, key in pairs:
            self._keys.append((name, self._digest(key)))
            before = self._secrets.get(name, b"slowcall signing v1")
            self._secrets[name] = hmac.digest(key.encode(), before, "sha256")

    def __bool__(self) -> bool:
        return bool(self._keys)

    def user_of(self, key: str) -> str:
        """Whose key this is, found in a time that tells nothing. Raises Unauthorized."""
        digest, found = self._digest(key), None
        for name, known in self._keys:
            if hmac.compare_digest(digest, known):
                found = name
        if found is None:
            raise Unauthorized("This key is not known.")
        return found

    def sign(self, user_id: str, purpose: str, expires_at: int) -> str:
        """A signature of the user's over a purpose and its end (Unix seconds)."""
        secret = self._secrets.get(user_id, b"no keys are set: nothing to protect")
        text = f"{purpose}\n{expires_at}".encode()
        return _base64(hmac.digest(secret, text, "sha256"))

    def verify(self, user_id: str, purpose: str, expires_at: int, signature: str) -> None:
        """Raises Unauthorized where the signature is not this user's, or its time is over."""
        known = not self or user_id in self._secrets
        right = hmac.compare_digest(
            self.sign(user_id, purpose, expires_at).encode(), signature.encode()
        )
        if not (known and right):
            raise Unauthorized("This signature is not valid.")
        if expires_at <= time.time():
            raise Unauthorized("This has expired.")

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._salt, key.encode(), "sha256")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. Without a name no keys are set; whoever `sees_all` sees every user's jobs."""

    name: str | None = None
    sees_all: bool = True

    @classmethod
    def named(cls, name: str) -> Caller:
        """The user of a key; `admin` sees all."""
        return cls(name, sees_all=name == ADMIN)

    def owner(self, asked: str | None) -> str:
        """Who will own a new job. Raises Forbidden for another's `user_id`."""
        if self.name is None:
            return asked or LOCAL
        if asked not in (None, self.name):
            raise Forbidden("`user_id` is another user's: leave it out, the key says who you are.")
        return self.name

    def scope(self, asked: str | None) -> str | None:
        """Whose jobs are listed; None is everybody's. Raises Forbidden for another's."""
        if self.sees_all or asked == self.name:
            return asked
        if asked is not None:
            raise Forbidden("`user_id` is another user's: leave it out, the key says who you are.")
        return self.name

    def check(self, job: JobView) -> None:
        """Raises JobNotFound where the job is another's: not even that it exists is told."""
        if not self.sees_all and job.user_id != self.name:
            raise JobNotFound("There is no such job.")


@dataclass(frozen=True, slots=True)
class Guest(Caller):
    """Whoever holds the signed link of one job: may read that job until the link expires."""

    sees_all: bool = False
    token: str = field(default="", repr=False)
    keyring: Keyring = field(default_factory=Keyring, repr=False)

    def owner(self, asked: str | None) -> str:
        """Raises Forbidden: a link is for reading."""
        raise Forbidden("A link is for reading its job only.")

    def scope(self, asked: str | None) -> str | None:
        """Raises Forbidden: a link is for one job."""
        raise Forbidden("A link is for reading its job only.")

    def check(self, job: JobView) -> None:
        """Raises Unauthorized where the link is not this job's or its time is over."""
        expires_at, _, signature = self.token.partition(".")
        if not (expires_at.isascii() and expires_at.isdigit() and len(expires_at) < 12):
            raise Unauthorized("This link is not valid.")
        self.keyring.verify(job.user_id, share_purpose(job.job_id), int(expires_at), signature)


def share_purpose(job_id: str) -> str:
    """What the signature of a job's link stands for."""
    return f"share {job_id}"


def share_token(keyring: Keyring, job: JobView, expires_at: int) -> str:
    """The token of a link that lets its holder read this one job until `expires_at`."""
    return f"{expires_at}.{keyring.sign(job.user_id, share_purpose(job.job_id), expires_at)}"


def session_token(keyring: Keyring, user_id: str, expires_at: int) -> str:
    """What the page's cookie holds: who, until when, signed. It is checked without being stored,
    so it ends by its time or with the user's key, and the cookie by `DELETE /session`."""
    name = _base64(user_id.encode())
    return f"{name}.{expires_at}.{keyring.sign(user_id, 'session', expires_at)}"


def session_user(keyring: Keyring, token: str) -> str:
    """Whose session this is. Raises Unauthorized."""
    try:
        name, expires_at, signature = token.split(".")
        user_id = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        keyring.verify(user_id, "session", int(expires_at), signature)
    except ValueError:
        raise Unauthorized("This session is not valid.") from None
    return user_id
