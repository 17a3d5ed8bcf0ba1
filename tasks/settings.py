"""Every setting of slowcall, read once from the environment and checked."""

from __future__ import annotations

import base64
import difflib
import hashlib
import ipaddress
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import platformdirs
from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from tasks.errors import ErrorType, SettingsError
from tasks.redis_url import check_redis_url

PREFIX: Final = "SLOWCALL_"

log = logging.getLogger("slowcall.settings")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many at once across all workers, of any name and of single ones; 0 is no limit."""

    default: int = 0
    single: tuple[tuple[str, int], ...] = ()

    def limit(self, name: str) -> int:
        """How many of this name may run at once; 0: any number."""
        return dict(self.single).get(name, self.default)


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Dead letters with an error of this type are retried after a time, so often."""

    type: str
    after_s: float
    times: int


def _words(value: Any) -> Any:
    """`a,b c` as its words."""
    return tuple(re.findall(r"[^\s,]+", value)) if isinstance(value, str) else value


def _api_keys(value: Any) -> Any:
    """`alice:secret,bob:secret` as pairs; a user may have several keys."""
    if not isinstance(value, str):
        return value
    pairs = [pair.strip().partition(":") for pair in value.split(",") if pair.strip()]
    if not all(user.strip() and key for user, _, key in pairs):
        raise ValueError("write user:key pairs, for example alice:secret,bob:secret")
    if len({key for _, _, key in pairs}) < len(pairs):
        raise ValueError("two entries have the same key; give each one of its own")
    return tuple((user.strip(), key) for user, _, key in pairs)


def _concurrency(value: Any) -> Any:
    """`4`, `name=N,other=M` or both as limits."""
    if isinstance(value, Concurrency):
        return value
    default, single = 0, []
    for word in _words(str(value)):
        name, _, number = word.rpartition("=")
        if not re.fullmatch(r"\d{1,9}", number, re.ASCII):
            raise ValueError("write a number, or model=N,other=M")
        if name:
            single.append((name, int(number)))
        else:
            default = int(number)
    return Concurrency(default, tuple(single))


def _retry_rules(value: Any) -> Any:
    """`transient=600x3,timeout=60x1`: type of error, seconds to wait, how often."""
    if not isinstance(value, str):
        return value
    rules = []
    for word in _words(value):
        match = re.fullmatch(r"(\w+)=(\d{1,9}(?:\.\d+)?)x(\d{1,6})", word, re.ASCII)
        if not match or match[1] not in get_args(ErrorType):
            known = ", ".join(get_args(ErrorType))
            raise ValueError(f"write type=SECONDSxTIMES, for example transient=600x3, of {known}")
        rules.append(RetryRule(match[1], float(match[2]), int(match[3])))
    return tuple(rules)


def key_of_webhook(secret: SecretStr) -> bytes:
    """The key that a Standard Webhooks secret holds. Raises ValueError for another form."""
    prefix, _, encoded = secret.get_secret_value().partition("_")
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if prefix != "whsec" or not 24 <= len(key) <= 64:
        raise ValueError("write whsec_ and 24 to 64 random bytes in base64; two rotate")
    return key


def name_of_target(url: SecretStr) -> str:
    """What an alert's target is called in the store: its URL may hold a secret."""
    return hashlib.sha256(url.get_secret_value().encode()).hexdigest()[:16]


# A thousand million seconds are 32 years: as good as for ever, and Redis can still count to it.
Seconds = Annotated[float, Field(ge=0.001, le=1e9, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]
Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_words)]
ApiKeys = Annotated[tuple[tuple[str, SecretStr], ...], NoDecode, BeforeValidator(_api_keys)]
RetryRules = Annotated[tuple[RetryRule, ...], NoDecode, BeforeValidator(_retry_rules)]
Limits = Annotated[Concurrency, NoDecode, BeforeValidator(_concurrency)]


