#include "nccl/environment/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <fstream>
#include <map>
#include <utility>

#include "base/assert.h"
#include "nccl/environment/algorithms.h"
#include "nccl/environment/counterparts.h"
#include "nccl/environment/names.h"
#include "nccl/environment/parse.h"
#include "tutti/version.h"

namespace tutti::nccl {
namespace {

constexpr std::int64_t kMostCtas = 64;
constexpr std::int64_t kLeastThreads = 64, kMostThreads = 512, kWarp = 32;
constexpr std::int64_t kLeastSlot = kSlotUnit, kMostSlot = kMostSlotBytes;
constexpr std::size_t kLongestInterfaces = 256, kLongestNodeId = 64;  // limits of TUTTI_INTERFACE, TUTTI_NODE_ID

// The collective of each name in kFunctionNames.
constexpr std::array<CollectiveKind, kListedFunctions> kFunctionKinds = {
    CollectiveKind::kBroadcast, CollectiveKind::kReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
    CollectiveKind::kAllReduce};

// The limits of the TUTTI_RDMA_* variables.
constexpr std::int64_t kMostGids = 255;
constexpr std::int64_t kMostQueuePairs = 8;
constexpr std::int64_t kMostTimeout = 31;
constexpr std::int64_t kMostRetries = 7;
constexpr std::int64_t kMostServiceLevel = 15;
constexpr std::int64_t kMostTrafficClass = 255;

// The FNV-1a hash as 16 digits. It has 64 bits, so that different host ids practically never get the same hash.
std::string hexadecimal_hash(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 1099511628211u;
  return fmt::format("{:016x}", hash);
}

class Reader {
 public:
  Reader(const EnvironmentVariables& environment, const SystemAccess& host_access)
      : environment_(environment), host_access_(host_access) {}

  Result<EnvironmentSettings> read() {
    collect();
    TUTTI_TRY(read_own());
    read_debug();
    TUTTI_TRY(read_interfaces());
    TUTTI_TRY(read_root_address());
    TUTTI_TRY(read_algorithms());
    TUTTI_TRY(read_protocols());
    read_transports();
    read_sizes();
    read_ctas();
    read_plugins();
    read_others();
    report_ignored();
    return std::move(settings_);
  }

 private:
  struct GivenVariable {
    std::string value;
    std::string file;  // the configuration file that set the variable; empty: the environment set it
  };

  // Collects the variables in given_. The first source that sets a name takes precedence.
  void collect() {
    for (const auto& [name, value] : environment_) add(name, value, {});
    const auto named = environment_.find("NCCL_CONF_FILE");
    const auto home = environment_.find("HOME");
    if (named != environment_.end() && !named->second.empty()) {
      if (!add_file(named->second))
        warn("NCCL_CONF_FILE=\"{}\" cannot be read: nothing is taken from it", named->second);
    } else if (home != environment_.end() && !home->second.empty()) {
      add_file(home->second + "/.nccl.conf");
    }
    add_file("/etc/nccl.conf");
  }

  bool add_file(const std::string& path) {
    const auto text = host_access_.read_file(path);
    if (!text) return false;
    for (const auto& [name, value] : parse_conf(*text)) {
      if (name.starts_with("NCCL_")) {
        add(name, value, path);
      } else {
        warn("{} sets {}, which does not begin with NCCL_: it is ignored", path, name);
      }
    }
    return true;
  }

  void add(const std::string& name, const std::string& value, const std::string& file) {
    if (name.starts_with("NCCL_") && !value.empty()) given_.try_emplace(name, GivenVariable{value, file});
  }

  // Removes a variable (one of mapped_names()) from given_ and returns its value, if it is set.
  std::optional<std::string> take(std::string_view name) {
    TUTTI_ASSERT(std::ranges::find(mapped_names(), name) != mapped_names().end());
    const auto found = given_.find(name);
    if (found == given_.end()) return std::nullopt;
    std::string value = std::move(found->second.value);
    given_.erase(found);
    return value;
  }

  template <class... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    settings_.warnings.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void set(std::string name, std::string value) { settings_.overlay.emplace_back(std::move(name), std::move(value)); }
  void record(std::string_view name, std::string text) {
    settings_.taken.push_back({std::string(name), std::move(text), {}});
  }
  void record(std::string_view name, std::int64_t number) {
    settings_.taken.push_back({std::string(name), std::to_string(number), number});
  }

