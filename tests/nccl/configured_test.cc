// Tests of calls with a configuration (nccl...Config) and of ncclSetEncryption(), through the library as programs use
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "nccl/ranks.h"

namespace tutti::nccl_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kCount = 3000;

ncclCollConfig_t fresh() {
  const ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  return config;
}

// A configuration with one option of Tutti.
struct WithOption {
  explicit WithOption(tuttiNcclOption_t id, int value) {
    option.key.vendorId = TUTTI_NCCL_VENDOR_ID;
    option.key.optionId = id;
    option.val.i = value;
    config.ext = &option;
  }
  WithOption(const WithOption&) = delete;
  WithOption& operator=(const WithOption&) = delete;

  ncclConfigExt_t option{};
  ncclCollConfig_t config = fresh();
};

std::vector<float> input_of(int rank, std::size_t elements) {
  std::vector<float> made(elements);
  std::iota(made.begin(), made.end(), static_cast<float>(rank * 100));
  return made;
}

using Call = ncclResult_t (*)(const float* in, float* out, int ranks, ncclComm_t comm, const ncclCollConfig_t* config);

// The functions without and with a configuration, with the same arguments.
struct Twins {
  const char* name;
  Call plain;
  Call configured;
};
#define TUTTI_TWINS(function, ...)                                                                      \
  Twins {                                                                                               \
#function,                                                                                            \
        [](const float* in, float* out, int ranks, ncclComm_t comm, const ncclCollConfig_t*) {            \
          const std::size_t block = kCount / static_cast<std::size_t>(ranks);                             \
          static_cast<void>(block);                                                                       \
          return function(in, out, __VA_ARGS__, comm, nullptr);                                           \
        },                                                                                                \
        [](const float* in, float* out, int ranks, ncclComm_t comm, const ncclCollConfig_t* config) {     \
          const std::size_t block = kCount / static_cast<std::size_t>(ranks);                             \
          static_cast<void>(block);                                                                       \
          return function##Config(in, out, __VA_ARGS__, comm, nullptr, config);                           \
        } \
  }
const Twins kTwins[] = {
    TUTTI_TWINS(ncclAllReduce, kCount, ncclFloat, ncclMax),
    TUTTI_TWINS(ncclBroadcast, kCount, ncclFloat, 1),
    TUTTI_TWINS(ncclReduce, kCount, ncclFloat, ncclSum, 2),
    TUTTI_TWINS(ncclAllGather, block, ncclFloat),
    TUTTI_TWINS(ncclReduceScatter, block, ncclFloat, ncclSum),
    TUTTI_TWINS(ncclAlltoAll, block, ncclFloat),
    TUTTI_TWINS(ncclGather, block, ncclFloat, 1),
    TUTTI_TWINS(ncclScatter, block, ncclFloat, 1),
};

std::string same_results(ncclComm_t comm, int rank, int ranks, const ncclCollConfig_t* config) {
  for (const Twins& twins : kTwins) {
    const std::vector<float> in = input_of(rank, kCount);
    std::vector<float> plain(kCount, -1), configured(kCount, -1);
    TUTTI_NCCL_TRY(twins.plain(in.data(), plain.data(), ranks, comm, nullptr));
    TUTTI_NCCL_TRY(twins.configured(in.data(), configured.data(), ranks, comm, config));
    if (plain != configured) return std::string(twins.name) + "Config gives another result";
    TUTTI_NCCL_TRY(ncclGroupStart());
    std::vector<float> grouped(kCount, -1);
    TUTTI_NCCL_TRY(twins.configured(in.data(), grouped.data(), ranks, comm, config));
    std::vector<float> beside(kCount, -1);
    TUTTI_NCCL_TRY(twins.plain(in.data(), beside.data(), ranks, comm, nullptr));
    TUTTI_NCCL_TRY(ncclGroupEnd());
    if (plain != grouped || plain != beside) return std::string(twins.name) + "Config gives another result in a group";
  }
  return {};
}

