"""The queues that slowcall is measured beside, each a module with `submit` and `work`."""
