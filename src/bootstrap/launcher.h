// Who started this rank, and what that says about the others. Pure functions of the environment; any thread.
//
// Looked for in this order; the first that is there is taken, because what stands further up was started last:
//   1. TUTTI_RANK, TUTTI_WORLD_SIZE      `tutti run`, or the user
//   2. TORCHELASTIC_RUN_ID               torchrun
//   3. OMPI_COMM_WORLD_RANK              Open MPI 4 and 5
//   4. PMI_RANK, PMI_SIZE                Hydra: MPICH, Intel MPI, MVAPICH
//   5. SLURM_PROCID inside a step        srun, --mpi=pmi2 too (a batch script is no rank, though it has SLURM_PROCID)
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
  std::string launcher;  // "tutti", "torchrun", "Open MPI", "Hydra", "Slurm", "torch environment"; empty: none
  std::optional<std::int32_t> rank;
  std::optional<std::int32_t> size;
  std::optional<std::int32_t> local_rank;
  std::optional<std::int32_t> local_size;
  bool one_machine = false;  // known to be all on one; false: several, or not known

  // Where rank 0 is met: a host, or empty where the launcher names none; and the ports that rank 0 may listen on.
  std::string root_host;
  std::vector<std::uint16_t> root_ports;
  // In place of both: a launcher's store that rank 0 can leave its address in.
  std::optional<int> pmi_fd;  // PMI-1 over this descriptor
  bool pmix = false;          // through the PMIx library
  std::string job_id;         // the same on all ranks of the job, another for another job; empty: not known

  std::vector<std::pair<std::string, std::string>> sources;  // what, and the variable that said it
};

// Errors (kConfig): variables that contradict each other (both are named), numbers that are none, an environment whose
// RANK may count nodes or ranks. No launcher at all is no error: `launcher` is empty then.
Result<LaunchInfo> detect_launcher(const EnvironmentVariables& environment, const PortRange& ports = {});

// "torchrun: rank 3 (RANK), 4 ranks (WORLD_SIZE), ..."
std::string describe(const LaunchInfo& info);

// What detect_launcher looks for, for the error when there is nothing.
std::string launcher_variables();

// The hosts of a Slurm list, brackets expanded: "n[08-10,12],gpu1" is n08 n09 n10 n12 gpu1; several brackets in one
// name count as the last one fastest. At most `longest` hosts. Errors: kConfig.
Result<std::vector<std::string>> expand_hosts(std::string_view list, std::size_t longest);

// Ports that all ranks of a job derive alike and that other jobs are unlikely to: 8 one after the other, at a place
// chosen by the job id, in `range`, or in 20000 .. 32767, below what systems give out by themselves.
inline constexpr std::uint32_t kCandidatePorts = 8;
std::vector<std::uint16_t> derived_ports(std::string_view job_id, const PortRange& range);

}  // namespace tutti
