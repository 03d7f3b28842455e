"""A sandbox for untrusted Python programs, and the attacks that it must block before it is used."""
