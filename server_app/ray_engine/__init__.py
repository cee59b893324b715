"""``engine=ray``: clients in processes of their own, on the cores, GPUs and machines of Ray.

``cluster``  joins the cluster or starts Ray, and divides it among the workers
``worker``   what runs in a worker: nodes by the code of the engine in process
``fleet``    starts the workers, compares their code, and starts again those that die
``grid``     the Grid: messages to the workers, replies as they come
``engine``   all of it for one run
``jobs``     the jobs of a sweep as tasks of a cluster, for ``hydra/launcher=ray``

Only these modules import Ray: no other engine needs it.
"""