TEST(ConfiguredCalls, GiveTheResultsOfThePlainOnes) {
  as_threads(4, [](ncclComm_t comm, int rank, int ranks) {
    const ncclCollConfig_t config = fresh();
    for (const ncclCollConfig_t* given : {&config, static_cast<const ncclCollConfig_t*>(nullptr)}) {
      if (std::string wrong = same_results(comm, rank, ranks, given); !wrong.empty()) return wrong;
    }
    return std::string();
  });
}

TEST(ConfiguredCalls, SayWhatTheyCannotDo) {
  as_threads(1, [](ncclComm_t comm, int, int) -> std::string {
    float value = 1;
    ncclCollConfig_t config = fresh();
    config.algSelection = "nvls";
    TUTTI_NCCL_WANT(ncclAllReduceConfig(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr, &config) ==
                    ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("ncclAllReduceConfig: ncclCollConfig_t: algSelection \"nvls\""));
    config.forceAlgSelection = 0;
    TUTTI_NCCL_TRY(ncclAllReduceConfig(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr, &config));
    config = fresh();
    config.launchCompletionEvent = reinterpret_cast<cudaEvent_t>(&value);
    TUTTI_NCCL_WANT(ncclBroadcastConfig(&value, &value, 1, ncclFloat, 0, comm, nullptr, &config) ==
                    ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("launchCompletionEvent is given, but the call is on host memory"));
    std::memset(&config, 0, sizeof(config));
    TUTTI_NCCL_WANT(ncclScatterConfig(&value, &value, 1, ncclFloat, 0, comm, nullptr, &config) == ncclInvalidArgument);
    return {};
  });
}

// The algorithm of the option is used: if ranks name different ones, the error names the argument.
TEST(ConfiguredCalls, UseTheAlgorithmOfTheOption) {
  as_threads(2, [](ncclComm_t comm, int rank, int) -> std::string {
    WithOption named(tuttiNcclAlgorithm, 0);
    named.option.val.s = rank == 0 ? "ring" : "halving_doubling";
    std::vector<float> data(kCount);
    const auto call = [&] {
      return ncclAllReduceConfig(data.data(), data.data(), kCount, ncclFloat, ncclSum, comm, nullptr, &named.config);
    };
    TUTTI_NCCL_WANT(call() == ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("algorithm"));
    named.option.val.s = "halving_doubling";
    TUTTI_NCCL_TRY(call());
    return {};
  });
}

TEST(ConfiguredCalls, EndAtTheDeadlineOfTheOption) {
  std::atomic<bool> over = false;
  as_threads(2, [&](ncclComm_t comm, int rank, int) -> std::string {
    if (rank == 1) {
      EXPECT_TRUE(test::eventually([&] { return over.load(); }));
      return {};
    }
    const WithOption soon(tuttiNcclDeadlineMs, 50);
    std::vector<float> data(kCount);
    const ncclResult_t result =
        ncclAllReduceConfig(data.data(), data.data(), kCount, ncclFloat, ncclSum, comm, nullptr, &soon.config);
    const std::string message = ncclGetLastError(nullptr);
    over = true;
    EXPECT_EQ(result, ncclTimeout) << message;
    EXPECT_THAT(message, HasSubstr("rank 1"));
    return {};
  });
}

// Rank 1 passes another count. The root of a broadcast needs nothing from the others, so without the option its call
// may succeed.
TEST(ConfiguredCalls, HaveOneOutcomeIfTheOptionAsks) {
  setenv("TUTTI_UNIFORM", "calls", 1);
  as_threads(2, [](ncclComm_t comm, int rank, int) -> std::string {
    const WithOption uniform(tuttiNcclUniform, 1);
    std::vector<float> data(kCount, static_cast<float>(rank));
    const auto call = [&](std::size_t count) {
      return ncclBroadcastConfig(data.data(), data.data(), count, ncclFloat, 0, comm, nullptr, &uniform.config);
    };
    TUTTI_NCCL_WANT(call(rank == 0 ? kCount : kCount - 1) != ncclSuccess);
    TUTTI_NCCL_TRY(call(kCount));
    TUTTI_NCCL_WANT(data == std::vector<float>(kCount, 0));
    return {};
  });
  unsetenv("TUTTI_UNIFORM");
}

