"""The part that runs once per node inside the job: the node agent, its child processes, its clocks."""