  // Takes the number of a variable and records it. If the number is outside `low` to `high`, warns and takes the nearer
  // limit. Returns nothing if the variable is not set or, with a warning, if it is not a number.
  std::optional<std::int64_t> take_number(std::string_view name, std::int64_t low, std::int64_t high) {
    const auto text = take(name);
    if (!text) return std::nullopt;
    const auto number = parse_number(*text);
    if (!number) {
      warn("{}=\"{}\" is not an integer: the default is taken", name, *text);
      return std::nullopt;
    }
    const std::int64_t taken = std::clamp(*number, low, high);
    if (taken != *number) warn("{}={} is outside {} to {}: {} is taken", name, *text, low, high, taken);
    record(name, taken);
    return taken;
  }

  bool take_switch(std::string_view name) {
    const auto text = take(name);
    if (!text) return false;
    const bool on = *text == "1";
    if (!on && *text != "0") warn("{}=\"{}\" is neither 0 nor 1: 0 is taken", name, *text);
    record(name, on ? 1 : 0);
    return on;
  }

  // Reads the two TUTTI_* variables on which the results of read() depend.
  Status read_own() {
    Variables own;
    for (const std::string_view name : {"TUTTI_NCCL_VERSION", "TUTTI_SLOTS"}) {
      const auto found = environment_.find(name);
      if (found != environment_.end()) own.emplace_back(name, found->second);
    }
    const auto config = parse_config(own);
    if (!config) return config.error();
    settings_.version = config->nccl_version;
    slots_ = config->slots;
    return {};
  }

  void read_debug() {
    const auto text = take("NCCL_DEBUG");
    if (!text) return;
    constexpr std::array<std::array<std::string_view, 2>, 6> kLevels = {{{"NONE", "off"},
                                                                         {"VERSION", "error"},
                                                                         {"WARN", "warn"},
                                                                         {"INFO", "info"},
                                                                         {"ABORT", "info"},
                                                                         {"TRACE", "debug"}}};
    for (const auto& [word, level] : kLevels) {
      if (!same_word(*text, word)) continue;
      set("TUTTI_LOG", std::string(level));
      record("NCCL_DEBUG", std::string(word));
      settings_.prints_version = word != "NONE";
      return;
    }
    warn("NCCL_DEBUG=\"{}\" is none of NONE, VERSION, WARN, INFO, ABORT, TRACE: the default level, warn, stays", *text);
  }

  Status read_interfaces() {
    SocketFamily family = SocketFamily::kAny;
    const auto wanted_family = take("NCCL_SOCKET_FAMILY");
    if (wanted_family == "AF_INET") family = SocketFamily::kIpv4;
    if (wanted_family == "AF_INET6") family = SocketFamily::kIpv6;
    if (family != SocketFamily::kAny) record("NCCL_SOCKET_FAMILY", *wanted_family);
    if (wanted_family && family == SocketFamily::kAny) {
      warn("NCCL_SOCKET_FAMILY=\"{}\" is neither AF_INET nor AF_INET6: both are used", *wanted_family);
    }
    auto pattern = take("NCCL_SOCKET_IFNAME");
    if (pattern) record("NCCL_SOCKET_IFNAME", *pattern);
    if (!pattern && family == SocketFamily::kAny) return {};
    const auto there = host_access_.interfaces();
    if (!there) return there.error();
    // As in NCCL: with NCCL_SOCKET_FAMILY alone, docker and virbr are not used, and lo only if no other interface fits.
    const std::string_view wanted = pattern ? std::string_view(*pattern) : "^docker,lo,virbr";
    auto found = filter_interfaces(wanted, family, *there);
    if (found.empty() && !pattern) found = filter_interfaces("lo", family, *there);
    if (found.empty()) {
      std::vector<std::string> names;
      for (const InterfaceAddress& one : *there) names.push_back(fmt::format("{} ({})", one.name, one.address));
      return Error{ErrorCode::kConfig, ErrorScope::kCall, -1,
                   fmt::format("{}: it matches no network interface that is up; there are: {}",
                               pattern ? fmt::format("NCCL_SOCKET_IFNAME=\"{}\"", *pattern)
                                       : "NCCL_SOCKET_FAMILY=" + *wanted_family,
                               fmt::join(names, ", "))};
    }
    std::string list;
    for (const InterfaceAddress& one : found) {
      // The rest of the list may be dropped, because Tutti uses only the first address of the list.
      if (list.size() + 1 + one.address.size() > kLongestInterfaces) break;
      list += (list.empty() ? "" : ",") + one.address;
    }
    set("TUTTI_INTERFACE", std::move(list));
    return {};
  }

