"""The command fedquorum."""
