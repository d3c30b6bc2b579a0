#include "bootstrap/launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

constexpr std::int64_t kMaxRanks = 65535;
// Slurm step ids from this number on denote special steps, whose processes are not ranks, for example the batch script
// and the interactive shell.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

Error config_error(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }

// Reads the variables of one launcher into a LaunchInfo. Keeps only the first error, which finish() returns.
class Reader {
 public:
  Reader(const EnvironmentVariables& environment, std::string launcher) : environment_(environment) {
    info.launcher = std::move(launcher);
  }

  bool has(std::string_view name) const { return environment_.contains(name); }
  std::string text(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? std::string() : found->second;
  }
  // Returns the number in a variable, or nothing if the variable is not set. Also returns nothing, and records an
  // error, if the text is not a whole number from `low` to `high`.
  std::optional<std::int64_t> number(std::string_view name, std::int64_t low, std::int64_t high) {
    if (!has(name)) return std::nullopt;
    const std::string value = text(name);
    std::int64_t number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure != std::errc() || end != value.data() + value.size() || number < low || number > high) {
      wrong(fmt::format("{}={} (of {}) is no whole number from {} to {}", name, value, info.launcher, low, high));
      return std::nullopt;
    }
    return number;
  }
  void count(std::optional<std::int32_t> LaunchInfo::*field, const char* what, std::string_view name,
             std::int64_t low) {
    const auto value = number(name, low, kMaxRanks - (low == 0 ? 1 : 0));
    if (!value) return;
    info.*field = static_cast<std::int32_t>(*value);
    note(fmt::format(fmt::runtime(what), *value), name);
  }
  void rank(std::string_view name) { count(&LaunchInfo::rank, "rank {}", rank_name_ = name, 0); }
  void size(std::string_view name) { count(&LaunchInfo::size, "{} ranks", size_name_ = name, 1); }
  void local_rank(std::string_view name) {
    count(&LaunchInfo::local_rank, "local rank {}", local_rank_name_ = name, 0);
  }
  void local_size(std::string_view name) {
    count(&LaunchInfo::local_size, "{} local ranks", local_size_name_ = name, 1);
  }
  void job_id(std::string id, std::string_view name) {
    info.job_id = std::move(id);
    note(fmt::format("job {}", info.job_id), name);
  }
  void root(std::string host, std::vector<std::uint16_t> ports, std::string_view name) {
    info.root_host = std::move(host);
    info.root_ports = std::move(ports);
    note(fmt::format("root {}, ports {} to {}", info.root_host, info.root_ports.front(), info.root_ports.back()), name);
  }
  void note(std::string what, std::string_view name) { info.sources.emplace_back(std::move(what), name); }
  void wrong(std::string message) {
    if (!error_) error_ = config_error(std::move(message));
  }
  void need(std::string_view name, std::string_view because) {
    if (!has(name))
      wrong(fmt::format("{} is set ({}), but {} is not: set both or neither", because, info.launcher, name));
  }
  // Reads MASTER_ADDR and MASTER_PORT. PyTorch's own store listens on that port, now or soon. So Tutti uses the
  // next kCandidatePorts ports (1024 follows 65535) or, if TUTTI_PORT_RANGE is configured, ports of that range.
  void torch_root(const PortRange& ports) {
    need("MASTER_ADDR", rank_name_);
    need("MASTER_PORT", rank_name_);
    const auto port = number("MASTER_PORT", 1, 65535);
    if (!port) return;
    std::vector<std::uint16_t> candidates;
    for (std::uint32_t i = 0; i < kCandidatePorts; ++i) {
      const std::uint32_t next = static_cast<std::uint32_t>(*port) + 1 + i;
      candidates.push_back(static_cast<std::uint16_t>(next <= 65535 ? next : next - 65535 + 1023));
    }
    if (!ports.any()) candidates = derived_ports(text("MASTER_PORT"), ports);
    root(text("MASTER_ADDR"), std::move(candidates), "MASTER_ADDR, MASTER_PORT");
  }

  Result<LaunchInfo> finish() {
    const auto below = [&](std::optional<std::int32_t> low, const std::string& low_name,
                           std::optional<std::int32_t> high, const std::string& high_name, bool may_equal) {
      if (low && high && (may_equal ? *low > *high : *low >= *high)) {
        wrong(fmt::format("{}={} and {}={} contradict each other", low_name, *low, high_name, *high));
      }
    };
    below(info.rank, rank_name_, info.size, size_name_, false);
    below(info.local_rank, local_rank_name_, info.local_size, local_size_name_, false);
    below(info.local_size, local_size_name_, info.size, size_name_, true);
    if (error_) return *error_;
    if (info.size && info.local_size == info.size) info.one_machine = true;
    return info;
  }

  LaunchInfo info;

 private:
  const EnvironmentVariables& environment_;
  std::string rank_name_, size_name_, local_rank_name_, local_size_name_;
  std::optional<Error> error_;
};