// In the second call rank 0 asks for checksums, and is in the barrier when rank 1 is in the broadcast: a mismatch.
TEST(ConfiguredCalls, HaveChecksumsIfTheOptionAsks) {
  as_threads(2, [](ncclComm_t comm, int rank, int) -> std::string {
    WithOption checked(tuttiNcclChecksum, 1);
    std::vector<float> data(kCount, static_cast<float>(rank));
    const auto call = [&](const ncclCollConfig_t* config) {
      return ncclBroadcastConfig(data.data(), data.data(), kCount, ncclFloat, 0, comm, nullptr, config);
    };
    TUTTI_NCCL_TRY(call(&checked.config));
    TUTTI_NCCL_WANT(data == std::vector<float>(kCount, 0));
    TUTTI_NCCL_WANT(call(rank == 0 ? &checked.config : nullptr) == ncclInvalidUsage);
    if (rank == 0) {
      TUTTI_NCCL_WANT(std::strstr(ncclGetLastError(nullptr), "the barrier of a call with a checksum") != nullptr);
    }
    TUTTI_NCCL_TRY(ncclGroupStart());
    TUTTI_NCCL_TRY(call(nullptr));
    TUTTI_NCCL_TRY(call(&checked.config));
    TUTTI_NCCL_WANT(ncclGroupEnd() == ncclInvalidArgument);
    checked.option.val.i = 0;
    TUTTI_NCCL_TRY(call(&checked.config));
    return {};
  });
}

TEST(ConfiguredCalls, AreRefusedIfTheyCannotHaveOneOutcome) {
  as_threads(2, [](ncclComm_t comm, int, int) -> std::string {
    const WithOption uniform(tuttiNcclUniform, 1);
    float value = 1;
    const auto call = [&](const ncclCollConfig_t* config) {
      return ncclAllReduceConfig(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr, config);
    };
    TUTTI_NCCL_WANT(call(&uniform.config) == ncclInvalidArgument);
    TUTTI_NCCL_WANT(std::strstr(ncclGetLastError(nullptr), "TUTTI_UNIFORM=calls") != nullptr);
    TUTTI_NCCL_TRY(ncclGroupStart());
    TUTTI_NCCL_TRY(call(nullptr));
    TUTTI_NCCL_TRY(call(&uniform.config));
    TUTTI_NCCL_WANT(ncclGroupEnd() == ncclInvalidArgument);
    TUTTI_NCCL_WANT(std::strstr(ncclGetLastError(nullptr), "its group has other calls") != nullptr);
    TUTTI_NCCL_TRY(call(nullptr));
    TUTTI_NCCL_WANT(value == 2);
    return {};
  });
}

