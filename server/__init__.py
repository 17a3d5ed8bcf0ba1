"""The wing that faces people: commands, routes, streams, the embedded store, the lab model."""