Result<LaunchInfo> read_torchrun(Reader reader, const PortRange& ports) {
  reader.rank("RANK");
  reader.size("WORLD_SIZE");
  reader.local_rank("LOCAL_RANK");
  reader.local_size("LOCAL_WORLD_SIZE");
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK"}) reader.need(name, "TORCHELASTIC_RUN_ID");
  reader.torch_root(ports);
  reader.job_id(fmt::format("{}:{}/{}#{}", reader.text("MASTER_ADDR"), reader.text("MASTER_PORT"),
                            reader.text("TORCHELASTIC_RUN_ID"), reader.text("TORCHELASTIC_RESTART_COUNT")),
                "MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT");
  return reader.finish();
}

Result<LaunchInfo> read_open_mpi(Reader reader, const PortRange& ports) {
  reader.rank("OMPI_COMM_WORLD_RANK");
  reader.size("OMPI_COMM_WORLD_SIZE");
  reader.local_rank("OMPI_COMM_WORLD_LOCAL_RANK");
  reader.local_size("OMPI_COMM_WORLD_LOCAL_SIZE");
  reader.need("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  const auto pmix_rank = reader.number("PMIX_RANK", 0, kMaxRanks - 1);
  if (pmix_rank && reader.info.rank && *pmix_rank != *reader.info.rank) {
    reader.wrong(
        fmt::format("OMPI_COMM_WORLD_RANK={} and PMIX_RANK={} contradict each other", *reader.info.rank, *pmix_rank));
  }
  const char* const name = reader.has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_orte_hnp_uri";
  if (!reader.text(name).empty()) {
    // A PMIx namespace is unique only among the jobs of one launcher daemon, and a machine may run one daemon for
    // each user. So the user id is added to the job id.
    const std::string job = fmt::format("ompi-{}-{:016x}", getuid(), spread(reader.text(name)));
    reader.job_id(job, name);
    if (reader.info.local_size && reader.info.local_size == reader.info.size) {
      reader.root("127.0.0.1", derived_ports(job, ports), name);
    } else if (name == std::string_view("PMIX_NAMESPACE")) {
      reader.info.pmix = true;
      reader.note("the launcher's store", name);
    }
  }
  return reader.finish();
}

Result<LaunchInfo> read_hydra(Reader reader) {
  reader.rank("PMI_RANK");
  reader.size("PMI_SIZE");
  reader.need("PMI_SIZE", "PMI_RANK");
  const bool intel = reader.has("MPI_LOCALRANKID");
  reader.local_rank(intel ? "MPI_LOCALRANKID" : "MV2_COMM_WORLD_LOCAL_RANK");
  reader.local_size(intel ? "MPI_LOCALNRANKS" : "MV2_COMM_WORLD_LOCAL_SIZE");
  if (const auto fd = reader.number("PMI_FD", 0, 1 << 20)) {
    reader.info.pmi_fd = static_cast<int>(*fd);
    reader.note("the launcher's store", "PMI_FD");
  }
  // Jobs need no distinct ids here, because each job has its own store.
  reader.info.job_id = "hydra";
  return reader.finish();
}

Result<LaunchInfo> read_slurm(Reader reader, const PortRange& ports) {
  reader.rank("SLURM_PROCID");
  reader.size(reader.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
  if (!reader.info.size) reader.need("SLURM_NTASKS", "SLURM_PROCID");
  reader.local_rank("SLURM_LOCALID");
  const std::string job = fmt::format("slurm-{}.{}", reader.text("SLURM_JOB_ID"), reader.text("SLURM_STEP_ID"));
  reader.job_id(job, "SLURM_JOB_ID, SLURM_STEP_ID");
  const char* const nodes_name = reader.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  const char* const list_name = reader.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const auto nodes = reader.number(nodes_name, 1, kMaxRanks);
  if (nodes == 1) {
    reader.info.one_machine = true;
    reader.root("127.0.0.1", derived_ports(job, ports), nodes_name);
    reader.info.local_size = reader.info.size;
  } else if (reader.text(list_name).empty()) {
    reader.need(list_name, "SLURM_PROCID");
  } else if (auto hosts = expand_hosts(reader.text(list_name), 2); !hosts) {
    reader.wrong(fmt::format("{}: {}", list_name, hosts.error().message));
  } else if (nodes && *nodes > 1 && hosts->size() == 1) {
    reader.wrong(
        fmt::format("{}={} and {}={} contradict each other", nodes_name, *nodes, list_name, reader.text(list_name)));
  } else {
    reader.info.one_machine = hosts->size() == 1;
    reader.root(reader.info.one_machine ? "127.0.0.1" : hosts->front(), derived_ports(job, ports), list_name);
  }
  return reader.finish();
}

Result<LaunchInfo> read_torch_environment(Reader reader, const PortRange& ports) {
  const std::string per_node = reader.text("PET_NPROC_PER_NODE");
  if (!reader.has("LOCAL_RANK") && !per_node.empty() && per_node != "1") {
    reader.wrong(fmt::format(
        "RANK={} and WORLD_SIZE={} stand beside PET_NPROC_PER_NODE={} and without LOCAL_RANK: RANK counts nodes here, "
        "not ranks; start the ranks with torchrun, or set TUTTI_RANK and TUTTI_WORLD_SIZE",
        reader.text("RANK"), reader.text("WORLD_SIZE"), per_node));
  }
  reader.rank("RANK");
  reader.size("WORLD_SIZE");
  reader.local_rank("LOCAL_RANK");
  reader.local_size("LOCAL_WORLD_SIZE");
  if (!reader.has("LOCAL_RANK")) {
    if (!per_node.empty()) {
      reader.note("one rank on each node", "PET_NPROC_PER_NODE");
      const std::string nodes = reader.text("PET_NNODES");
      if (!nodes.empty() && nodes.find_first_not_of("0123456789") == std::string::npos &&
          nodes != reader.text("WORLD_SIZE")) {
        reader.wrong(
            fmt::format("PET_NNODES={} and WORLD_SIZE={} contradict each other", nodes, reader.text("WORLD_SIZE")));
      }
    } else {
      reader.note("RANK taken to count ranks", "no LOCAL_RANK");
    }
  }
  reader.torch_root(ports);
  reader.job_id(fmt::format("{}:{}", reader.text("MASTER_ADDR"), reader.text("MASTER_PORT")),
                "MASTER_ADDR, MASTER_PORT");
  return reader.finish();
}

// Detects the launchers other than `tutti run`. Returns a LaunchInfo with an empty `launcher` if there is none.
Result<LaunchInfo> detect_foreign(const EnvironmentVariables& environment, const PortRange& ports) {
  const auto make = [&](const char* launcher) { return Reader(environment, launcher); };
  if (environment.contains("TORCHELASTIC_RUN_ID")) return read_torchrun(make("torchrun"), ports);
  if (environment.contains("OMPI_COMM_WORLD_RANK")) return read_open_mpi(make("Open MPI"), ports);
  Reader slurm = make("Slurm");
  const auto step = slurm.number("SLURM_STEP_ID", 0, 0xffffffff);
  const bool in_step = environment.contains("SLURM_PROCID") && step && *step < kFirstSpecialStep;
  // Hydra inside a Slurm job can start its helpers with srun, and the ranks inherit SLURM_PROCID from the helpers. On
  // the other hand, srun --mpi=pmi2 sets PMI_RANK itself, but uses the PMI-2 protocol, and does not set
  // MPI_LOCALRANKID. Such ranks are read as ranks of Slurm.
  if (environment.contains("PMI_RANK") && (!in_step || environment.contains("MPI_LOCALRANKID"))) {
    return read_hydra(make("Hydra"));
  }
  if (in_step) return read_slurm(slurm, ports);
  if (environment.contains("RANK") && environment.contains("WORLD_SIZE")) {
    return read_torch_environment(make("torch environment"), ports);
  }
  return LaunchInfo{};
}

}  // namespace

std::vector<std::uint16_t> derived_ports(std::string_view job_id, const PortRange& range) {
  const PortRange among = range.any() ? PortRange{20'000, 32'767} : range;
  const std::uint64_t start = spread(job_id) % among.count();
  std::vector<std::uint16_t> ports;
  for (std::uint32_t i = 0; i < std::min(kCandidatePorts, among.count()); ++i) {
    ports.push_back(static_cast<std::uint16_t>(among.first + (start + i) % among.count()));
  }
  return ports;
}

Result<LaunchInfo> detect_launcher(const EnvironmentVariables& environment, const PortRange& ports) {
  Reader reader(environment, "tutti");
  reader.rank("TUTTI_RANK");
  reader.size("TUTTI_WORLD_SIZE");
  reader.local_rank("TUTTI_LOCAL_RANK");
  reader.local_size("TUTTI_LOCAL_SIZE");
  auto own = reader.finish();
  if (!own || (own->rank && own->size)) return own;
  auto foreign = detect_foreign(environment, ports);
  if (!foreign || (!own->rank && !own->size)) return foreign;
  if (foreign->launcher.empty()) return own;
  // Only one of TUTTI_RANK and TUTTI_WORLD_SIZE is set, and another launcher was found. Accept this only if that
  // launcher gives the same value.
  const bool by_rank = own->rank.has_value();
  const auto ours = by_rank ? own->rank : own->size;
  const auto theirs = by_rank ? foreign->rank : foreign->size;
  if (ours != theirs) {
    return config_error(fmt::format("{}={} contradicts {} ({}): set both TUTTI_RANK and TUTTI_WORLD_SIZE, or neither",
                                    by_rank ? "TUTTI_RANK" : "TUTTI_WORLD_SIZE", *ours, describe(*foreign),
                                    "which gives another number"));
  }
  return foreign;
}

std::string describe(const LaunchInfo& info) {
  if (info.launcher.empty()) return "no launcher";
  std::vector<std::string> texts;
  for (const auto& [what, name] : info.sources) texts.push_back(fmt::format("{} ({})", what, name));
  return fmt::format("{}: {}", info.launcher, fmt::join(texts, ", "));
}

std::string launcher_variables() {
  return "TUTTI_RANK and TUTTI_WORLD_SIZE (tutti run), TORCHELASTIC_RUN_ID (torchrun), OMPI_COMM_WORLD_RANK (Open "
         "MPI), PMI_RANK (MPICH, Intel MPI), SLURM_PROCID with SLURM_STEP_ID (srun), RANK with WORLD_SIZE (torch, "
         "Kubernetes)";
}

}  // namespace tutti
