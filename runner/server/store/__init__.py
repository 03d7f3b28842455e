"""The storage of a server: its database and its blobs."""
