"""Adds up one array over all ranks:  tutti run -n 4 -- python all_reduce.py"""

import numpy
import tutti

comm = tutti.Communicator()  # rank, size and address come from the launcher: tutti run, torchrun, mpirun or srun
x = numpy.full(1000, comm.rank + 1.0)
comm.all_reduce(x)
print(f"rank {comm.rank} of {comm.size}: {x[0]} ... {x[-1]}")
comm.finalize()
