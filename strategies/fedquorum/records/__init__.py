"""What a run leaves behind, written while it goes on, and read back.

The directory of a run holds

``config.yaml``         all settings, resolved
``manifest.json``       versions, commit, engine, device, seed, start, end, status
``population.parquet``  one row per client: what the server knows of it, and p_n of a simulation
``rounds.jsonl``        one line a round, flushed
``clients/``            Parquet, one row per client asked and round: the audit trail
``evaluations/``        Parquet, one row per client evaluated and round
``model.safetensors``   the last model
``mean_model.safetensors``  with FedAWE, the mean of the models from which clients start next
``checkpoints/``        all that a run needs to go on, after some rounds
``tensorboard/``        event files, where the writer was handed an observer that writes them

An interrupted or failed run keeps all of these up to its last complete round. A resumed run
continues them from its checkpoint.

``writer`` has ``RunRecords``, ``reader`` has ``Run`` and ``load_run``; ``round_record`` and
``tables`` say what a line and a row are.

The modules know neither how a run is configured nor what trains it: settings are a mapping, the
identity of a run is a ``RunIdentity``, and whoever else is told of its rounds is an ``Observer``.
"""
