"""The page in a real browser, against the real server, with its jobs moved by hand."""
