"""The wing that does the work: the lifecycle, the store, the model client, the worker."""
