"""Run clients in separate processes on the cores, GPUs and machines of Ray, for ``engine=ray``.

``cluster``      joins the cluster or starts Ray, and divides it among the workers
``worker``       hosts nodes in a worker, with the code of the engine in process
``worker_pool``  starts the workers, compares their code, and restarts those that die
``grid``         the Grid: sends messages to the workers, and returns their replies
``engine``       starts all of these for one run
``launcher``     runs the jobs of a sweep as tasks of a cluster, for ``hydra/launcher=ray``

Only these modules import Ray, which no other engine needs.
"""
