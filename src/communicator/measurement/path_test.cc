#include "communicator/measurement/path_test.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/log.h"
#include "base/mix_bits.h"
#include "base/recording.h"
#include "communicator/communicator_impl.h"
#include "device/rank_device.h"
#include "device/test_buffers.h"
#include "tutti/group.h"

namespace tutti::detail {
namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr std::size_t kPatternWords = kBytes / sizeof(std::uint64_t);
// Exchanges over each path, of which the fastest counts: the first one also opens the connections, and in each a rank
// may have to wait for one that is late.
constexpr int kExchanges = 5;
// A path with less than this part of the median speed of the paths of its kind is reported.
constexpr double kSlowPart = 0.25;
// A median of fewer paths says little.
constexpr std::size_t kLeastPathsToWarn = 6;
// Rank 0 gets the results of all paths, which take 64 bytes each: 64 MiB with this number of ranks.
constexpr std::size_t kMostRanks = 1024;
// At most this many bad paths are named in the error, and at most this many slow ones of a kind are logged.
constexpr std::size_t kMostNamed = 4;

using Pattern = std::vector<std::uint64_t>;
constexpr int kOut = 0, kIn = 1;  // the buffers of a rank: what it sends, and what it receives

Pattern pattern(std::int32_t sender, std::int32_t receiver) {
  Pattern made(kPatternWords);
  const std::uint64_t seed = mix_bits(static_cast<std::uint64_t>(sender) << 32 | static_cast<std::uint32_t>(receiver));
  for (std::size_t i = 0; i < made.size(); ++i) made[i] = mix_bits(seed + i);
  return made;
}

// What a rank has found out about the path from one sender to it. Sent as bytes; all ranks run the same version.
struct PathResult {
  double gbytes_per_s = 0;
  std::uint64_t place = kBytes;  // of the first byte that differs; kBytes: none
  std::uint8_t expected = 0;
  std::uint8_t seen = 0;
  std::array<char, 46> kind{};  // for people, zero-terminated
};
struct OwnName {
  std::array<char, 64> host{};
  std::int32_t device = -1;      // CUDA number; -1: the path is one of host memory
  std::int32_t shares_core = 0;  // 1: this rank's machine has more ranks than cores
};

// What rank 0 finds in the results of all ranks.
struct Verdict {
  std::int32_t sender = -1;  // of the first bad path
  std::int32_t bad_paths = 0;
  std::array<char, 2040> text{};  // names the first bad paths, zero-terminated
};

template <std::size_t kSize>
void copy_text(std::array<char, kSize>& to, std::string_view text) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::copy_n(text.begin(), length, to.begin());
  to[length] = '\0';
}

class PathTest {
 public:
  // `gpu`: buffers on the GPU with the CUDA number `device`; null for the paths of host memory.
  PathTest(Communicator& communicator, TestBuffers* gpu, std::int32_t device)
      : communicator_(communicator), gpu_(gpu), rank_(communicator.rank()), ranks_(communicator.size()) {
    std::array<char, 64> host{};
    if (gethostname(host.data(), host.size() - 1) == 0) own_.host = host;
    own_.device = device;
    own_.shares_core = shares_core(CommunicatorImpl::of(communicator).environment()) ? 1 : 0;
  }

  Status run() {
    results_.resize(static_cast<std::size_t>(ranks_));
    for (std::int32_t round = 1; round < ranks_; ++round) {
      const std::int32_t to = (rank_ + round) % ranks_;
      const std::int32_t from = (rank_ - round + ranks_) % ranks_;
      TUTTI_TRY(put(kOut, pattern(rank_, to)));
      PathResult& result = results_[static_cast<std::size_t>(from)];
      copy_text(result.kind, gpu_ != nullptr ? "between GPUs" : "over " + medium(from));
      for (int i = 0; i < kExchanges; ++i) {
        TUTTI_TRY(put(kIn, Pattern(kPatternWords)));
        const std::int64_t start_ns = recording::steady_ns();
        TUTTI_TRY(exchange(to, from));
        const std::int64_t took_ns = std::max<std::int64_t>(recording::steady_ns() - start_ns, 1);
        result.gbytes_per_s = std::max(result.gbytes_per_s, static_cast<double>(kBytes) / static_cast<double>(took_ns));
        Pattern received(kPatternWords);
        TUTTI_TRY(get_received(received));
        compare(received, from, result);
      }
    }
    return {};
  }

