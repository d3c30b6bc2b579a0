// Tests of the settings that NCCL's environment variables produce, on a machine that the test makes up.
#include "nccl/environment/environment.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "nccl/environment/names.h"

namespace tutti::nccl {
namespace {

using Files = std::map<std::string, std::string>;

SystemAccess machine(Files files = {}) {
  return {.read_file = [files = std::move(files)](const std::string& path) -> std::optional<std::string> {
            const auto found = files.find(path);
            if (found == files.end()) return std::nullopt;
            return found->second;
          },
          .interfaces =
              [] {
                return Result(std::vector<InterfaceAddress>{
                    {"lo", "127.0.0.1"}, {"eth0", "10.0.0.1"}, {"eth1", "10.0.1.1"}, {"eth0", "fd00::1"}});
              }};
}

EnvironmentSettings settings_of(const EnvironmentVariables& environment, Files files = {}) {
  auto settings = read_settings(environment, machine(std::move(files)));
  EXPECT_TRUE(settings.ok()) << (settings.ok() ? "" : to_string(settings.error()));
  return settings.ok() ? *settings : EnvironmentSettings{};
}

std::string error_of(const EnvironmentVariables& environment) {
  const auto settings = read_settings(environment, machine());
  EXPECT_FALSE(settings.ok());
  if (settings.ok()) return {};
  EXPECT_EQ(settings.error().code, ErrorCode::kConfig);
  return settings.error().message;
}

// Returns the overlay as "NAME=VALUE ...".
std::string overlay_of(const EnvironmentVariables& environment) {
  std::string text;
  for (const auto& [name, value] : settings_of(environment).overlay) text += name + "=" + value + " ";
  return text;
}

// Returns the only sentence of a list. If there are more, the test fails and all of them are returned.
std::string only(const std::vector<std::string>& sentences) {
  EXPECT_EQ(sentences.size(), 1u);
  std::string text;
  for (const std::string& one : sentences) text += one + "\n";
  return text;
}

Algorithm algorithm_of(const EnvironmentSettings& settings, CollectiveKind kind) {
  return settings.algorithms[static_cast<std::size_t>(kind)];
}

TEST(EnvironmentVariables, NothingSetChangesNothing) {
  const auto settings = settings_of({{"PATH", "/bin"}, {"NCCL_DEBUG", ""}, {"NCCL_IB_HCA", ""}});
  EXPECT_TRUE(settings.overlay.empty());
  EXPECT_TRUE(settings.ignored.empty());
  EXPECT_TRUE(settings.warnings.empty());
  EXPECT_FALSE(settings.blocking || settings.min_ctas || settings.max_ctas || settings.prints_version);
  EXPECT_EQ(settings.version, 23203);
  for (const Algorithm algorithm : settings.algorithms) EXPECT_EQ(algorithm, Algorithm::kAuto);
}

TEST(EnvironmentVariables, EveryOverlayIsAConfigThatTuttiTakes) {
  const auto settings = settings_of({{"NCCL_DEBUG", "trace"},
                                     {"NCCL_SOCKET_IFNAME", "eth"},
                                     {"NCCL_PROTO", "LL"},
                                     {"NCCL_SHM_DISABLE", "1"},
                                     {"NCCL_P2P_DISABLE", "1"},
                                     {"NCCL_BUFFSIZE", "1048577"},
                                     {"NCCL_NTHREADS", "256"},
                                     {"NCCL_MAX_CTAS", "8"},
                                     {"NCCL_RUN_DIAGNOSTICS", "1"},
                                     {"NCCL_HOSTID", std::string(100, 'h')}});
  EXPECT_TRUE(settings.warnings.empty());
  const auto config = parse_config(settings.overlay);
  ASSERT_TRUE(config.ok()) << to_string(config.error());
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->interface, "10.0.0.1,10.0.1.1,fd00::1");
  EXPECT_EQ(config->device_protocol, DeviceProtocol::kLl);
  EXPECT_EQ(config->transport, TransportPolicy::kTcp);
  EXPECT_EQ(config->device_calls, DevicePolicy::kStaged);
  EXPECT_EQ(config->slot_bytes, 262144u);
  EXPECT_EQ(config->device_slot_bytes, 262144u);
  EXPECT_EQ(config->device_threads, 256u);
  EXPECT_EQ(config->device_blocks, 8u);
  EXPECT_TRUE(config->selftest);
  EXPECT_EQ(config->node_id.size(), 16u) << "a long id is hashed";
}

TEST(EnvironmentVariables, DebugLevelsBecomeLogLevels) {
  EXPECT_EQ(overlay_of({{"NCCL_DEBUG", "VERSION"}}), "TUTTI_LOG=error ");
  EXPECT_EQ(overlay_of({{"NCCL_DEBUG", "warn"}}), "TUTTI_LOG=warn ");
  EXPECT_EQ(overlay_of({{"NCCL_DEBUG", "Info"}}), "TUTTI_LOG=info ");
  EXPECT_EQ(overlay_of({{"NCCL_DEBUG", "NONE"}}), "TUTTI_LOG=off ");
  EXPECT_TRUE(settings_of({{"NCCL_DEBUG", "WARN"}}).prints_version);
  EXPECT_FALSE(settings_of({{"NCCL_DEBUG", "NONE"}}).prints_version);
  const auto wrong = settings_of({{"NCCL_DEBUG", "LOUD"}});
  EXPECT_TRUE(wrong.overlay.empty());
  EXPECT_NE(only(wrong.warnings).find("warn, stays"), std::string::npos);
}

TEST(EnvironmentVariables, InterfacesAreLookedUpAmongThoseThatThereAre) {
  EXPECT_EQ(overlay_of({{"NCCL_SOCKET_IFNAME", "=eth1"}}), "TUTTI_INTERFACE=10.0.1.1 ");
  EXPECT_EQ(overlay_of({{"NCCL_SOCKET_IFNAME", "eth"}, {"NCCL_SOCKET_FAMILY", "AF_INET6"}}),
            "TUTTI_INTERFACE=fd00::1 ");
  EXPECT_EQ(overlay_of({{"NCCL_SOCKET_FAMILY", "AF_INET"}}), "TUTTI_INTERFACE=10.0.0.1,10.0.1.1 ")
      << "loopback is used only if there is no other interface";
  EXPECT_NE(error_of({{"NCCL_SOCKET_IFNAME", "ib"}}).find("there are: lo (127.0.0.1), eth0 (10.0.0.1)"),
            std::string::npos);
  SystemAccess only_ipv6 = machine();
  only_ipv6.interfaces = [] { return Result(std::vector<InterfaceAddress>{{"lo", "::1"}}); };
  const auto none = read_settings({{"NCCL_SOCKET_FAMILY", "AF_INET"}}, only_ipv6);
  ASSERT_FALSE(none.ok());
  EXPECT_TRUE(none.error().message.starts_with("NCCL_SOCKET_FAMILY=AF_INET: ")) << none.error().message;
  const auto wrong = settings_of({{"NCCL_SOCKET_FAMILY", "inet"}});
  EXPECT_TRUE(wrong.overlay.empty());
  EXPECT_NE(only(wrong.warnings).find("both are used"), std::string::npos);
}

TEST(EnvironmentVariables, InterfacesAreNotAskedForWithoutNeed) {
  SystemAccess host_access = machine();
  host_access.interfaces = []() -> Result<std::vector<InterfaceAddress>> {
    ADD_FAILURE() << "the interfaces must not be listed";
    return Error{};
  };
  EXPECT_TRUE(read_settings({{"NCCL_DEBUG", "WARN"}}, host_access).ok());
}

TEST(EnvironmentVariables, ALongListOfInterfacesIsCutWhereTuttiTakesNoMore) {
  SystemAccess host_access = machine();
  host_access.interfaces = [] {
    std::vector<InterfaceAddress> many;
    for (int i = 0; i < 100; ++i) many.push_back({"eth" + std::to_string(i), "192.168.100." + std::to_string(100 + i)});
    return Result(many);
  };
  const auto settings = read_settings({{"NCCL_SOCKET_IFNAME", "eth"}}, host_access);
  ASSERT_TRUE(settings.ok());
  EXPECT_TRUE(parse_config(settings->overlay).ok());
  EXPECT_TRUE(settings->overlay.at(0).second.starts_with("192.168.100.100,192.168.100.101,"));
}

TEST(EnvironmentVariables, CommIdIsAPlaceOrRefused) {
  EXPECT_EQ(settings_of({{"NCCL_COMM_ID", "[fd00::1]:77"}}).root, "[fd00::1]:77");
  EXPECT_NE(error_of({{"NCCL_COMM_ID", "somewhere"}}).find("host:port"), std::string::npos);
}

TEST(EnvironmentVariables, AlgorithmsThatBothHaveAreTaken) {
  const auto tree = settings_of({{"NCCL_ALGO", "Tree"}});
  EXPECT_EQ(algorithm_of(tree, CollectiveKind::kAllReduce), Algorithm::kDoubleTree);
  EXPECT_EQ(algorithm_of(tree, CollectiveKind::kAllGather), Algorithm::kAuto);
  EXPECT_TRUE(tree.warnings.empty());
  const auto ring = settings_of({{"NCCL_ALGO", "^tree,pat"}});
  EXPECT_EQ(algorithm_of(ring, CollectiveKind::kAllReduce), Algorithm::kRing);
  EXPECT_EQ(algorithm_of(ring, CollectiveKind::kReduceScatter), Algorithm::kRing);
  EXPECT_EQ(algorithm_of(ring, CollectiveKind::kBroadcast), Algorithm::kAuto) << "NCCL has only one algorithm for it";
  const auto mixed = settings_of({{"NCCL_ALGO", "allreduce:tree;allgather:pat,nvls"}});
  EXPECT_EQ(algorithm_of(mixed, CollectiveKind::kAllReduce), Algorithm::kDoubleTree);
  EXPECT_EQ(algorithm_of(mixed, CollectiveKind::kAllGather), Algorithm::kCirculant);
  EXPECT_EQ(algorithm_of(mixed, CollectiveKind::kReduceScatter), Algorithm::kAuto);
}

TEST(EnvironmentVariables, WithAllAlgorithmsOfTuttiLeftItChooses) {
  for (const char* text : {"^NVLS", "^NVLS,NVLSTree,CollNetChain", "ring,tree,pat", "allreduce:ring,tree"}) {
    const auto settings = settings_of({{"NCCL_ALGO", text}});
    EXPECT_EQ(algorithm_of(settings, CollectiveKind::kAllReduce), Algorithm::kAuto) << text;
    EXPECT_TRUE(settings.warnings.empty()) << text;
  }
}

TEST(EnvironmentVariables, AnAlgorithmThatTuttiLacksIsWarnedOf) {
  EXPECT_NE(only(settings_of({{"NCCL_ALGO", "nvls,collnetdirect"}}).warnings).find("no algorithm that Tutti has"),
            std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_ALGO", "ring;allreduce:nvls"}}).warnings).find("leaves AllReduce with no"),
            std::string::npos);
  EXPECT_NE(error_of({{"NCCL_ALGO", "rnig"}}).find("\"rnig\" is none of Tree, Ring"), std::string::npos);
}

TEST(EnvironmentVariables, AnExcludedProtocolIsNeverTaken) {
  EXPECT_EQ(overlay_of({{"NCCL_PROTO", "ll128"}}), "TUTTI_DEVICE_PROTOCOL=ll128 ");
  EXPECT_EQ(overlay_of({{"NCCL_PROTO", "LL,LL128,Simple"}}), "");
  const auto without = settings_of({{"NCCL_PROTO", "^LL128"}});
  EXPECT_EQ(without.overlay, (Variables{{"TUTTI_DEVICE_PROTOCOL", "simple"}}));
  EXPECT_NE(only(without.warnings).find("holds to one, simple"), std::string::npos);
  EXPECT_EQ(overlay_of({{"NCCL_PROTO", "^Simple"}}), "TUTTI_DEVICE_PROTOCOL=ll128 ");
  EXPECT_EQ(overlay_of({{"NCCL_PROTO", "LL,Simple;allreduce:LL"}}), "TUTTI_DEVICE_PROTOCOL=ll ");
  const auto none = settings_of({{"NCCL_PROTO", "Simple;allreduce:LL"}});
  EXPECT_TRUE(none.overlay.empty());
  EXPECT_NE(only(none.warnings).find("serves every function"), std::string::npos);
}

TEST(EnvironmentVariables, PeerAccessThatIsForbiddenGoesOverTheHost) {
  EXPECT_EQ(overlay_of({{"NCCL_P2P_DISABLE", "0"}}), "");
  EXPECT_EQ(overlay_of({{"NCCL_P2P_LEVEL", "LOC"}}), "TUTTI_DEVICE_CALLS=staged ");
  EXPECT_EQ(overlay_of({{"NCCL_P2P_LEVEL", "0"}}), "TUTTI_DEVICE_CALLS=staged ");
  EXPECT_NE(only(settings_of({{"NCCL_P2P_LEVEL", "NVL"}}).ignored).find("asks the driver"), std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_P2P_LEVEL", "nvl"}}).warnings).find("none of LOC, NVL"), std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_SHM_DISABLE", "yes"}}).warnings).find("0 is taken"), std::string::npos);
}