// The configurations of programs that were compiled with other versions of NCCL: shorter ones, and a longer one.
TEST(Configurations, OfOtherVersionsAreAccepted) {
  struct Version {
    unsigned number;
    std::size_t size;
  };
  for (const Version& version :
       {Version{21805, offsetof(ncclConfig_t, trafficClass)}, Version{22304, offsetof(ncclConfig_t, trafficClass)},
        Version{22705, offsetof(ncclConfig_t, nChannelsPerNetPeer)},
        Version{22809, offsetof(ncclConfig_t, graphUsageMode)},
        Version{23007, offsetof(ncclConfig_t, launchOrderImplicit)}, Version{23203, sizeof(ncclConfig_t)}}) {
    as_threads(2, [&](ncclComm_t comm, int rank, int) -> std::string {
      // Memory behind the shorter structure belongs to the program, and must not be read as fields.
      std::vector<std::byte> memory(sizeof(ncclConfig_t) + 64, std::byte{0x7f});
      const ncclConfig_t whole = NCCL_CONFIG_INITIALIZER;
      std::memcpy(memory.data(), &whole, version.size);
      auto* const config = reinterpret_cast<ncclConfig_t*>(memory.data());
      config->size = version.size;
      config->version = version.number;
      ncclComm_t child = nullptr;
      TUTTI_NCCL_TRY(ncclCommSplit(comm, 0, rank, &child, config));
      TUTTI_NCCL_TRY(ncclCommDestroy(child));
      config->size = memory.size();  // of a later version
      std::memcpy(memory.data() + version.size, reinterpret_cast<const std::byte*>(&whole) + version.size,
                  sizeof(whole) - version.size);
      TUTTI_NCCL_TRY(ncclCommSplit(comm, 0, rank, &child, config));
      TUTTI_NCCL_TRY(ncclCommDestroy(child));
      return {};
    });
  }
}

ncclEncryptionConfig_t encryption(const char* key) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  config.psk = key;
  return config;
}

TEST(Encryption, OfAWrongConfigurationIsRefused) {
  EXPECT_EQ(ncclSetEncryption(nullptr), ncclInvalidArgument);
  ncclEncryptionConfig_t config = encryption("0123456789abcdef");
  config.magic = 0;
  EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("NCCL_ENCRYPTION_CONFIG_INITIALIZER"));
  config = encryption("0123456789abcde");
  EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("has 15 characters: give 16 to 4096"));
  config = encryption(nullptr);
  EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
  config = encryption("0123456789abcdef");
  config.mode = 2;
  EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("mode 2"));
  config.size = sizeof(config) - 1;
  EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
}

// What a process does with its rank, an id that it can send to rank 1 or read from rank 0, and the pipe for that.
using MakeComm = std::string (*)(int rank, const std::array<int, 2>& ids, ncclComm_t* comm);

std::string pass_id(int rank, const std::array<int, 2>& ids, ncclUniqueId& id) {
  const bool passed =
      rank == 0 ? write(ids[1], &id, sizeof(id)) == sizeof(id) : read(ids[0], &id, sizeof(id)) == sizeof(id);
  return passed ? "" : "the id could not be passed";
}

std::string make_by_init(int rank, const std::array<int, 2>& ids, ncclComm_t* comm) {
  ncclUniqueId id{};
  if (rank == 0) TUTTI_NCCL_TRY(ncclGetUniqueId(&id));
  if (std::string wrong = pass_id(rank, ids, id); !wrong.empty()) return wrong;
  TUTTI_NCCL_TRY(ncclCommInitRank(comm, 2, id, rank));
  return {};
}

// Rank 0 has a communicator of its own, which grows by rank 1.
std::string make_by_growing(int rank, const std::array<int, 2>& ids, ncclComm_t* comm) {
  ncclUniqueId id{};
  if (rank == 1) {
    if (std::string wrong = pass_id(rank, ids, id); !wrong.empty()) return wrong;
    TUTTI_NCCL_TRY(ncclCommGrow(nullptr, 2, &id, 1, comm, nullptr));
    return {};
  }
  ncclComm_t alone = nullptr;
  TUTTI_NCCL_TRY(ncclGetUniqueId(&id));
  TUTTI_NCCL_TRY(ncclCommInitRank(&alone, 1, id, 0));
  TUTTI_NCCL_TRY(ncclCommGetUniqueId(alone, &id));
  if (std::string wrong = pass_id(rank, ids, id); !wrong.empty()) return wrong;
  TUTTI_NCCL_TRY(ncclCommGrow(alone, 2, &id, -1, comm, nullptr));
  TUTTI_NCCL_TRY(ncclCommDestroy(alone));
  return {};
}

