// Detects which launcher has started this rank, and reads the launcher's environment variables: rank, number of
// ranks and so on. The functions take the environment variables as a parameter, and do not read those of the
// process. Any thread may call them.
//
// The launchers are searched for in this order, and the first one found is used. If one launcher was started by
// another, for example torchrun in a Slurm job, the inner one usually comes first in this list:
//
//   1. TUTTI_RANK, TUTTI_WORLD_SIZE      `tutti run`, or set by the user
//   2. TORCHELASTIC_RUN_ID               torchrun
//   3. OMPI_COMM_WORLD_RANK              Open MPI 4 and 5
//   4. PMI_RANK, PMI_SIZE                Hydra: MPICH, Intel MPI, MVAPICH
//   5. SLURM_PROCID inside a step        srun, also with --mpi=pmi2 (a batch script has SLURM_PROCID but is not a rank)
//   6. RANK, WORLD_SIZE, MASTER_ADDR     Kubernetes' PyTorchJob, torch's env://
//
// There are two exceptions. If only one of the two variables of 1 is set, and one of 2 to 6 is found, that launcher is
// used, and must give the same value. PMI_RANK inside a Slurm step counts as 4 only if MPI_LOCALRANKID is set as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.h"
#include "tutti/result.h"

namespace tutti {

struct LaunchInfo {
  // "tutti", "torchrun", "Open MPI", "Hydra", "Slurm" or "torch environment". Empty if there is no launcher. The
  // fields below are empty if the launcher does not provide the value.
  std::string launcher;
  std::optional<std::int32_t> rank;
  std::optional<std::int32_t> size;
  std::optional<std::int32_t> local_rank;
  std::optional<std::int32_t> local_size;
  // True if all ranks are known to be on one machine. False if they are on several machines, or if that is unknown.
  bool one_machine = false;

  // The host of rank 0 as a name or numeric address, and the ports on which rank 0 may listen. With Slurm, and normally
  // with Open MPI, the host is 127.0.0.1 if all ranks are known to be on one machine. Both are empty if the host is
  // unknown.
  std::string root_host;
  std::vector<std::uint16_t> root_ports;
  // How to reach the launcher's store, through which rank 0 passes a unique id to the other ranks. If pmi_fd or pmix is
  // set, the store is used instead of root_host and root_ports.
  std::optional<int> pmi_fd;  // the store uses PMI-1 over this descriptor
  bool pmix = false;          // the store is reached through the PMIx library
  // The same on all ranks of a job, and normally different for jobs that run at the same time. Exception: with Hydra it
  // is always "hydra", because each job has a store of its own. Empty if unknown.
  std::string job_id;

  // Pairs of a fact as text ("rank 3") and the names of the variables from which it was taken ("RANK"), or the name of
  // a variable whose absence is the reason ("no LOCAL_RANK").
  std::vector<std::pair<std::string, std::string>> sources;
};

// Detects the launcher in `environment`. `ports` is the configured range TUTTI_PORT_RANGE, from which root_ports
// are chosen if it is set. Errors (kConfig): variables that contradict each other (the message names both), a variable
// without the others that belong to it, malformed numbers or host lists, or an environment in which RANK counts nodes
// and not ranks. If there is no launcher, the result has an empty `launcher`.
Result<LaunchInfo> detect_launcher(const EnvironmentVariables& environment, const PortRange& ports = {});

// Describes the info for the log: "torchrun: rank 3 (RANK), 4 ranks (WORLD_SIZE), ..."
std::string describe(const LaunchInfo& info);

// The variables by which detect_launcher() recognizes the launchers, for the error message if the rank or the number of
// ranks is unknown.
std::string launcher_variables();

// Expands the brackets in a Slurm host list: "n[08-10,12],gpu1" gives n08 n09 n10 n12 gpu1. If a name has several
// brackets, the last one varies fastest. Returns the first `longest` hosts, or all hosts if there are fewer.
// Errors: kConfig if the list is malformed. Elements after those hosts are not checked.
Result<std::vector<std::string>> expand_hosts(std::string_view list, std::size_t longest);

// Number of ports that are derived from a job id, or that follow MASTER_PORT. See derived_ports() for shorter ranges.
inline constexpr std::uint32_t kCandidatePorts = 8;

// Derives kCandidatePorts consecutive ports from a hash of the job id, so that all ranks of a job get the same
// ports, and different jobs probably get different ones. The ports are in `range`, and wrap around at its end. If
// no range is configured, they are in 20000 .. 32767, because Linux by default assigns only ports from 32768 on to
// outgoing connections. A range with fewer than kCandidatePorts ports gives all its ports.
std::vector<std::uint16_t> derived_ports(std::string_view job_id, const PortRange& range);

}  // namespace tutti
