"""Programs that aorta trains: ranking model and DCRNN (one trainer), DDP benchmark, SDMA prototype.

Nothing else of aorta needs them: `aorta.instrument` measures any program, these among them.
"""
