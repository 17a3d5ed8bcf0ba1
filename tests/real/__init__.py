"""The model client against model servers of other makers: `make test-real` (minutes to set up)."""
