"""Read the arrays of a data set, with a module for each kind of source."""
