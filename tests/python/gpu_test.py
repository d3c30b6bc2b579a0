"""Tests of arrays on GPUs with __cuda_array_interface__, and with the fake CUDA driver (tests/device/fake_driver)."""

import os
import pathlib

import pytest
from conftest import TOOL, run_python

FAKE_DRIVER = pathlib.Path(TOOL).parents[1] / "fake_driver"

PROGRAM = """
import ctypes
import numpy, tutti

driver = ctypes.CDLL("libcuda.so.1")

def call(name, *arguments):
    # Asks the driver for the address of each function, as the CUDA runtime does.
    function, found = ctypes.c_void_p(), ctypes.c_int()
    assert driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), 12000, 0, ctypes.byref(found)) == 0, name
    status = ctypes.CFUNCTYPE(ctypes.c_int, *[type(argument) for argument in arguments])(function.value)(*arguments)
    assert status == 0, (name, status)

def reference(value):
    return ctypes.cast(ctypes.byref(value), ctypes.c_void_p)

context = ctypes.c_void_p()
call("cuInit", ctypes.c_uint(0))
call("cuDevicePrimaryCtxRetain", reference(context), ctypes.c_int(0))
call("cuCtxSetCurrent", context)

class OnGpu:
    # Has the interface of CuPy's and Numba's arrays. Copies the values from and to NumPy arrays.
    def __init__(self, values, stream=None):
        self.values = numpy.ascontiguousarray(values)
        self.address = ctypes.c_uint64()
        call("cuMemAlloc", reference(self.address), ctypes.c_size_t(self.values.nbytes))
        self.copy("cuMemcpyHtoDAsync", self.address, ctypes.c_void_p(self.values.ctypes.data))
        self.__cuda_array_interface__ = {
            "shape": self.values.shape, "typestr": self.values.dtype.str, "data": (self.address.value, False),
            "strides": None, "version": 3, "stream": stream}

    def copy(self, name, to, source):
        call("cuCtxSynchronize")
        call(name, to, source, ctypes.c_size_t(self.values.nbytes), ctypes.c_void_p())
        call("cuCtxSynchronize")

    def get(self):
        self.copy("cuMemcpyDtoHAsync", ctypes.c_void_p(self.values.ctypes.data), self.address)
        return self.values

comm = tutti.Communicator(device=0)
x = OnGpu(numpy.full((3, 5), comm.rank + 1.0))
assert comm.all_reduce(x) is x
assert (x.get() == 3).all(), x.get()

stream = ctypes.c_void_p()
call("cuStreamCreate", reference(stream), ctypes.c_uint(1))
y = OnGpu(numpy.arange(4, dtype="int32") * (comm.rank + 1), stream.value)
out = OnGpu(numpy.zeros(8, "int32"), stream.value)
comm.all_gather(y, out)
assert out.get().tolist() == [0, 1, 2, 3, 0, 2, 4, 6], out.get()
assert comm.all_reduce(y, blocking=False, stream=stream.value).wait() is y
assert y.get().tolist() == [0, 3, 6, 9]

try:
    comm.all_reduce(y, numpy.zeros(4, "int32"))
except tutti.InvalidArgumentError as error:
    assert "in GPU 0 and the output in host memory" in str(error), error
comm.async_status()
assert comm.all_reduce(numpy.ones(2))[0] == 2  # host memory, on the same communicator
comm.finalize()
print("all right", flush=True)
"""


@pytest.mark.skipif(not FAKE_DRIVER.is_dir(), reason="there is no fake CUDA driver: scripts/build dev builds it")
@pytest.mark.parametrize("calls", ["auto", "staged"])
def test_arrays_on_gpus(script, calls):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(FAKE_DRIVER), "TUTTI_DEVICE_CALLS": calls}
    done = run_python([script(PROGRAM)], ranks=2, env=environment)
    assert done.returncode == 0 and done.stdout.count("all right") == 2, done.stdout + done.stderr
