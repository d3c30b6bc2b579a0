# deny_call.py CALL ERRNO PROGRAM ARGS...: runs a program in which the system call CALL fails with ERRNO, as in a
# sandbox. A seccomp filter in the kernel refuses the call, so the program and its children behave as in a container.
import ctypes
import errno
import os
import platform
import struct
import sys

NUMBERS = {"x86_64": {"memfd_create": 319}, "aarch64": {"memfd_create": 279}}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_CALL_NUMBER = struct.pack("HBBI", 0x20, 0, 0, 0)
ALLOW = struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000)


def main():
    number = NUMBERS[platform.machine()][sys.argv[1]]
    refused = getattr(errno, sys.argv[2])
    skip_one_unless_equal = struct.pack("HBBI", 0x15, 0, 1, number)
    refuse = struct.pack("HBBI", 0x06, 0, 0, 0x50000 | refused)
    code = LOAD_CALL_NUMBER + skip_one_unless_equal + refuse + ALLOW
    program = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(program))
    library = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if library.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        sys.exit(f"no_new_privs: {os.strerror(ctypes.get_errno())}")
    if library.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(header)) != 0:
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[3], sys.argv[3:])


main()
