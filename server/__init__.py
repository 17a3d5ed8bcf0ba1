"""The wing that faces people: commands, routes, streams, the embedded store, the lab model."""

import sys
from importlib.util import find_spec
from pathlib import Path

_tasks = find_spec("tasks")
_found = Path(_tasks.origin).resolve() if _tasks and _tasks.origin else None

# A user's own tasks.py further ahead on the path would be imported instead of our wing, and the
# failure would name neither. Whatever starts us passes here first: the commands and uvicorn alike.
if _found is None or _found.parent.parent != Path(__file__).resolve().parent.parent:
    sys.exit(
        f"slowcall: {_found or 'nothing'} stands in the way of slowcall's own package 'tasks': "
        "rename it, or start slowcall from another folder"
    )
