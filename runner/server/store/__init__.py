"""Where a server keeps things: its database and its blobs."""