  Status read_root_address() {
    const auto text = take("NCCL_COMM_ID");
    if (!text) return {};
    TUTTI_TRY(check_root_address(*text));
    settings_.root = *text;
    record("NCCL_COMM_ID", *text);
    return {};
  }

  Status read_algorithms() {
    const auto text = take("NCCL_ALGO");
    if (!text) return {};
    const auto choice = parse_allowed_values("NCCL_ALGO", *text, kAlgorithmWords);
    if (!choice) return choice.error();
    record("NCCL_ALGO", *text);
    settings_.allowed_algorithms = choice->allowed;
    bool none_at_all = true;
    for (std::size_t function = 0; function < kListedFunctions; ++function) {
      const Counterparts found = counterparts(kFunctionKinds[function], choice->allowed[function]);
      // A single allowed algorithm is used. If several are allowed, Tutti selects as usual, also those that NCCL lacks.
      if (found.allowed.size() == 1) {
        settings_.algorithms[static_cast<std::size_t>(kFunctionKinds[function])] = found.allowed.front();
      } else if (found.allowed.size() < found.known && choice->named[function]) {
        warn("NCCL_ALGO=\"{}\" leaves {} with no algorithm that Tutti has: Tutti chooses", *text,
             kFunctionNames[function]);
      }
      none_at_all &= found.known == 0 || found.allowed.empty();
    }
    if (none_at_all) warn("NCCL_ALGO=\"{}\" leaves no algorithm that Tutti has: Tutti chooses", *text);
    return {};
  }

  Status read_protocols() {
    const auto text = take("NCCL_PROTO");
    if (!text) return {};
    const auto choice = parse_allowed_values("NCCL_PROTO", *text, kProtocolWords);
    if (!choice) return choice.error();
    record("NCCL_PROTO", *text);
    settings_.allowed_protocols = choice->allowed;
    std::uint32_t left = kAllProtocols;
    for (const std::uint32_t allowed : choice->allowed) left &= allowed;
    const bool alike = std::all_of(choice->allowed.begin(), choice->allowed.end(),
                                   [&](std::uint32_t allowed) { return allowed == left; });
    if (alike && left == kAllProtocols) return {};
    if (left == 0) {
      warn(
          "NCCL_PROTO=\"{}\" leaves no protocol that serves every function, and Tutti takes one for all: it chooses "
          "by length",
          *text);
      return {};
    }
    // Some protocol is excluded. Tutti's own selection could choose it, so one of the allowed protocols is fixed.
    const std::string word = (left & kSimpleBit) != 0 ? "simple" : (left & kLl128Bit) != 0 ? "ll128" : "ll";
    if (!alike || std::popcount(left) > 1) {
      warn("NCCL_PROTO=\"{}\" allows several protocols: Tutti holds to one, {}", *text, word);
    }
    set("TUTTI_DEVICE_PROTOCOL", word);
    return {};
  }

  void read_transports() {
    if (take_switch("NCCL_RUN_DIAGNOSTICS")) set("TUTTI_SELFTEST", "1");
    if (take_switch("NCCL_SHM_DISABLE")) set("TUTTI_TRANSPORT", "tcp");
    bool staged = take_switch("NCCL_P2P_DISABLE");
    if (const auto text = take("NCCL_P2P_LEVEL")) {
      constexpr std::array<std::string_view, 11> kLevels = {"NVL", "NVB", "C2C", "PIX", "PXB", "P2C",
                                                            "PXN", "PHB", "SYS", "NET", "DIS"};
      const auto number = parse_number(*text);
      if (*text == "LOC" || (number && *number <= 0)) {
        staged = true;
        record("NCCL_P2P_LEVEL", *text);
      } else if (number || std::find(kLevels.begin(), kLevels.end(), *text) != kLevels.end()) {
        settings_.ignored.push_back(fmt::format(
            "NCCL_P2P_LEVEL={} has no effect: Tutti asks the driver which GPUs reach each other, and only LOC (never) "
            "is supported besides",
            *text));
      } else {
        warn("NCCL_P2P_LEVEL=\"{}\" is none of LOC, {}: the default is taken", *text, fmt::join(kLevels, ", "));
      }
    }
    if (staged) set("TUTTI_DEVICE_CALLS", "staged");
    read_networks();
  }

