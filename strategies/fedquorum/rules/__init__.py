"""The rules: pure functions of NumPy arrays."""