  // Gives rank 0 the results of all ranks, logs them there, and returns the same error on all ranks if a path is bad.
  Status conclude(const Log& log) {
    std::string own(reinterpret_cast<const char*>(&own_), sizeof(own_));
    own.append(reinterpret_cast<const char*>(results_.data()), results_.size() * sizeof(PathResult));
    bytes_of_rank_ = own.size();
    if (rank_ == 0) all_.resize(static_cast<std::size_t>(ranks_) * bytes_of_rank_);
    CommunicatorImpl& impl = CommunicatorImpl::of(communicator_);
    TUTTI_TRY(impl.run_plain({.kind = CollectiveKind::kGather,
                              .input = own.data(),
                              .output = all_.data(),
                              .count = own.size(),
                              .type = DataType::kUint8},
                             {}));
    Verdict verdict;
    if (rank_ == 0) {
      report(log);
      verdict = find_bad_paths();
    }
    TUTTI_TRY(impl.run_plain({.kind = CollectiveKind::kBroadcast,
                              .input = &verdict,
                              .output = &verdict,
                              .count = sizeof(verdict),
                              .type = DataType::kUint8},
                             {}));
    if (verdict.bad_paths == 0) return {};
    verdict.text.back() = '\0';
    return Error{ErrorCode::kDamaged, ErrorScope::kCommunicator, verdict.sender,
                 fmt::format("path test: {} path{} data: {}", verdict.bad_paths,
                             verdict.bad_paths == 1 ? " alters" : "s alter", verdict.text.data())};
  }

 private:
  void* address(int buffer) { return gpu_ != nullptr ? gpu_->address(buffer) : host_[buffer].data(); }
  Status put(int buffer, const Pattern& values) {
    if (gpu_ != nullptr) return gpu_->put(buffer, std::as_bytes(std::span(values)));
    host_[buffer] = values;
    return {};
  }
  Status get_received(Pattern& values) {
    if (gpu_ != nullptr) return gpu_->get(kIn, std::as_writable_bytes(std::span(values)));
    values = host_[kIn];
    return {};
  }

  Status exchange(std::int32_t to, std::int32_t from) {
    CallOptions options;
    if (gpu_ != nullptr) options.stream = gpu_->stream();
    Group group;
    TUTTI_TRY(group.send(communicator_, address(kOut), kPatternWords, DataType::kUint64, to, options));
    TUTTI_TRY(group.receive(communicator_, address(kIn), kPatternWords, DataType::kUint64, from, options));
    TUTTI_TRY(group.run());
    if (gpu_ == nullptr) return {};
    TUTTI_TRY(gpu_->wait());
    return communicator_.async_status();
  }

  // Stores the first difference, unless an earlier exchange had one.
  void compare(const Pattern& received, std::int32_t from, PathResult& result) const {
    if (result.place != kBytes) return;
    const Pattern wanted = pattern(from, rank_);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(received.data());
    const auto* const right = reinterpret_cast<const std::uint8_t*>(wanted.data());
    const auto place = static_cast<std::size_t>(std::mismatch(bytes, bytes + kBytes, right).first - bytes);
    if (place == kBytes) return;
    result.place = place;
    result.expected = right[place];
    result.seen = bytes[place];
  }

  bool shares_core(const Environment& environment) const {
    const std::vector<std::uint32_t>& nodes = environment.nodes;
    const auto own = static_cast<std::size_t>(rank_);
    const auto here = nodes.empty() ? static_cast<std::ptrdiff_t>(ranks_) : std::ranges::count(nodes, nodes[own]);
    return environment.cores > 0 && here > static_cast<std::ptrdiff_t>(environment.cores);
  }

  // What carries the messages from this sender, for example "shared memory" or "tcp".
  std::string medium(std::int32_t from) const {
    const Environment& environment = CommunicatorImpl::of(communicator_).environment();
    const auto sender = static_cast<std::size_t>(from);
    const auto receiver = static_cast<std::size_t>(rank_);
    const std::string devices = environment.transport->peer_path(static_cast<std::uint32_t>(from));
    if (!devices.empty()) return devices;
    const std::string_view name = environment.transport->name();
    if (environment.nodes.empty()) return name == "shm" ? "shared memory" : std::string(name);
    return environment.nodes[sender] == environment.nodes[receiver] ? "shared memory" : "tcp";
  }

  // What this rank has sent: its OwnName and its results.
  const char* bytes_of(std::int32_t rank) const {
    return all_.data() + static_cast<std::size_t>(rank) * bytes_of_rank_;
  }

  PathResult result(std::int32_t from, std::int32_t to) const {
    PathResult found;
    const char* const results = bytes_of(to) + sizeof(OwnName);
    std::memcpy(&found, results + static_cast<std::size_t>(from) * sizeof(found), sizeof(found));
    found.kind.back() = '\0';
    return found;
  }

  // For example "rank 3 (host node7, GPU 1)".
  std::string name(std::int32_t rank) const {
    const OwnName own = own_name(rank);
    return fmt::format("rank {} (host {}{})", rank, own.host.data(),
                       own.device < 0 ? "" : fmt::format(", GPU {}", own.device));
  }

  std::string path_name(std::int32_t from, std::int32_t to) const {
    return fmt::format("from {} to {} {}", name(from), name(to), result(from, to).kind.data());
  }

