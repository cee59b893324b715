"""What a run leaves behind, written while it goes on.

``config.yaml``         all settings, resolved
``manifest.json``       versions, commit, engine, device, seed, start, end, status
``population.parquet``  one row per client: what the server knows of it, and p_n of a simulation
``rounds.jsonl``        one line a round, flushed
``clients/``            Parquet, one row per client asked and round: the audit trail
``evaluations/``        Parquet, one row per client evaluated and round
``model.safetensors``   the last model
``tensorboard/``        event files

An interrupted or failed run keeps all of these up to its last complete round. One that goes on
(``resume``) continues them where its checkpoint was.
"""
