"""Decide how much work to divide among the cores.

Threads that meet after every small product cost more than they save, many times more where other
processes want the cores too.
"""

SHARED_FLOPS = 10**7
"""Operations between two meetings of the threads from which on they share the work."""