  // Reads the variables for networks. RDMA NICs are used if there are any, unless NCCL_IB_DISABLE=1 or NCCL_NET=Socket.
  void read_networks() {
    bool use_rdma = !take_switch("NCCL_IB_DISABLE");
    if (const auto text = take("NCCL_NET")) {
      if (same_word(*text, "Socket")) {
        use_rdma = false;
        record("NCCL_NET", "Socket");
      } else if (same_word(*text, "IB")) {
        record("NCCL_NET", "IB");
      } else {
        warn("NCCL_NET=\"{}\": Tutti does not have this network, only IB and Socket (TCP): it selects one of these",
             *text);
      }
    }
    const auto devices = take("NCCL_IB_HCA");
    if (!use_rdma) set("TUTTI_RDMA_DEVICES", "none");
    if (use_rdma && devices) {
      set("TUTTI_RDMA_DEVICES", device_list(*devices));
      record("NCCL_IB_HCA", *devices);
    }
    // If the value is -1, no index is set, and the transport selects the GID by its own rules, as in NCCL.
    if (const auto index = take_number("NCCL_IB_GID_INDEX", -1, kMostGids); index && *index >= 0) {
      set("TUTTI_RDMA_GID_INDEX", std::to_string(*index));
    }
    set_number("NCCL_IB_QPS_PER_CONNECTION", 1, kMostQueuePairs, "TUTTI_RDMA_QUEUE_PAIRS");
    set_number("NCCL_IB_TIMEOUT", 1, kMostTimeout, "TUTTI_RDMA_TIMEOUT");
    set_number("NCCL_IB_RETRY_CNT", 0, kMostRetries, "TUTTI_RDMA_RETRIES");
    set_number("NCCL_IB_SL", 0, kMostServiceLevel, "TUTTI_RDMA_SERVICE_LEVEL");
    set_number("NCCL_IB_TC", 0, kMostTrafficClass, "TUTTI_RDMA_TRAFFIC_CLASS");
  }

  void set_number(std::string_view name, std::int64_t low, std::int64_t high, std::string own) {
    if (const auto number = take_number(name, low, high)) set(std::move(own), std::to_string(*number));
  }

  void read_sizes() {
    if (const auto threads = take_number("NCCL_NTHREADS", kLeastThreads, kMostThreads)) {
      const std::int64_t taken = *threads % kWarp == 0 ? *threads : kMostThreads;
      if (taken != *threads) {
        warn("NCCL_NTHREADS={} is not a multiple of {}: {} is taken", *threads, kWarp, taken);
        settings_.taken.back() = {"NCCL_NTHREADS", std::to_string(taken), taken};
      }
      set("TUTTI_DEVICE_THREADS", std::to_string(taken));
    }
    if (const auto bytes = take_number("NCCL_BUFFSIZE", slots_ * kLeastSlot, slots_ * kMostSlot)) {
      const std::string slot = std::to_string(*bytes / slots_ / kLeastSlot * kLeastSlot);
      set("TUTTI_SLOT_BYTES", slot);
      set("TUTTI_DEVICE_SLOT_BYTES", slot);
    }
  }

  // Returns the stricter of the limits in the variables names[0] and names[1], or the only one, or nothing if there is
  // none. names[2] is a still older name of names[1], and is used if names[1] is not set.
  std::optional<std::int32_t> take_ctas(const std::array<std::string_view, 3>& names,
                                        const std::int64_t& (*stricter)(const std::int64_t&, const std::int64_t&)) {
    auto taken = take_number(names[0], 1, kMostCtas);
    auto older = take_number(names[1], 1, kMostCtas);
    const auto oldest = take_number(names[2], 1, kMostCtas);
    if (!older) older = oldest;
    if (taken && older) taken = stricter(*taken, *older);
    if (!taken) taken = older;
    if (!taken) return std::nullopt;
    return static_cast<std::int32_t>(*taken);
  }

  void read_ctas() {
    settings_.max_ctas = take_ctas({"NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"}, std::min<std::int64_t>);
    settings_.min_ctas = take_ctas({"NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"}, std::max<std::int64_t>);
    auto& most = settings_.max_ctas;
    auto& least = settings_.min_ctas;
    if (most && least && *least > *most) {
      warn("the minimum number of CTAs, {}, is more than the maximum, {}: neither is taken", *least, *most);
      most.reset();
      least.reset();
    }
    const std::int32_t usual = static_cast<std::int32_t>(Config().device_blocks);
    if (most) {
      set("TUTTI_DEVICE_BLOCKS", std::to_string(*most));
    } else if (least && *least > usual) {
      set("TUTTI_DEVICE_BLOCKS", std::to_string(*least));
    }
  }

  void read_plugins() {
    const auto name = [&](std::string_view variable) {
      const auto text = take(variable);
      if (text) record(variable, *text);
      return text;
    };
    settings_.tuner_plugin = name("NCCL_TUNER_PLUGIN");
    settings_.profiler_plugin = name("NCCL_PROFILER_PLUGIN");
  }

