"""Write a spec's game as a package for `verifiers`."""
