"""A sandbox for Python programs that nobody has read, and the attacks that it has to hold before it is used."""