  void read_others() {
    if (const auto text = take("NCCL_COMM_BLOCKING")) {
      if (*text == "0" || *text == "1") {
        settings_.blocking = *text == "1";
        record("NCCL_COMM_BLOCKING", *text == "1" ? 1 : 0);
      } else {
        warn("NCCL_COMM_BLOCKING=\"{}\" is neither 0 nor 1: each communicator's own configuration counts", *text);
      }
    }
    if (const auto text = take("NCCL_HOSTID")) {
      record("NCCL_HOSTID", *text);
      set("TUTTI_NODE_ID", text->size() <= kLongestNodeId ? *text : hexadecimal_hash(*text));
    }
    if (const auto text = take("NCCL_CONF_FILE")) record("NCCL_CONF_FILE", *text);
    if (const auto text = take("NCCL_PARAM_DUMP_ALL")) {
      settings_.all_parameters = *text == "1" || same_word(*text, "T") || same_word(*text, "TRUE");
      const bool no = *text == "0" || same_word(*text, "F") || same_word(*text, "FALSE");
      if (!settings_.all_parameters && !no) warn("NCCL_PARAM_DUMP_ALL=\"{}\" is not a boolean: 0 is taken", *text);
      record("NCCL_PARAM_DUMP_ALL", settings_.all_parameters ? 1 : 0);
    }
  }

  void report_ignored() {
    for (const auto& [name, given] : given_) {
      if (is_foreign(name)) continue;
      const std::string why = why_ignored(name, given.value);
      if (why.empty()) continue;
      const std::string where = given.file.empty() ? std::string() : fmt::format(" (in {})", given.file);
      settings_.ignored.push_back(fmt::format("{}={}{} has no effect: {}", name, given.value, where, why));
    }
  }

  const EnvironmentVariables& environment_;
  const SystemAccess& host_access_;
  // the NCCL_* variables that the environment or a configuration file sets to a non-empty value and that were not taken
  std::map<std::string, GivenVariable, std::less<>> given_;
  std::int64_t slots_ = 0;  // number of slots of a connection (TUTTI_SLOTS)
  EnvironmentSettings settings_;
};

// The text of a version number of NCCL: "2.28.9" for 22809 and, up to NCCL 2.8, "2.8.4" for 2804.
std::string version_text(std::int32_t version) {
  const std::int32_t major = version / (version < 10'000 ? 1000 : 10'000);
  const std::int32_t minor = version / 100 % (version < 10'000 ? 10 : 100);
  return fmt::format("{}.{}.{}", major, minor, version % 100);
}

std::optional<std::string> read_conf_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostConfBytes, '\0');
  if (!file) return std::nullopt;
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

SystemAccess this_machine() { return {.read_file = read_conf_file, .interfaces = interface_addresses}; }

Result<EnvironmentSettings> read_settings(const EnvironmentVariables& environment, const SystemAccess& host_access) {
  return Reader(environment, host_access).read();
}

void report(const EnvironmentSettings& settings, const Log& log) {
  // Printed to stderr whatever the log level is, because NCCL_DEBUG=VERSION requests the version and nothing else.
  if (settings.prints_version) {
    std::fputs(fmt::format("tutti: NCCL's interface {}, Tutti {}\n", version_text(settings.version), version()).c_str(),
               stderr);
  }
  for (const std::string& warning : settings.warnings) log.write(LogLevel::kWarn, "{}", warning);
  if (settings.ignored.empty()) return;
  std::vector<std::string> names;
  for (const std::string& sentence : settings.ignored) names.push_back(sentence.substr(0, sentence.find('=')));
  log.write(LogLevel::kWarn, "without effect in Tutti: {}{}", fmt::join(names, ", "),
            log.enabled(LogLevel::kInfo) ? "" : " (NCCL_DEBUG=INFO shows the reasons)");
  // The reasons are shown at level info. A variable that is probably misspelt ("did you mean") is a warning.
  for (const std::string& sentence : settings.ignored) {
    const bool slip = sentence.find("did you mean") != std::string::npos;
    log.write(slip ? LogLevel::kWarn : LogLevel::kInfo, "{}", sentence);
  }
}

const Result<EnvironmentSettings>& process_settings() {
  // Never destroyed, because threads may ask for it while the process exits.
  static const auto& settings = *new Result<EnvironmentSettings>(read_settings(process_environment(), this_machine()));
  return settings;
}

}  // namespace tutti::nccl
