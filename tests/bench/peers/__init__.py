"""The queues that slowcall is measured beside, each a module with `submit` and `work`."""

from typing import Final

DONE: Final = "bench:done"
"""The key under which a worker tells what all jobs took, once the last one is done."""