TEST(EnvironmentVariables, NetworksOtherThanSocketsAreWarnedOf) {
  EXPECT_TRUE(settings_of({{"NCCL_NET", "socket"}}).warnings.empty());
  EXPECT_EQ(settings_of({{"NCCL_NET", "socket"}}).overlay, (Variables{{"TUTTI_RDMA_DEVICES", "none"}}));
  EXPECT_TRUE(settings_of({{"NCCL_NET", "IB"}}).warnings.empty());
  EXPECT_NE(only(settings_of({{"NCCL_NET", "ofi"}}).warnings).find("only IB and Socket"), std::string::npos);
}

TEST(EnvironmentVariables, SizesAreHeldToWhatTuttiTakes) {
  EXPECT_EQ(overlay_of({{"NCCL_BUFFSIZE", "0x100000"}, {"TUTTI_SLOTS", "8"}}),
            "TUTTI_SLOT_BYTES=131072 TUTTI_DEVICE_SLOT_BYTES=131072 ");
  const auto small = settings_of({{"NCCL_BUFFSIZE", "1024"}});
  EXPECT_NE(only(small.warnings).find("16384 is taken"), std::string::npos);
  EXPECT_TRUE(parse_config(small.overlay).ok());
  EXPECT_NE(only(settings_of({{"NCCL_BUFFSIZE", "4M"}}).warnings).find("the default is taken"), std::string::npos);
  const auto threads = settings_of({{"NCCL_NTHREADS", "100"}});
  EXPECT_EQ(threads.overlay, (Variables{{"TUTTI_DEVICE_THREADS", "512"}}));
  EXPECT_NE(only(threads.warnings).find("512 is taken"), std::string::npos);
  EXPECT_EQ(threads.taken.at(0).number, 512);
}

