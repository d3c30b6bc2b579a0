"""Checks the registers, the stack and the spills of the kernels, as ptxas reports them.

usage: budgets.py RESOURCES ARCHITECTURE...

RESOURCES is the output of nvcc --resource-usage for the GPU architectures (for example 90 for sm_90). A thread of a kernel can have 128
registers, because a block has up to 512 threads (kernels/device/entry.cu). What does not fit is spilled to local
memory. That is far slower, and it also grows the local memory of the context at the first launch, for which the driver
may wait until the GPU is idle.
"""

import re
import sys

REGISTERS = 128

# For each kernel: the most bytes of stack of a thread, of spills (stores) in the kernel itself, and of spills in any one
# of the functions that it calls, most of which are for one element type.
#
# The kernels for short messages have few spills. tutti_evaluate_simple runs long messages, with a loop for each element
# type. Its limits are those that nvcc 13.0 needs for sm_120, or a little more. The aim is 1,024 bytes of stack.
BUDGETS = {
    "tutti_evaluate_ll": (1024, 64, 400),
    "tutti_evaluate_ll128": (1024, 64, 200),
    "tutti_evaluate_simple": (1344, 3072, 960),
    "tutti_transfer": (1024, 0, 0),
    "tutti_reduce": (1024, 0, 0),
    "tutti_copy": (0, 0, 0),
    "tutti_empty": (0, 0, 0),
}


def kernels_in(text):
    """Yields (architecture, kernel, registers, (stack, spills, most spills of a function)) for each kernel."""
    for section in text.split("Compiling entry function ")[1:]:
        kernel, architecture = re.match(r"'(\w+)' for 'sm_(\d+)'\n", section).groups()
        functions = dict(
            (name, (int(frame), int(spills)))
            for name, frame, spills in re.findall(
                r"Function properties for (\w+)\n\s*(\d+) bytes stack frame, (\d+) bytes spill stores", section
            )
        )
        frame, spills = functions.pop(kernel)
        registers, stack = re.search(r"Used (\d+) registers(?:.*?(\d+) bytes cumulative stack size)?", section).groups()
        most = max((function[1] for function in functions.values()), default=0)
        yield architecture, kernel, int(registers), (int(stack or frame), spills, most)


def main():
    path, *architectures = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        kernels = list(kernels_in(file.read()))
    faults = []
    for architecture in architectures:
        missing = BUDGETS.keys() - {kernel[1] for kernel in kernels if kernel[0] == architecture}
        faults += [f"nothing is known of {kernel} for sm_{architecture}" for kernel in sorted(missing)]
    for architecture, kernel, registers, used in kernels:
        print(f"sm_{architecture} {kernel}: {registers} registers; bytes of stack, spills, spills of a function: {used}")
        most = BUDGETS.get(kernel, (0, 0, 0))
        if registers > REGISTERS or any(bytes > limit for bytes, limit in zip(used, most)):
            faults.append(f"sm_{architecture} {kernel} may have {REGISTERS} registers and {most}")
    for fault in faults:
        print(f"budgets: {fault}", file=sys.stderr)
    return 1 if faults or not architectures else 0


if __name__ == "__main__":
    sys.exit(main())
