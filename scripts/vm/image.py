"""Creates the kernel and the initial file system that scripts/rdma-vm boots, from the distribution's packages.

  image.py kernel UNPACKED VERSION OUT        writes OUT/vmlinuz and some of the modules, uncompressed, to
                                              OUT/lib/modules/VERSION
  image.py initrd MODULES BUSYBOX INIT OUT    writes the initial file system, with the modules to mount the host's root
  image.py tsc                                prints the rate of this machine's time-stamp counter in kHz

Uses only the standard library. Modules that are compressed by zstd (Ubuntu) need the zstd program.
"""

import ctypes
import gzip
import lzma
import mmap
import os
import shutil
import stat
import struct
import subprocess
import sys
import time

# The modules that a guest may need; the others are drivers.
KEPT = ("arch/", "crypto/", "lib/", "net/", "fs/9p", "fs/overlayfs", "fs/netfs", "fs/fscache", "kernel/",
        "drivers/infiniband", "drivers/virtio", "drivers/net/virtio_net", "drivers/net/veth", "drivers/net/dummy",
        "drivers/net/net_failover", "drivers/block/virtio", "drivers/char/virtio", "drivers/net/ifb",
        "drivers/net/bonding")
# In emulation this instruction is slower than the table of crc32_generic, so the bandwidth would be a third lower.
LEFT_OUT = ("crc32-pclmul",)
FIRST_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


def plain_kernel(image):
    """The ELF image inside a bzImage, so that the guest does not need seconds to unpack it. If the image cannot be
    unpacked here, the bzImage itself."""
    offset, length = struct.unpack_from("<II", image, 0x248)  # payload_offset, payload_length: boot protocol 2.08
    payload = image[(image[0x1F1] + 1) * 512 + offset:][:length]
    plain = b""
    try:
        if payload[:6] == b"\xfd7zXZ\0":
            plain = lzma.LZMADecompressor().decompress(payload)
        elif payload[:4] == b"\x28\xb5\x2f\xfd" and shutil.which("zstd"):  # four bytes of length follow the frame
            plain = subprocess.run(["zstd", "-dcq"], input=payload[:-4], stdout=subprocess.PIPE, check=True).stdout
    except (lzma.LZMAError, subprocess.CalledProcessError):
        plain = b""
    return plain if plain[:4] == b"\x7fELF" else image


def unpacked(path):
    """The uncompressed content of a module file, and its path without the suffix of the compression."""
    with open(path, "rb") as file:
        content = file.read()
    if path.endswith(".xz"):
        return lzma.decompress(content), path[:-3]
    if path.endswith(".gz"):
        return gzip.decompress(content), path[:-3]
    if path.endswith(".zst"):
        if not shutil.which("zstd"):
            sys.exit("rdma-vm: the modules are compressed by zstd: install the package zstd")
        return subprocess.run(["zstd", "-dcq"], input=content, stdout=subprocess.PIPE, check=True).stdout, path[:-4]
    return content, path


def make_kernel(folder, version, out):
    modules = os.path.join(folder, "lib/modules", version)
    target = os.path.join(out, "lib/modules", version)
    os.makedirs(target)
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        if os.path.exists(os.path.join(modules, name)):
            shutil.copy(os.path.join(modules, name), target)
    top = os.path.join(modules, "kernel")
    for where, _, names in os.walk(top):
        for name in names:
            path = os.path.join(where, name)
            inside = os.path.relpath(path, top)
            if not inside.startswith(KEPT) or name.split(".")[0] in LEFT_OUT or ".ko" not in name:
                continue
            content, plain_name = unpacked(path)
            place = os.path.join(target, "kernel", os.path.relpath(plain_name, top))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                file.write(content)
    with open(os.path.join(folder, "boot/vmlinuz-" + version), "rb") as file:
        image = plain_kernel(file.read())
    with open(os.path.join(out, "vmlinuz"), "wb") as file:
        file.write(image)


def module_name(path):
    return os.path.basename(path).split(".ko")[0].replace("-", "_")


def ordered_modules(folder):
    """The paths of FIRST_MODULES and their dependencies, without built-in ones. Each is after its dependencies, which
    are read from depmod's list."""
    needs = {}
    with open(os.path.join(folder, "modules.dep"), encoding="utf-8") as file:
        for line in file:
            path, _, others = line.partition(":")
            needs[module_name(path)] = (path, [module_name(other) for other in others.split()])
    with open(os.path.join(folder, "modules.builtin"), encoding="utf-8") as file:
        built_in = {module_name(line.strip()) for line in file}
    order = []

    def visit(name):
        if name in built_in or name not in needs:
            if name not in built_in:
                sys.exit(f"rdma-vm: this kernel has no module {name}: another one may (--kernel)")
            return
        path, others = needs[name]
        for other in others:
            visit(other)
        if path not in order:
            order.append(path)

    for name in FIRST_MODULES:
        visit(name)
    return [os.path.join(folder, path) for path in order]


class Archive:
    """A cpio archive in the format that the kernel unpacks ("newc")."""

    def __init__(self):
        self.content = bytearray()
        self.entries = 0

    def add(self, name, mode, content=b""):
        self.entries += 1
        encoded = name.encode() + b"\0"
        fields = (self.entries, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        self.content += b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self.pad()
        self.content += content
        self.pad()

    def pad(self):
        self.content += b"\0" * (-len(self.content) % 4)

    def finish(self):
        self.add("TRAILER!!!", 0)
        return bytes(self.content)


def needs_a_loader(path):
    """Whether a 64-bit ELF program is linked dynamically, which means that it has a header PT_INTERP."""
    with open(path, "rb") as file:
        content = file.read()
    first, size, count = struct.unpack_from("<Q", content, 32) + struct.unpack_from("<HH", content, 54)
    return any(struct.unpack_from("<I", content, first + i * size)[0] == 3 for i in range(count))


def make_initrd(folder, busybox, init, out):
    if needs_a_loader(busybox):
        sys.exit(f"rdma-vm: {busybox} is not linked statically: install the package busybox-static")
    archive = Archive()
    for name in ("bin", "m", "host", "over", "dev", "proc", "sys"):
        archive.add(name, stat.S_IFDIR | 0o755)
    paths = ordered_modules(folder)
    files = [(busybox, "bin/busybox", 0o755), (init, "init", 0o755)]
    files += [(path, "m/" + os.path.basename(path), 0o644) for path in paths]
    for source, name, mode in files:
        with open(source, "rb") as file:
            archive.add(name, stat.S_IFREG | mode, file.read())
    order = "".join(os.path.basename(path) + "\n" for path in paths)
    archive.add("m/order", stat.S_IFREG | 0o644, order.encode())
    with open(out, "wb") as file:
        file.write(gzip.compress(archive.finish(), 1))


def print_tsc_khz():
    """Prints the rate, measured with the system clock over 0.1 s. At both ends the shortest of 20 samples is used,
    because it was not interrupted."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def sample():
        samples = []
        for _ in range(20):
            before = time.monotonic_ns()
            ticks = counter()
            after = time.monotonic_ns()
            samples.append((after - before, (before + after) / 2, ticks))
        return min(samples)

    _, first_ns, first = sample()
    time.sleep(0.1)
    _, last_ns, last = sample()
    print(round((last - first) / (last_ns - first_ns) * 1e6))


def main():
    commands = {"kernel": (make_kernel, 3), "initrd": (make_initrd, 4), "tsc": (print_tsc_khz, 0)}
    function, count = commands.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
    if function is None or len(sys.argv) != 2 + count:
        sys.exit(__doc__)
    function(*sys.argv[2:])


if __name__ == "__main__":
    main()