TEST(EnvironmentVariables, OfCtasAndChannelsTheStricterCounts) {
  const auto both = settings_of({{"NCCL_MAX_CTAS", "24"}, {"NCCL_MAX_NCHANNELS", "12"}, {"NCCL_MIN_NCHANNELS", "2"}});
  EXPECT_EQ(both.max_ctas, 12);
  EXPECT_EQ(both.min_ctas, 2);
  EXPECT_EQ(both.overlay, (Variables{{"TUTTI_DEVICE_BLOCKS", "12"}}));
  EXPECT_EQ(settings_of({{"NCCL_MIN_CTAS", "4"}, {"NCCL_MIN_NRINGS", "6"}}).min_ctas, 6);
  EXPECT_EQ(settings_of({{"NCCL_MAX_NRINGS", "2"}, {"NCCL_MAX_NCHANNELS", "6"}}).max_ctas, 6)
      << "the smaller of two aliases counts";
  EXPECT_EQ(overlay_of({{"NCCL_MIN_CTAS", "32"}}), "TUTTI_DEVICE_BLOCKS=32 ");
  EXPECT_EQ(overlay_of({{"NCCL_MIN_CTAS", "8"}}), "") << "Tutti's own limit is high enough";
  EXPECT_EQ(settings_of({{"NCCL_MAX_CTAS", "100"}}).max_ctas, 64);
  const auto crossed = settings_of({{"NCCL_MIN_CTAS", "8"}, {"NCCL_MAX_CTAS", "4"}});
  EXPECT_FALSE(crossed.min_ctas || crossed.max_ctas);
  EXPECT_NE(only(crossed.warnings).find("neither is taken"), std::string::npos);
}

