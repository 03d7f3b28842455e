"""Load spec files and overrides into a frozen `Spec`, or report all errors with their places."""
