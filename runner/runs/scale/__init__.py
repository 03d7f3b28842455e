"""How long a run takes and what bounds it: a model, and the measurements that it is given."""
