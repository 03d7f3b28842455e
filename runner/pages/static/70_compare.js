function comparisonsOf() { return []; }
