"""Write the records of a run while it is running, and read them back.

The folder of a run holds

``config.yaml``         all settings, resolved
``manifest.json``       versions, commit, engine, device, seed, start, end, status
``population.parquet``  one row per client: the server's facts about it, and p_n of a simulation
``rounds.jsonl``        one line a round, flushed
``clients/``            Parquet, one row per client selected and round: the audit trail
``evaluations/``        Parquet, one row per client evaluated and round
``model.safetensors``   the last model
``model_card.json``     what the model is: architecture, inputs, target, metrics, settings
``mean_model.safetensors``  with FedAWE, the mean of the models from which clients start next
``checkpoints/``        the state that resumes a run after a round
``tensorboard/``        event files, if one of the writer's callbacks writes them

An interrupted or failed run keeps all of these up to its last complete round. A resumed run
continues them from its checkpoint.

``writer`` has ``RunWriter``, ``reader`` has ``Run`` and ``load_run``; ``round_record`` and
``tables`` define a line and a row.

The modules do not depend on the configuration or on the training: settings are a mapping, the
identity of a run is a ``RunInfo``. A ``Runner`` runs the rounds, and each ``RunCallback`` follows
them.
"""
