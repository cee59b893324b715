"""What a run leaves behind, written while it goes on, and read back.

The directory of a run holds

``config.yaml``         all settings, resolved
``manifest.json``       versions, commit, engine, device, seed, start, end, status
``population.parquet``  one row per client: what the server knows of it, and p_n of a simulation
``rounds.jsonl``        one line a round, flushed
``clients/``            Parquet, one row per client asked and round: the audit trail
``evaluations/``        Parquet, one row per client evaluated and round
``model.safetensors``   the last model
``checkpoints/``        all that a run needs to go on, after some rounds
``tensorboard/``        event files, where the writer was handed an observer that writes them

An interrupted or failed run keeps all of these up to its last complete round. A resumed run
continues them from its checkpoint.

Modules, from the bottom up: ``files`` (whole or not there), ``interruption``, ``provenance``,
``fairness``; ``settings`` (YAML, flat, of older versions); ``round_record`` and ``tables`` (one
line, one row); ``regret`` and ``summary`` (the whole run); ``checkpoint`` and ``directory``;
``observer``; ``writer`` (``RunRecords``) and ``reader`` (``Run``, ``load_run``).

They know neither how a run is configured nor what trains it: settings are a mapping, the identity
of a run is a ``RunIdentity``, and whoever else is told of its rounds is an ``Observer``.
"""