TEST(EnvironmentVariables, BlockingIsZeroOrOne) {
  EXPECT_EQ(settings_of({{"NCCL_COMM_BLOCKING", "0"}}).blocking, false);
  EXPECT_EQ(settings_of({{"NCCL_COMM_BLOCKING", "1"}}).blocking, true);
  const auto wrong = settings_of({{"NCCL_COMM_BLOCKING", "2"}});
  EXPECT_EQ(wrong.blocking, std::nullopt);
  EXPECT_EQ(wrong.warnings.size(), 1u);
}

TEST(EnvironmentVariables, TheReportedVersionIsTuttis) {
  EXPECT_EQ(settings_of({{"TUTTI_NCCL_VERSION", "2.28.9"}}).version, 22809);
  EXPECT_NE(error_of({{"TUTTI_NCCL_VERSION", "new"}}).find("TUTTI_NCCL_VERSION"), std::string::npos);
}

TEST(EnvironmentVariables, TheEnvironmentWinsOverTheUsersFileAndThatOverTheMachines) {
  const Files files = {{"/u/.nccl.conf", "NCCL_DEBUG=INFO\nNCCL_HOSTID=user\nNCCL_MAX_CTAS=5\n"},
                       {"/etc/nccl.conf", "NCCL_HOSTID=machine\nNCCL_MIN_CTAS=2\nOTHER=1\n"},
                       {"/c", "NCCL_DEBUG=TRACE\n"}};
  const auto settings = settings_of({{"HOME", "/u"}, {"NCCL_DEBUG", "WARN"}}, files);
  EXPECT_EQ(settings.overlay,
            (Variables{{"TUTTI_LOG", "warn"}, {"TUTTI_DEVICE_BLOCKS", "5"}, {"TUTTI_NODE_ID", "user"}}));
  EXPECT_EQ(settings.min_ctas, 2);
  EXPECT_NE(only(settings.warnings).find("/etc/nccl.conf sets OTHER"), std::string::npos);
  const auto named = settings_of({{"HOME", "/u"}, {"NCCL_CONF_FILE", "/c"}}, files);
  EXPECT_EQ(named.overlay, (Variables{{"TUTTI_LOG", "debug"}, {"TUTTI_NODE_ID", "machine"}}))
      << "the named file replaces the one in the home directory";
  EXPECT_NE(only(settings_of({{"NCCL_CONF_FILE", "/none"}}, {}).warnings).find("cannot be read"), std::string::npos);
}

