"""Where the arrays of a data set come from, one module per kind of source."""
