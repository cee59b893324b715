"""Which method helps a federation, and by how much: ``fedquorum study``.

``settings`` says what is asked, ``methods`` and ``contenders`` what is compared, ``tuning`` and
``decision`` are the statistics, ``jobs`` and ``running`` run it within its budget, ``answer`` and
``answering`` are the outcome.
"""
