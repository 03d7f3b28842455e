"""Whether a judge measures consistently: variance components of its scores, and tests of what changes them."""
