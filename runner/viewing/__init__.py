"""A page that follows runs while they play, served to this machine alone."""
