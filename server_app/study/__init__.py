"""Find the method that helps a federation, and by how much: ``fedquorum study``.

``settings`` declares a study, ``methods`` and ``candidates`` choose what it compares, ``tuning``
and ``paired_statistics`` are its statistics, ``jobs`` and ``run`` execute it within its budget,
``analysis`` and ``result`` are its outcome.
"""
