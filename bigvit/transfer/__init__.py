"""One model tuned on many data sets, and a table of what came of it."""
