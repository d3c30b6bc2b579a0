// Tests how the environments of launchers are interpreted. It has one realistic environment of each launcher, and
// misleading ones.
#include "bootstrap/launcher.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace tutti {
namespace {

LaunchInfo detect(const EnvironmentVariables& environment, const PortRange& ports = {}) {
  auto info = detect_launcher(environment, ports);
  EXPECT_TRUE(info.ok()) << to_string(info.error());
  return info.ok() ? *info : LaunchInfo{};
}

std::string error_of(const EnvironmentVariables& environment) {
  const auto info = detect_launcher(environment);
  EXPECT_FALSE(info.ok()) << describe(*info);
  if (info.ok()) return {};
  EXPECT_EQ(info.error().code, ErrorCode::kConfig);
  return info.error().message;
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
}

EnvironmentVariables with(EnvironmentVariables environment, const EnvironmentVariables& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

EnvironmentVariables without(EnvironmentVariables environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

EnvironmentVariables torchrun() {
  return {{"LOCAL_RANK", "1"},
          {"RANK", "5"},
          {"GROUP_RANK", "1"},
          {"ROLE_RANK", "5"},
          {"ROLE_NAME", "default"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"WORLD_SIZE", "8"},
          {"GROUP_WORLD_SIZE", "2"},
          {"ROLE_WORLD_SIZE", "8"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_MAX_RESTARTS", "3"},
          {"TORCHELASTIC_RUN_ID", "none"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
}

EnvironmentVariables open_mpi() {
  return {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"PMIX_NAMESPACE", "36726001"}, {"PMIX_RANK", "1"},
          {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"OMPI_COMMAND", "env"}};
}

EnvironmentVariables hydra() {
  return {{"PMI_RANK", "2"},        {"PMI_SIZE", "4"},        {"PMI_FD", "8"},
          {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "4"}, {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "vm"}};
}

EnvironmentVariables srun() {
  return {{"SLURM_PROCID", "3"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_JOB_ID", "812"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", "4"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NODELIST", "n[07-08]"},
          {"SLURM_JOB_NODELIST", "n[01-08]"}};
}

TEST(Launcher, NoneIsNoErrorAndTakesNothingFromStrayVariables) {
  EXPECT_EQ(detect({}).launcher, "");
  EXPECT_EQ(detect({{"RANK", "captain"}, {"MASTER_ADDR", "x"}}).launcher, "");
  EXPECT_EQ(detect({{"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}}).launcher, "");
  for (const char* name : {"TUTTI_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    expect_words(launcher_variables(), {name});
  }
}

TEST(Launcher, OurOwnVariablesWinOverEverybodyElses) {
  const LaunchInfo info = detect(with(with(torchrun(), open_mpi()), {{"TUTTI_RANK", "0"}, {"TUTTI_WORLD_SIZE", "3"}}));
  EXPECT_EQ(info.launcher, "tutti");
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.size, 3);
  EXPECT_EQ(info.root_host, "");
}

TEST(Launcher, OneOfOursBesideALaunchersMustAgreeWithIt) {
  EXPECT_EQ(detect(with(torchrun(), {{"TUTTI_RANK", "5"}})).launcher, "torchrun");
  expect_words(error_of(with(torchrun(), {{"TUTTI_RANK", "4"}})), {"TUTTI_RANK=4", "rank 5 (RANK)"});
  expect_words(error_of(with(open_mpi(), {{"TUTTI_WORLD_SIZE", "3"}})),
               {"TUTTI_WORLD_SIZE=3", "2 ranks (OMPI_COMM_WORLD_SIZE)"});
}

TEST(Launcher, TorchrunsPortIsLeftToItsAgent) {
  const LaunchInfo info = detect(torchrun());
  EXPECT_EQ(info.launcher, "torchrun");
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 4);
  EXPECT_FALSE(info.one_machine);
  EXPECT_EQ(info.root_host, "node0");
  std::vector<std::uint16_t> next(kCandidatePorts);
  std::iota(next.begin(), next.end(), std::uint16_t{29501});
  EXPECT_EQ(info.root_ports, next);
  for (const std::uint16_t port : detect(with(torchrun(), {{"MASTER_PORT", "65534"}})).root_ports) {
    EXPECT_NE(port, 65534);
    EXPECT_GE(port, 1024);
  }
  for (const std::uint16_t port : detect(torchrun(), {40000, 40003}).root_ports) {
    EXPECT_TRUE(port >= 40000 && port <= 40003) << port;
  }
  expect_words(describe(info), {"torchrun", "rank 5 (RANK)", "8 ranks (WORLD_SIZE)", "MASTER_ADDR"});
}

TEST(Launcher, ARestartOfTorchrunIsAnotherJob) {
  const std::string first = detect(torchrun()).job_id;
  const std::string second = detect(with(torchrun(), {{"TORCHELASTIC_RESTART_COUNT", "1"}})).job_id;
  EXPECT_NE(first, second);
  EXPECT_NE(first, detect(with(torchrun(), {{"TORCHELASTIC_RUN_ID", "other"}})).job_id);
  EXPECT_EQ(first, detect(with(torchrun(), {{"RANK", "4"}, {"LOCAL_RANK", "0"}})).job_id);
}

TEST(Launcher, TorchrunInsideAnotherLauncherIsTheInnerOne) {
  EXPECT_EQ(detect(with(torchrun(), srun())).launcher, "torchrun");
  EXPECT_EQ(detect(with(torchrun(), open_mpi())).launcher, "torchrun");
}

TEST(Launcher, WhatIsMissingIsNamed) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_words(error_of(without(torchrun(), name)), {std::string(name) + " is not"});
  }
  expect_words(error_of(without(open_mpi(), "OMPI_COMM_WORLD_SIZE")), {"OMPI_COMM_WORLD_SIZE"});
  expect_words(error_of(without(hydra(), "PMI_SIZE")), {"PMI_SIZE"});
}

TEST(Launcher, ContradictionsNameBothVariables) {
  expect_words(error_of(with(torchrun(), {{"RANK", "8"}})), {"RANK=8", "WORLD_SIZE=8"});
  expect_words(error_of(with(torchrun(), {{"LOCAL_RANK", "4"}})), {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"});
  expect_words(error_of(with(torchrun(), {{"LOCAL_WORLD_SIZE", "9"}})), {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"});
  expect_words(error_of(with(open_mpi(), {{"PMIX_RANK", "0"}})), {"OMPI_COMM_WORLD_RANK=1", "PMIX_RANK=0"});
  expect_words(error_of(with(hydra(), {{"PMI_SIZE", "2"}})), {"PMI_RANK=2", "PMI_SIZE=2"});
  expect_words(error_of(with(srun(), {{"SLURM_STEP_NODELIST", "n07"}})),
               {"SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NODELIST=n07"});
  expect_words(error_of({{"TUTTI_RANK", "3"}, {"TUTTI_WORLD_SIZE", "3"}}), {"TUTTI_RANK=3", "TUTTI_WORLD_SIZE=3"});
  expect_words(error_of(with(hydra(), {{"PMI_RANK", "two"}})), {"PMI_RANK=two", "Hydra"});
}

TEST(Launcher, OpenMpiOnOneMachineMeetsOnLoopback) {
  const LaunchInfo info = detect(open_mpi());
  EXPECT_EQ(info.launcher, "Open MPI");
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.size, 2);
  EXPECT_TRUE(info.one_machine);
  EXPECT_EQ(info.root_host, "127.0.0.1");
  EXPECT_EQ(info.root_ports, derived_ports(info.job_id, {}));
  EXPECT_NE(info.job_id, detect(with(open_mpi(), {{"PMIX_NAMESPACE", "36726002"}})).job_id);
}

TEST(Launcher, OpenMpiOnSeveralMachinesGivesAStore) {
  const EnvironmentVariables several = with(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", "4"}});
  const LaunchInfo info = detect(several);
  EXPECT_FALSE(info.one_machine);
  EXPECT_EQ(info.root_host, "");
  EXPECT_TRUE(info.pmix);
  EXPECT_FALSE(detect(open_mpi()).pmix);
  EXPECT_FALSE(detect(without(several, "PMIX_NAMESPACE")).pmix);
}

TEST(Launcher, HydraGivesAStore) {
  const LaunchInfo info = detect(hydra());
  EXPECT_EQ(info.launcher, "Hydra");
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 2);
  EXPECT_EQ(info.pmi_fd, 8);
  EXPECT_TRUE(info.one_machine);
  EXPECT_FALSE(detect(with(hydra(), {{"MPI_LOCALNRANKS", "2"}, {"MPI_LOCALRANKID", "0"}})).one_machine);
}

// mpirun inside a Slurm job: its ranks inherit the SLURM_PROCID of the helper process that srun started on their
// machine.
TEST(Launcher, MpiInsideSlurmIsNotSlurm) {
  EXPECT_EQ(detect(with(srun(), hydra())).launcher, "Hydra");
  EXPECT_EQ(detect(with(srun(), open_mpi())).launcher, "Open MPI");
  // srun --mpi=pmi2 sets PMI_RANK itself, and its PMI_FD uses another protocol than PMI-1.
  const LaunchInfo pmi2 = detect(with(srun(), {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "5"}}));
  EXPECT_EQ(pmi2.launcher, "Slurm");
  EXPECT_FALSE(pmi2.pmi_fd.has_value());
}

TEST(Launcher, SlurmMeetsOnTheStepsFirstHost) {
  const LaunchInfo info = detect(srun());
  EXPECT_EQ(info.launcher, "Slurm");
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.root_host, "n07");
  EXPECT_EQ(info.job_id, "slurm-812.0");
  EXPECT_EQ(info.root_ports, derived_ports("slurm-812.0", {}));
  const LaunchInfo single = detect(with(srun(), {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "n07"}}));
  EXPECT_TRUE(single.one_machine);
  EXPECT_EQ(single.root_host, "127.0.0.1");
}

// A batch script has SLURM_PROCID=0 and SLURM_NTASKS, and an interactive shell has a special step id. Neither is a
// rank.
TEST(Launcher, SlurmOutsideAStepIsNoLauncher) {
  EXPECT_EQ(detect(without(srun(), "SLURM_STEP_ID")).launcher, "");
  EXPECT_EQ(detect(with(srun(), {{"SLURM_STEP_ID", "4294967291"}})).launcher, "");
  EXPECT_EQ(detect(with(srun(), {{"SLURM_STEP_ID", "4294967290"}})).launcher, "");
}

TEST(Launcher, TorchsVariablesCountRanksUnlessTheyMayCountNodes) {
  const EnvironmentVariables plain = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-0"}, {"MASTER_PORT", "23456"}};
  const LaunchInfo info = detect(plain);
  EXPECT_EQ(info.launcher, "torch environment");
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.root_host, "job-0");
  EXPECT_EQ(info.root_ports.front(), 23457);
  expect_words(describe(info), {"RANK taken to count ranks (no LOCAL_RANK)"});
  EXPECT_EQ(detect(with(plain, {{"LOCAL_RANK", "1"}})).local_rank, 1);
  // PyTorchJob with one process on each node: the node rank is the rank.
  const EnvironmentVariables job =
      with(plain, {{"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "1"}, {"PET_NODE_RANK", "1"}});
  EXPECT_EQ(detect(job).rank, 1);
  // With several processes on each node, RANK is the number of a node, although WORLD_SIZE counts processes.
  const EnvironmentVariables many = with(job, {{"PET_NPROC_PER_NODE", "8"}, {"WORLD_SIZE", "16"}});
  expect_words(error_of(many), {"RANK=1", "PET_NPROC_PER_NODE=8", "torchrun", "TUTTI_RANK"});
  expect_words(error_of(with(job, {{"PET_NPROC_PER_NODE", "auto"}})), {"PET_NPROC_PER_NODE=auto"});
  expect_words(error_of(with(job, {{"PET_NNODES", "3"}})), {"PET_NNODES=3", "WORLD_SIZE=2"});
  expect_words(error_of(without(plain, "MASTER_ADDR")), {"MASTER_ADDR is not"});
}

TEST(Launcher, DerivedPortsAreAlikeForOneJobAndApartForOthers) {
  std::set<std::uint16_t> starts;
  for (int job = 0; job < 50; ++job) {
    const auto ports = derived_ports("slurm-" + std::to_string(job) + ".0", {});
    ASSERT_EQ(ports.size(), kCandidatePorts);
    EXPECT_EQ(ports, derived_ports("slurm-" + std::to_string(job) + ".0", {}));
    for (const std::uint16_t port : ports) EXPECT_TRUE(port >= 20'000 && port < 32'768) << port;
    starts.insert(ports.front());
  }
  EXPECT_GT(starts.size(), 45u);
  EXPECT_EQ(derived_ports("job", {7000, 7000}), std::vector<std::uint16_t>{7000});
  const auto few = derived_ports("job", {65534, 65535});
  EXPECT_EQ(std::set<std::uint16_t>(few.begin(), few.end()), (std::set<std::uint16_t>{65534, 65535}));
}

TEST(HostList, BracketsAreExpanded) {
  const auto hosts = [](const char* list) { return expand_hosts(list, 100).value(); };
  using Hosts = std::vector<std::string>;
  EXPECT_EQ(hosts("n1"), Hosts{"n1"});
  EXPECT_EQ(hosts("n[08-10,12],gpu1"), (Hosts{"n08", "n09", "n10", "n12", "gpu1"}));
  EXPECT_EQ(hosts("r[1-2]n[1-2]-ib"), (Hosts{"r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"}));
  EXPECT_EQ(hosts("a,b[7],c"), (Hosts{"a", "b7", "c"}));
  EXPECT_EQ(expand_hosts("n[0-999999999999]", 3).value(), (Hosts{"n0", "n1", "n2"}));
  for (const char* bad : {"", "n[", "n]", "n[1-", "n[x]", "n[2-1]", "a,,b", "n[]", "n[1]["}) {
    EXPECT_FALSE(expand_hosts(bad, 100).ok()) << bad;
  }
}

}  // namespace
}  // namespace tutti