std::string sum_of_ones(ncclComm_t comm) {
  std::vector<float> data(kCount, 1);
  TUTTI_NCCL_TRY(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat, ncclSum, comm, nullptr));
  TUTTI_NCCL_WANT(data == std::vector<float>(kCount, 2));
  TUTTI_NCCL_TRY(ncclCommDestroy(comm));
  return {};
}

// Runs two processes, whose ranks reach each other by TCP only. `key_of`: the pre-shared key of a rank; null: none.
// Returns whether each process made a communicator and summed with it. The error of a process that fails must name the
// key.
std::vector<bool> sums_with_keys(const std::function<const char*(int rank)>& key_of, MakeComm make = make_by_init) {
  std::array<int, 2> ids{-1, -1};
  EXPECT_EQ(pipe(ids.data()), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(100);
      setenv("TUTTI_TRANSPORT", "tcp", 1);
      const bool must_fail = key_of(0) != key_of(1);
      const auto limit = must_fail ? test::scaled(std::chrono::seconds(5)) : test::patience();
      setenv("TUTTI_SETUP_TIMEOUT_MS", std::to_string(std::chrono::milliseconds(limit).count()).c_str(), 1);
      if (key_of(rank) != nullptr) {
        const ncclEncryptionConfig_t config = encryption(key_of(rank));
        if (ncclSetEncryption(&config) != ncclSuccess) _exit(2);
      }
      ncclComm_t comm = nullptr;
      std::string wrong = make(rank, ids, &comm);
      if (wrong.empty()) wrong = sum_of_ones(comm);
      if (!wrong.empty()) std::fprintf(stderr, "rank %d: %s\n", rank, wrong.c_str());
      _exit(wrong.empty() ? 0 : wrong.find("key") != std::string::npos ? 1 : 2);
    }
    children.push_back(child);
  }
  for (const int end : ids) close(end);
  std::vector<bool> worked;
  for (const pid_t child : children) {
    const int status = status_of(child);
    EXPECT_LT(status, 2) << "the process failed for another reason";
    worked.push_back(status == 0);
  }
  return worked;
}

TEST(Encryption, JoinsRanksThatHaveTheSameKey) {
  EXPECT_EQ(sums_with_keys([](int) { return "the same key on all"; }), std::vector<bool>({true, true}));
}

TEST(Encryption, KeepsOutARankWithAnotherKeyOrWithout) {
  EXPECT_EQ(sums_with_keys([](int rank) { return rank == 0 ? "the key of this job" : "the key of another"; }),
            std::vector<bool>({false, false}));
  EXPECT_EQ(sums_with_keys([](int rank) { return rank == 0 ? "the key of this job" : nullptr; }),
            std::vector<bool>({false, false}));
}

TEST(Encryption, IsThatOfAGrownCommunicatorToo) {
  EXPECT_EQ(sums_with_keys([](int) { return "the same key on all"; }, make_by_growing),
            std::vector<bool>({true, true}));
  EXPECT_EQ(sums_with_keys([](int rank) { return rank == 0 ? "the key of this job" : "the key of another"; },
                           make_by_growing),
            std::vector<bool>({false, false}));
}

// A transport that cannot be encrypted is refused, and not used without encryption.
TEST(Encryption, IsNeverLeftOut) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    setenv("TUTTI_TRANSPORT", "verbs", 1);
    const ncclEncryptionConfig_t config = encryption("the key of this job");
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    if (ncclSetEncryption(&config) != ncclSuccess || ncclGetUniqueId(&id) != ncclSuccess) _exit(2);
    const ncclResult_t made = ncclCommInitRank(&comm, 1, id, 0);
    _exit(made == ncclInvalidUsage && std::strstr(ncclGetLastError(nullptr), "encrypt") != nullptr ? 0 : 1);
  }
  EXPECT_EQ(status_of(child), 0);
}

}  // namespace
}  // namespace tutti::nccl_test
