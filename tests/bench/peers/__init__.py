"""The queues that slowcall is measured beside, each a module with `submit` and `work`."""

from typing import Final

DONE: Final = "bench:done"
"""The key under which a worker tells what all jobs took, once the last one is done."""
ANSWERED: Final = "bench:answered"
"""The key under which a submitter tells when each job was sent and answered (s of the epoch)."""
BEGUN: Final = "bench:begun"
"""Where it is the only job: the list of who began it (process id) and when (s of the epoch)."""
