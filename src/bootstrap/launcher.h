// Finds out which launcher started this rank, and the facts about the job that the launcher provides. The functions
// depend only on the environment that is passed to them. Any thread may call them.
//
// The launchers are searched for in this order, and the first one found is used. If one launcher was started by
// another, for example torchrun in a Slurm job, the inner one comes first in this list:
//
//   1. TUTTI_RANK, TUTTI_WORLD_SIZE      `tutti run`, or set by the user
//   2. TORCHELASTIC_RUN_ID               torchrun
//   3. OMPI_COMM_WORLD_RANK              Open MPI 4 and 5
//   4. PMI_RANK, PMI_SIZE                Hydra: MPICH, Intel MPI, MVAPICH
//   5. SLURM_PROCID inside a step        srun, also with --mpi=pmi2 (a batch script has SLURM_PROCID but is not a rank)
//   6. RANK, WORLD_SIZE, MASTER_ADDR     Kubernetes' PyTorchJob, torch's env://
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
  // "tutti", "torchrun", "Open MPI", "Hydra", "Slurm" or "torch environment". Empty if there is no launcher.
  std::string launcher;
  std::optional<std::int32_t> rank;
  std::optional<std::int32_t> size;
  std::optional<std::int32_t> local_rank;
  std::optional<std::int32_t> local_size;
  // True if all ranks are known to be on one machine. False if they are on several, or if that is unknown.
  bool one_machine = false;

  // The host of rank 0, or empty if the launcher does not name one, and the ports on which rank 0 may listen.
  std::string root_host;
  std::vector<std::uint16_t> root_ports;
  // Used instead of both: a store of the launcher, in which rank 0 can publish its address.
  std::optional<int> pmi_fd;  // the store uses PMI-1 over this descriptor
  bool pmix = false;          // the store is reached through the PMIx library
  // The same on all ranks of a job, and different for different jobs. Empty if unknown.
  std::string job_id;

  std::vector<std::pair<std::string, std::string>> sources;  // each fact as text, and the variable it came from
};

// Errors (kConfig): variables that contradict each other (the message names both), malformed numbers, or an
// environment in which RANK could count either nodes or ranks. A missing launcher is not an error: `launcher` is
// empty then.
Result<LaunchInfo> detect_launcher(const EnvironmentVariables& environment, const PortRange& ports = {});

// Describes the info for the log: "torchrun: rank 3 (RANK), 4 ranks (WORLD_SIZE), ..."
std::string describe(const LaunchInfo& info);

// The variables that detect_launcher() looks for, for the error message if none of them is set.
std::string launcher_variables();

// Expands the brackets in a Slurm host list: "n[08-10,12],gpu1" gives n08 n09 n10 n12 gpu1. If a name has several
// brackets, the last one varies fastest. Returns at most `longest` hosts. Errors: kConfig.
Result<std::vector<std::string>> expand_hosts(std::string_view list, std::size_t longest);

// Derives consecutive ports from the job id. All ranks of a job get the same ports, and other jobs probably get
// others. The ports are in `range`. If no range is configured, they are in 20000 .. 32767, because systems do not
// assign ports below 32768 by themselves.
inline constexpr std::uint32_t kCandidatePorts = 8;
std::vector<std::uint16_t> derived_ports(std::string_view job_id, const PortRange& range);

}  // namespace tutti