  // Calls visit(from, to, result) for every path.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (std::int32_t to = 0; to < ranks_; ++to) {
      for (std::int32_t from = 0; from < ranks_; ++from) {
        if (from != to) visit(from, to, result(from, to));
      }
    }
  }

  // Paths are of one kind if their texts are equal up to the first comma, for example "over tcp".
  static std::string kind_of(const PathResult& one) {
    const std::string_view text = one.kind.data();
    return std::string(text.substr(0, text.find(',')));
  }

  OwnName own_name(std::int32_t rank) const {
    OwnName own;
    std::memcpy(&own, bytes_of(rank), sizeof(own));
    own.host.back() = '\0';
    return own;
  }

  struct Speed {
    double gbytes_per_s;
    std::int32_t from;
    std::int32_t to;
  };

  // If ranks share cores, the speeds contain waits for cores, and a slow path proves nothing.
  void report(const Log& log) const {
    bool shared = false;
    for (std::int32_t rank = 0; rank < ranks_; ++rank) shared |= own_name(rank).shares_core == 1;
    std::map<std::string, std::vector<Speed>> kinds;
    for_each([&](std::int32_t from, std::int32_t to, const PathResult& one) {
      kinds[kind_of(one)].push_back({one.gbytes_per_s, from, to});
    });
    for (auto& [kind, speeds] : kinds) {
      std::ranges::sort(speeds, {}, &Speed::gbytes_per_s);
      const double median = speeds[speeds.size() / 2].gbytes_per_s;
      log.write(
          LogLevel::kInfo,
          "path test: {} paths {}, each with a pattern of {} KiB: {:.3g} to {:.3g} GB/s, median {:.3g}{}; the slowest "
          "is {}",
          speeds.size(), kind, kBytes >> 10, speeds.front().gbytes_per_s, speeds.back().gbytes_per_s, median,
          shared ? " (with waits, because there are more ranks than cores)" : "",
          path_name(speeds.front().from, speeds.front().to));
      if (shared || speeds.size() < kLeastPathsToWarn) continue;
      for (std::size_t i = 0; i < std::min(speeds.size(), kMostNamed); ++i) {
        if (speeds[i].gbytes_per_s >= kSlowPart * median) break;
        log.write(LogLevel::kWarn, "path test: the path {} has {:.3g} GB/s; the median of its kind is {:.3g}",
                  path_name(speeds[i].from, speeds[i].to), speeds[i].gbytes_per_s, median);
      }
    }
  }

  Verdict find_bad_paths() const {
    Verdict found;
    std::string text;
    for_each([&](std::int32_t from, std::int32_t to, const PathResult& one) {
      if (one.place == kBytes || ++found.bad_paths > static_cast<std::int32_t>(kMostNamed)) return;
      if (found.bad_paths == 1) found.sender = from;
      text += fmt::format("{}{}: byte {} of {} was sent as {:#04x} and received as {:#04x}", text.empty() ? "" : "; ",
                          path_name(from, to), one.place, kBytes, one.expected, one.seen);
    });
    copy_text(found.text, text);
    return found;
  }

  Communicator& communicator_;
  TestBuffers* const gpu_;  // null: host memory
  const std::int32_t rank_;
  const std::int32_t ranks_;
  OwnName own_;
  std::array<Pattern, 2> host_;      // indexed by kOut and kIn; used if gpu_ is null
  std::vector<PathResult> results_;  // indexed by sender; unused for this rank itself
  std::string all_;                  // on rank 0: what the ranks have sent; empty on the others
  std::size_t bytes_of_rank_ = 0;    // of each rank in all_
};

Status test_host_paths(Communicator& communicator, const Log& log) {
  PathTest test(communicator, nullptr, -1);
  TUTTI_TRY(test.run());
  return test.conclude(log);
}

Status test_device_paths(Communicator& communicator, const RankDevice& device, const Log& log) {
  auto buffers = TestBuffers::make(device, kBytes);
  if (!buffers) return buffers.error();
  PathTest test(communicator, buffers->get(), device.number());
  TUTTI_TRY(test.run());
  return test.conclude(log);
}

}  // namespace

Status test_paths(const JobContext& job_context, const std::vector<std::uint32_t>& members, std::uint64_t communicator,
                  const Gather& gather) {
  if (members.size() == 1) return {};
  if (members.size() > kMostRanks) {
    return Error{
        ErrorCode::kUnsupported, ErrorScope::kCommunicator, -1,
        fmt::format("TUTTI_SELFTEST tests the paths of at most {} ranks, and there are {}: unset it, or test a "
                    "part of the ranks in a job of their own",
                    kMostRanks, members.size())};
  }
  auto own = std::make_shared<JobContext>(job_context);  // shared by the parts of the communicator
  own->config.record = 0;
  own->config.log_level = std::min(own->config.log_level, LogLevel::kError);
  auto made = make_communicator({.rank = own->job_rank,
                                 .ranks = static_cast<std::uint32_t>(members.size()),
                                 .job_context = own,
                                 .members = members,
                                 .id = communicator},
                                own->config.timeout, gather);
  if (!made) return made.error();
  const Log log(job_context.config.log_level, static_cast<std::int32_t>(job_context.job_rank));
  TUTTI_TRY(test_host_paths(**made, log));
  if (!(*made)->runs_on_devices() || own->device == nullptr) return {};
  return test_device_paths(**made, *own->device, log);
}

}  // namespace tutti::detail
