// Tests how ranks find their rendezvous server: options take precedence over variables, and these over launchers.
// Also tests network interfaces and the formats of a unique id.
#include "bootstrap/rendezvous.h"

#include <gtest/gtest.h>

#include "bootstrap/interfaces.h"
#include "bootstrap/launcher.h"
#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

Config config_of(const EnvironmentVariables& environment) {
  Variables variables;
  for (const auto& [name, value] : environment) {
    if (name.starts_with("TUTTI_")) variables.emplace_back(name, value);
  }
  return parse_config(variables).value();
}

Result<RendezvousOptions> resolve(const CommunicatorOptions& options, const EnvironmentVariables& environment) {
  return resolve_rendezvous(options, config_of(environment), environment);
}

CommunicatorOptions ranks(std::int32_t rank, std::int32_t size) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  return options;
}

const EnvironmentVariables kTorchrun = {{"RANK", "1"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_ADDR", "127.0.0.1"},
                                        {"MASTER_PORT", "29500"},
                                        {"TORCHELASTIC_RUN_ID", "none"},
                                        {"TORCHELASTIC_RESTART_COUNT", "0"}};

const std::vector<InterfaceAddress> kInterfaces = {
    {"lo", "127.0.0.1"},  {"lo", "::1"},        {"eth0", "fe80::5%eth0"},
    {"eth0", "fd00::5"},  {"eth0", "10.1.2.3"}, {"ib0", "10.9.0.3"},
    {"v6", "fe80::6%v6"}, {"v6", "fd12::6"},    {"linkonly", "fe80::7%lnk"},
};

std::string selected(std::string_view wanted) {
  auto address = select_address(wanted, kInterfaces);
  return address ? *address : to_string(address.error());
}

TEST(Interfaces, AreChosenByNameSubnetOrAddress) {
  EXPECT_EQ(selected("lo"), "127.0.0.1");
  EXPECT_EQ(selected("eth0"), "10.1.2.3");
  EXPECT_EQ(selected("v6"), "fd12::6");
  EXPECT_EQ(selected("10.9.0.0/16"), "10.9.0.3");
  EXPECT_EQ(selected("10.0.0.0/8"), "10.1.2.3");
  EXPECT_EQ(selected("fd00::/16"), "fd00::5");
  EXPECT_EQ(selected("fd00::/8"), "fd00::5");
  EXPECT_EQ(selected("fd12::6"), "fd12::6");
  EXPECT_EQ(selected("::1"), "::1");
  EXPECT_EQ(selected("nosuch,192.168.0.0/16,ib0,eth0"), "10.9.0.3");
}

TEST(Interfaces, WrongOnesAreRefusedWithThoseThatThereAre) {
  for (const char* wrong : {"nosuch0", "192.168.0.0/16", "10.1.2.4", "nosuch,fd99::/16"}) {
    const std::string text = selected(wrong);
    EXPECT_NE(text.find("there are: eth0 (fe80::5%eth0, fd00::5, 10.1.2.3), ib0 (10.9.0.3)"), std::string::npos)
        << text;
    EXPECT_NE(text.find(wrong), std::string::npos) << text;
  }
  for (const char* garbled : {"10.1.0.0/33", "x/8", "fd00::/129", ",lo", ""}) {
    EXPECT_FALSE(select_address(garbled, kInterfaces).ok()) << garbled;
  }
}

TEST(Interfaces, LinkLocalAddressesMustBeAskedForInFull) {
  const std::string text = selected("linkonly");
  EXPECT_NE(text.find("link-local"), std::string::npos) << text;
  EXPECT_EQ(selected("fe80::1,fe80::/10,v6"), "fd12::6");
  const std::vector<InterfaceAddress> lo = {{"lo", "fe80::5%lo"}};
  EXPECT_EQ(select_address("fe80::5%lo", lo).value(), "fe80::5%lo");
  EXPECT_FALSE(select_address("fe80::5", lo).ok()) << "a link-local address without a scope is ambiguous";
}

TEST(Interfaces, DataGoesWhereTheRanksMetUnlessTold) {
  EXPECT_EQ(data_address({}, "127.0.0.1").value(), "127.0.0.1");
  EXPECT_EQ(data_address({}, "::1").value(), "::1");
  Config config;
  config.interface = "lo";
  EXPECT_EQ(data_address(config, "198.51.100.7").value(), "127.0.0.1");
  EXPECT_EQ(route_to_others("127.0.0.1", {"127.0.0.1", "::1"}).value(), "127.0.0.1");
  EXPECT_TRUE(is_own_address("127.0.0.1"));
  EXPECT_TRUE(is_own_address("127.1.2.3"));
  EXPECT_FALSE(is_own_address("198.51.100.7"));
}

TEST(Rendezvous, OptionsWinOverVariablesAndTheseOverTheLauncher) {
  const auto launched = resolve({}, kTorchrun).value();
  EXPECT_EQ(launched.rank, 1);
  EXPECT_EQ(launched.size, 4);
  EXPECT_EQ(launched.host, "127.0.0.1");
  EXPECT_EQ(launched.ports.size(), kCandidatePorts);
  EXPECT_EQ(launched.ports.front(), 29501);
  EnvironmentVariables environment = kTorchrun;
  environment["TUTTI_ROOT"] = "127.0.0.2:77";
  environment["TUTTI_JOB_ID"] = "mine";
  const auto rooted = resolve({}, environment).value();
  EXPECT_EQ(rooted.rank, 1);
  EXPECT_EQ(rooted.host, "127.0.0.2");
  EXPECT_EQ(rooted.ports, std::vector<std::uint16_t>{77});
  EXPECT_EQ(rooted.job_id, "mine");
  CommunicatorOptions options = ranks(2, 4);
  options.root = "[::1]:78";
  const auto given = resolve(options, environment).value();
  EXPECT_EQ(given.rank, 2);
  EXPECT_EQ(given.host, "::1");
  EXPECT_EQ(given.ports, std::vector<std::uint16_t>{78});
}

// The option `interface` selects a network, as the variable TUTTI_INTERFACE does. It does not say where rank 0 is, so
// an address or a unique id in the environment still counts.
TEST(Rendezvous, AnInterfaceIsNoRoot) {
  CommunicatorOptions options;
  options.interface = "lo";
  EnvironmentVariables launched = kTorchrun;
  launched["MASTER_ADDR"] = "127.0.0.9";
  const auto by_launcher = resolve(options, launched).value();
  EXPECT_EQ(by_launcher.host, "127.0.0.9");
  EXPECT_EQ(by_launcher.ports.front(), 29501);
  options = ranks(1, 2);
  options.interface = "lo";
  EXPECT_EQ(resolve(options, {{"TUTTI_ROOT", "127.0.0.9:77"}}).value().host, "127.0.0.9");
  EXPECT_EQ(resolve(options, {{"TUTTI_ROOT", ":77"}}).value().host, "127.0.0.1") << "the root has no host";
  const UniqueId id = UniqueId::create({.timeout = std::chrono::milliseconds(100)}).value();
  EXPECT_EQ(resolve(options, {{"TUTTI_UNIQUE_ID", id.to_text()}}).value().unique_id, id);
  EXPECT_EQ(resolve(options, {}).value().host, "127.0.0.1");
}

// A name may become resolvable only after a rank has started, so it is looked up later, while the ranks meet.
TEST(Rendezvous, NamesAreNotResolvedYet) {
  for (const char* name : {"late-0.svc", "rank-0.job.example.com"}) {
    EXPECT_EQ(resolve(ranks(1, 2), {{"TUTTI_ROOT", std::string(name) + ":77"}}).value().host, name);
    EnvironmentVariables launched = kTorchrun;
    launched["MASTER_ADDR"] = name;
    EXPECT_EQ(resolve({}, launched).value().host, name);
  }
  for (const char* wrong : {"two words:77", "a/b:77", "tab\t:77"}) {
    const auto refused = resolve(ranks(1, 2), {{"TUTTI_ROOT", wrong}});
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
    EXPECT_NE(refused.error().message.find("is neither a name nor an address"), std::string::npos)
        << refused.error().message;
  }
}

// A communicator with another size than the launcher's job is another job, so it does not use the launcher's
// address.
TEST(Rendezvous, TheLaunchersPlaceIsForItsOwnNumberOfRanks) {
  EXPECT_EQ(resolve(ranks(3, 4), kTorchrun).value().ports.front(), 29501);
  const auto other = resolve(ranks(1, 2), kTorchrun).value();
  EXPECT_EQ(other.ports, std::vector<std::uint16_t>{kDefaultPort});
  EXPECT_EQ(other.job_id, "default");
}

TEST(Rendezvous, ThePortRangeHoldsWhereNoPortIsGiven) {
  const EnvironmentVariables range = {{"TUTTI_PORT_RANGE", "30000-30002"}, {"TUTTI_ROOT", "127.0.0.1"}};
  const auto ports = resolve(ranks(0, 2), range).value().ports;
  ASSERT_EQ(ports.size(), 3u);
  for (const std::uint16_t port : ports) EXPECT_TRUE(port >= 30000 && port <= 30002) << port;
  EXPECT_EQ(resolve(ranks(1, 2), range).value().ports, ports);
  CommunicatorOptions options = ranks(0, 2);
  options.root = "127.0.0.1:80";
  EXPECT_EQ(resolve(options, range).value().ports, std::vector<std::uint16_t>{80});
}

TEST(Rendezvous, WithoutAnythingTheErrorListsWhatWasLookedFor) {
  const auto none = resolve({}, {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  for (const char* word : {"CommunicatorOptions::size", "TUTTI_WORLD_SIZE", "torchrun", "Open MPI", "srun"}) {
    EXPECT_NE(none.error().message.find(word), std::string::npos) << none.error().message;
  }
  // An environment that cannot be interpreted affects only calls that need it.
  const EnvironmentVariables odd = {{"RANK", "x"}, {"WORLD_SIZE", "4"}};
  EXPECT_FALSE(resolve({}, odd).ok());
  EXPECT_TRUE(resolve(ranks(0, 2), odd).ok());
}

TEST(Rendezvous, OpenMpiOnSeveralMachinesWithoutAStoreNeedsARoot) {
  const EnvironmentVariables environment = {{"OMPI_COMM_WORLD_RANK", "1"},
                                            {"OMPI_COMM_WORLD_SIZE", "4"},
                                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                            {"OMPI_MCA_orte_hnp_uri", "1.0;tcp://127.0.0.1:44579"}};
  const auto refused = resolve({}, environment);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("TUTTI_ROOT"), std::string::npos) << refused.error().message;
  EnvironmentVariables rooted = environment;
  rooted["TUTTI_ROOT"] = "127.0.0.1:79";
  EXPECT_EQ(resolve({}, rooted).value().rank, 1);
}

TEST(Rendezvous, LongJobIdsOfLaunchersStayApart) {
  EnvironmentVariables environment = kTorchrun;
  environment["TORCHELASTIC_RUN_ID"] = std::string(300, 'a') + "1";
  const std::string one = resolve({}, environment).value().job_id;
  environment["TORCHELASTIC_RUN_ID"] = std::string(300, 'a') + "2";
  EXPECT_NE(one, resolve({}, environment).value().job_id);
  EXPECT_LE(one.size(), 128u);
  CommunicatorOptions options = ranks(0, 2);
  options.job_id = std::string(129, 'x');
  EXPECT_FALSE(resolve(options, {}).ok());
}

UniqueId an_id() { return UniqueId::create({.timeout = std::chrono::milliseconds(100)}).value(); }

TEST(UniqueId, TravelsAsBytesAndAsText) {
  const UniqueId id = an_id();
  EXPECT_EQ(UniqueId::from_text(id.to_text()).value(), id);
  EXPECT_NE(an_id(), id);
  const auto parts = unpack_unique_id(id).value();
  EXPECT_EQ(parts.address, "127.0.0.1");
  EXPECT_NE(parts.port, 0);
  EXPECT_EQ(parts.job_id.size(), 32u);
  const auto by_variable = resolve(ranks(0, 2), {{"TUTTI_UNIQUE_ID", id.to_text()}}).value();
  EXPECT_EQ(by_variable.unique_id, id);
}

TEST(UniqueId, GarbledOnesAreRefused) {
  const UniqueId id = an_id();
  for (std::size_t at = 0; at < id.bytes.size(); ++at) {
    UniqueId garbled = id;
    garbled.bytes[at] ^= std::byte{4};
    CommunicatorOptions options = ranks(0, 2);
    options.unique_id = garbled;
    const auto refused = resolve(options, {});
    ASSERT_FALSE(refused.ok()) << "byte " << at;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("unique id"), std::string::npos) << refused.error().message;
  }
  EXPECT_FALSE(UniqueId::from_text("").ok());
  EXPECT_FALSE(UniqueId::from_text(id.to_text().substr(1)).ok());
  EXPECT_FALSE(UniqueId::from_text("g" + id.to_text().substr(1)).ok());
  EXPECT_FALSE(UniqueId::from_text(std::string(256, '0')).ok());
}

TEST(UniqueId, StaysInItsPortsAndOnItsInterface) {
  const auto id = UniqueId::create(
      {.interface = "127.0.0.0/8", .first_port = 21000, .last_port = 21100, .timeout = std::chrono::milliseconds(100)});
  ASSERT_TRUE(id.ok()) << to_string(id.error());
  const std::uint16_t port = unpack_unique_id(*id).value().port;
  EXPECT_TRUE(port >= 21000 && port <= 21100) << port;
  const auto by_default = UniqueId::create({.timeout = std::chrono::milliseconds(100)});
  ASSERT_TRUE(by_default.ok()) << to_string(by_default.error());
  EXPECT_EQ(unpack_unique_id(*by_default).value().address, "127.0.0.1") << "no interface was selected";
  EXPECT_FALSE(UniqueId::create({.interface = "nosuch0"}).ok());
  EXPECT_FALSE(UniqueId::create({.first_port = 9, .last_port = 8}).ok());
  EXPECT_FALSE(UniqueId::create({.timeout = std::chrono::milliseconds(0)}).ok());
}

}  // namespace
}  // namespace tutti