TEST(EnvironmentVariables, CardsAreChosenAndSetAsForNccl) {
  EXPECT_EQ(settings_of({{"NCCL_IB_HCA", "mlx5_0:1,ib"}}).overlay,
            (Variables{{"TUTTI_RDMA_DEVICES", "mlx5_0*:1,ib*"}}));
  EXPECT_EQ(settings_of({{"NCCL_IB_HCA", "=mlx5_0,mlx5_3:2"}}).overlay,
            (Variables{{"TUTTI_RDMA_DEVICES", "mlx5_0,mlx5_3:2"}}));
  EXPECT_EQ(settings_of({{"NCCL_IB_HCA", "^=mlx5_0,,"}}).overlay, (Variables{{"TUTTI_RDMA_DEVICES", "^mlx5_0"}}));
  EXPECT_EQ(settings_of({{"NCCL_IB_HCA", "mlx5"}, {"NCCL_IB_DISABLE", "1"}}).overlay,
            (Variables{{"TUTTI_RDMA_DEVICES", "none"}}));
  EXPECT_EQ(settings_of({{"NCCL_IB_GID_INDEX", "-1"}}).overlay, Variables{});
  EXPECT_EQ(settings_of({{"NCCL_IB_GID_INDEX", "3"},
                         {"NCCL_IB_QPS_PER_CONNECTION", "4"},
                         {"NCCL_IB_TIMEOUT", "22"},
                         {"NCCL_IB_RETRY_CNT", "9"},
                         {"NCCL_IB_SL", "3"},
                         {"NCCL_IB_TC", "106"}})
                .overlay,
            (Variables{{"TUTTI_RDMA_GID_INDEX", "3"},
                       {"TUTTI_RDMA_QUEUE_PAIRS", "4"},
                       {"TUTTI_RDMA_TIMEOUT", "22"},
                       {"TUTTI_RDMA_RETRIES", "7"},
                       {"TUTTI_RDMA_SERVICE_LEVEL", "3"},
                       {"TUTTI_RDMA_TRAFFIC_CLASS", "106"}}));
}