class Settings(BaseSettings):
    """All settings; `_s` are seconds. Build it with `load_settings`; README explains each."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True
    )

    redis_url: SecretStr | None = Field(None, validation_alias="REDIS_URL")
    ai_url: SecretStr | None = Field(None, validation_alias="AI_URL")
    ai_key: SecretStr | None = Field(None, validation_alias="AI_KEY")
    ai_model: str | None = Field(None, validation_alias="AI_MODEL")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    data_dir: Path = Path(platformdirs.user_data_dir("slowcall", appauthor=False))

    api_keys: ApiKeys = ()
    cors_origins: Words = ()
    quota: int = Field(5, ge=0)
    max_body: Count = 20_971_520
    ping_s: Seconds = 15
    max_streams: int = Field(20_000, ge=0)
    user_streams: int = Field(1_000, ge=0)

    max_attempts: int = Field(3, ge=1, le=100)
    backoff_s: SecondsOrNone = 5
    backoff_max_s: SecondsOrNone = 300
    jitter: float = Field(0.1, ge=0, le=1)
    on_unknown: Literal["retry", "park"] = "retry"
    max_wait_s: Seconds = 3600
    auto_retry: RetryRules = ()
    keep_s: Seconds = 86400

    concurrency: Count = 100
    model_concurrency: Limits = Concurrency()
    kind_concurrency: Limits = Concurrency()
    lease_s: Seconds = 10
    drain_s: SecondsOrNone = 30
    kinds: Words = ()

    read_timeout_s: Seconds = 60
    read_memory: int = Field(1_073_741_824, ge=134_217_728)
    read_pages: Count = 2_000
    plan_timeout_s: Seconds = 120
    execute_timeout_s: Seconds = 600

    timeout_s: Seconds = 600
    idle_timeout_s: Seconds = 60
    first_byte_s: Seconds | None = None
    connect_timeout_s: Seconds = 10
    max_line: Count = 8_388_608
    max_event: Count = 16_777_216
    max_answer: Count = 33_554_432

    alert_urls: Secrets = ()
    alert_window_s: SecondsOrNone = 5
    public_url: str = "http://127.0.0.1:8000"
    webhook_secret: Secrets = ()
    webhook_private: bool = False

    url: str | None = None
    key: SecretStr | None = None

    lab_delay_s: SecondsOrNone = 0.5
    lab_tokens_per_s: float = Field(50, ge=0, allow_inf_nan=False)
    lab_honours_keys: bool = True

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, value: SecretStr | None) -> SecretStr | None:
        return value and SecretStr(check_redis_url(value.get_secret_value()))

    @field_validator("data_dir")
    @classmethod
    def _whole_path(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("webhook_secret")
    @classmethod
    def _check_webhook_secret(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for secret in value:
            key_of_webhook(secret)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [item for item in value if not re.fullmatch(r"https?://[^/\s@]+", item)]:
            raise ValueError(f"{wrong[0]} is no origin; write, for example, https://example.org")
        return value

    @model_validator(mode="after")
    def _no_open_door(self) -> Settings:
        if not self.api_keys and not is_loopback(self.host):
            raise ValueError(
                f"{PREFIX}HOST: {self.host} can be reached by others, which takes keys; set "
                f"{PREFIX}API_KEYS=alice:secret,bob:secret, or keep 127.0.0.1"
            )
        return self


def load_settings(*, warn: bool = True) -> Settings:
    """Read the settings from the environment; `warn` of names that look misspelt.

    Raises SettingsError with one readable line that names the setting and prints no secret.
    """
    for line in misspelt(os.environ) if warn else []:
        log.warning(line)
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError(_line(error)) from None


def misspelt(names: Iterable[str]) -> list[str]:
    """A line for each name of the environment that is close to a setting but is none."""
    known = variables()
    ours = {name.removeprefix(PREFIX): name for name in known if name.startswith(PREFIX)}
    others = {name: name for name in known if not name.startswith(PREFIX)}
    lines = []
    for name in sorted(set(names)):
        if name.upper() in known:
            continue
        if name.upper().startswith(PREFIX):
            near = difflib.get_close_matches(name.upper().removeprefix(PREFIX), ours, 1)
            hint = f"; did you mean {ours[near[0]]}?" if near else ""
            lines.append(f"{name} is not a setting{hint}")
        elif near := difflib.get_close_matches(name.upper(), others, 1, 0.85):
            lines.append(f"{name} is not a setting; did you mean {near[0]}?")
    return lines


def variables() -> Mapping[str, str]:
    """The settings: name in the environment -> field of `Settings`."""
    return {
        str(field.validation_alias or PREFIX + name.upper()): name
        for name, field in Settings.model_fields.items()
    }


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _line(error: ValidationError) -> str:
    """The first fault as one line; pydantic's own messages do not repeat the value."""
    first = error.errors(include_input=False, include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    fields = {field: name for name, field in variables().items()}
    where = str(first["loc"][0]) if first["loc"] else ""
    return f"{fields.get(where, where)}: {message}" if where else message
