"""nginx with nchan: what event streams cost in C, where both are installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bench.parts import Place, free_port, running, until
from tests.bench.web import Web, listens

MODULES: Final = (
    Path("/usr/lib/nginx/modules/ngx_nchan_module.so"),
    Path("/usr/lib64/nginx/modules/ngx_nchan_module.so"),
)
_CONFIG: Final = """
load_module {module};
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_rlimit_nofile 40000;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  nchan_shared_memory_size 256M;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /tell {{ nchan_publisher; nchan_channel_id bench; }}
    location = /watch {{
      nchan_subscriber eventsource;
      nchan_channel_id bench;
      nchan_subscriber_first_message newest;
    }}
  }}
}}
"""


def module() -> Path | None:
    """The module, where nginx and it are installed."""
    found = [path for path in MODULES if path.exists()]
    return found[0] if found and shutil.which("nginx") else None


@contextmanager
def nchan(here: Place) -> Iterator[Web]:
    """One nginx process on a free port."""
    port, config = free_port(), here.folder / "nginx.conf"
    config.write_text(_CONFIG.format(module=module(), folder=here.folder, port=port))
    nginx = shutil.which("nginx") or "nginx"
    with running(nginx, "-c", str(config), "-p", str(here.folder)) as process:
        until(lambda: listens(port) or process.poll() is not None, "nginx listens")
        yield Web(port, process.pid)