TEST(EnvironmentVariables, PluginsForTunersAndProfilersAreTakenAndOthersRefusedWithTheReason) {
  const auto settings = settings_of({{"NCCL_TUNER_PLUGIN", "mine"},
                                     {"NCCL_PROFILER_PLUGIN", "none"},
                                     {"NCCL_NET_PLUGIN", "none"},
                                     {"NCCL_TUNER_CONFIG_FILE", "t.conf"},
                                     {"NCCL_PROFILE_EVENT_MASK", "6"},
                                     {"NCCL_INSPECTOR_ENABLE", "1"}});
  EXPECT_EQ(settings.tuner_plugin, "mine");
  EXPECT_EQ(settings.profiler_plugin, "none");
  EXPECT_TRUE(settings.ignored.empty()) << settings.ignored.front();
  EXPECT_EQ(settings.taken.size(), 2u);
  EXPECT_FALSE(settings_of({}).tuner_plugin || settings_of({}).profiler_plugin);
  EXPECT_NE(only(settings_of({{"NCCL_NET_PLUGIN", "ofi"}}).ignored).find("loads no net plugins: its transports also"),
            std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_ENV_PLUGIN", "x"}}).ignored).find("loads no environment plugins"),
            std::string::npos);
}

TEST(EnvironmentVariables, WhatTunersMayUseIsKeptAsBits) {
  const auto settings = settings_of({{"NCCL_ALGO", "ring,tree;allgather:^ring"}, {"NCCL_PROTO", "^LL"}});
  EXPECT_EQ(settings.allowed_algorithms, (AllowedBits{0b11, 0b11, 0b1111101, 0b11, 0b11}));
  EXPECT_EQ(settings.allowed_protocols, all_allowed(0b110));
  EXPECT_EQ(settings_of({}).allowed_algorithms, all_allowed(0b1111111));
  EXPECT_EQ(settings_of({}).allowed_protocols, all_allowed(0b111));
}

TEST(EnvironmentVariables, WhatHasNoEffectIsSaidOnceWithItsReason) {
  EXPECT_NE(only(settings_of({{"NCCL_IB_PKEY", "1"}}).ignored).find("NCCL_IB_PKEY=1 has no effect: Tutti's verbs"),
            std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_TOPO_FILE", "/t.xml"}}).ignored).find("topology"), std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_DEBUG_FILE", "/log"}}).ignored).find("standard error"), std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_SOKET_IFNAME", "eth0"}}).ignored).find("did you mean NCCL_SOCKET_IFNAME?"),
            std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_QUITE_ANOTHER_THING", "1"}}).ignored).find("knows no such variable"),
            std::string::npos);
  EXPECT_NE(only(settings_of({{"NCCL_WORK_ARGS_BYTES", "1"}}).ignored).find("nothing that it could set"),
            std::string::npos);
  const auto filed = settings_of({}, {{"/etc/nccl.conf", "NCCL_IB_PKEY=22\n"}});
  EXPECT_NE(only(filed.ignored).find("(in /etc/nccl.conf)"), std::string::npos);
}

TEST(EnvironmentVariables, WhatTuttiDoesAnywayAndWhatOthersReadIsNotReported) {
  const auto settings = settings_of({{"NCCL_DMABUF_ENABLE", "0"},
                                     {"NCCL_NVLS_ENABLE", "0"},
                                     {"NCCL_CUMEM_ENABLE", "0"},
                                     {"NCCL_LAUNCH_MODE", "parallel"},
                                     {"NCCL_CHECK_POINTERS", "1"},
                                     {"NCCL_VERSION", "2.28.9"},
                                     {"NCCL_ROOT", "/usr"},
                                     {"NCCL_BLOCKING_WAIT", "1"},
                                     {"NCCL_TESTS_DEVICE", "0"}});
  EXPECT_TRUE(settings.ignored.empty()) << settings.ignored.front();
  EXPECT_TRUE(settings.warnings.empty());
  EXPECT_EQ(settings_of({{"NCCL_DMABUF_ENABLE", "1"}, {"NCCL_CUMEM_ENABLE", "1"}}).ignored.size(), 2u);
}

TEST(EnvironmentVariables, TheReportNamesWhatIsIgnoredAndGivesReasonsWhenAsked) {
  const auto settings =
      settings_of({{"NCCL_DEBUG", "VERSION"}, {"NCCL_IB_PKEY", "1"}, {"NCCL_TOPO_FILE", "t"}, {"NCCL_NTHREADS", "x"}});
  testing::internal::CaptureStderr();
  report(settings, Log(LogLevel::kWarn, 3));
  const std::string brief = testing::internal::GetCapturedStderr();
  EXPECT_NE(brief.find("NCCL's interface 2.32.3"), std::string::npos) << brief;
  EXPECT_NE(brief.find("tutti[3]: warn: NCCL_NTHREADS=\"x\""), std::string::npos) << brief;
  EXPECT_NE(brief.find("without effect in Tutti: NCCL_IB_PKEY, NCCL_TOPO_FILE (NCCL_DEBUG=INFO"), std::string::npos);
  EXPECT_EQ(brief.find("verbs transport"), std::string::npos) << brief;
  testing::internal::CaptureStderr();
  report(settings, Log(LogLevel::kInfo, 3));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("verbs transport"), std::string::npos);
  testing::internal::CaptureStderr();
  report(settings_of({}), Log(LogLevel::kDebug, 0));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(EnvironmentVariables, TakenVariablesCarryTheValueThatCounts) {
  const auto settings = settings_of({{"NCCL_DEBUG", "info"}, {"NCCL_MAX_CTAS", "0x8"}, {"NCCL_SHM_DISABLE", "1"}});
  std::map<std::string, std::string> taken;
  for (const TakenVariable& one : settings.taken) taken[one.name] = one.text;
  EXPECT_EQ(taken, (std::map<std::string, std::string>{
                       {"NCCL_DEBUG", "INFO"}, {"NCCL_MAX_CTAS", "8"}, {"NCCL_SHM_DISABLE", "1"}}));
}

TEST(EnvironmentVariables, TheDocsHaveEveryMappedVariable) {
  std::ifstream file(TUTTI_SOURCE_DIR "/docs/nccl-environment.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string content = text.str();
  const std::string mapped = content.substr(0, content.find("## Without effect"));
  std::set<std::string> documented;
  const std::regex name(R"(`(NCCL_[A-Z0-9_]+)`)");
  for (std::sregex_iterator match(mapped.begin(), mapped.end(), name), end; match != end; ++match) {
    documented.insert((*match)[1]);
  }
  std::set<std::string> names;
  for (const std::string_view one : mapped_names()) names.emplace(one);
  EXPECT_EQ(documented, names);
}

}  // namespace
}  // namespace tutti::nccl
