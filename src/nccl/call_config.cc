#include "nccl/call_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "base/assert.h"
#include "nccl/environment/algorithms.h"
#include "nccl/ranges.h"

namespace tutti::nccl {
namespace {

Error refused(std::string message) {
  return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, "ncclCollConfig_t: " + std::move(message)};
}

Error unsupported(std::string message) {
  return {ErrorCode::kUnsupported, ErrorScope::kCall, -1, "ncclCollConfig_t: " + std::move(message)};
}

constexpr int kMostOptions = 4096;  // bounds the time that a call spends on the list
constexpr std::uint32_t kRingBit = 1u << kRingNumber;
constexpr int kLeastVendor = 1, kMostVendor = (1 << 24) - 1;

Status read_flag(const ncclConfigExt_t& option, const char* name, bool& flag) {
  if (option.val.i != 0 && option.val.i != 1) {
    return refused(fmt::format("the option {} is {}, not 0 or 1", name, option.val.i));
  }
  flag = option.val.i == 1;
  return {};
}

Status read_option(const ncclConfigExt_t& option, CallConfig& read) {
  switch (option.key.optionId) {
    case tuttiNcclAlgorithm: {
      const auto algorithm = parse_algorithm(option.val.s == nullptr ? "" : option.val.s);
      if (!algorithm) {
        return refused(fmt::format("the option tuttiNcclAlgorithm is \"{}\", which is no algorithm of Tutti",
                                   option.val.s == nullptr ? "" : option.val.s));
      }
      read.algorithm = *algorithm;
      read.selects = true;
      return {};
    }
    case tuttiNcclDeadlineMs:
      if (option.val.i < 1) {
        return refused(fmt::format("the option tuttiNcclDeadlineMs is {}, not at least 1", option.val.i));
      }
      read.timeout = std::chrono::milliseconds(option.val.i);
      return {};
    case tuttiNcclUniform: return read_flag(option, "tuttiNcclUniform", read.uniform);
    case tuttiNcclChecksum: return read_flag(option, "tuttiNcclChecksum", read.checksum);
    default: return refused(fmt::format("Tutti has no option {}", option.key.optionId));
  }
}

// Reads the options of Tutti. Options of other vendors only have to be well-formed.
Status read_options(const ncclConfigExt_t* first, CallConfig& read) {
  std::set<std::pair<int, int>> keys;
  for (const ncclConfigExt_t* option = first; option != nullptr; option = option->next) {
    if (option->key.vendorId < kLeastVendor || option->key.vendorId > kMostVendor) {
      return refused(
          fmt::format("the vendor {} of an option is outside {}..{}", option->key.vendorId, kLeastVendor, kMostVendor));
    }
    if (keys.size() >= kMostOptions) return refused(fmt::format("there are more than {} options", kMostOptions));
    if (!keys.emplace(option->key.vendorId, option->key.optionId).second) {
      return refused(fmt::format("option {} of vendor {} is in the list twice, or the list has a cycle",
                                 option->key.optionId, option->key.vendorId));
    }
    if (option->key.vendorId == TUTTI_NCCL_VENDOR_ID) TUTTI_TRY(read_option(*option, read));
  }
  return {};
}

Status check_ranges(const ncclCollConfig_t& config) {
  TUTTI_TRY(check_range("ncclCollConfig_t", "minCTAs", config.minCTAs, 1, INT_MAX));
  TUTTI_TRY(check_range("ncclCollConfig_t", "maxCTAs", config.maxCTAs, 1, INT_MAX));
  TUTTI_TRY(check_range("ncclCollConfig_t", "nvlsCTAs", config.nvlsCTAs, 1, INT_MAX));
  TUTTI_TRY(check_range("ncclCollConfig_t", "cgaClusterSize", config.cgaClusterSize, 0, 8));
  TUTTI_TRY(check_range("ncclCollConfig_t", "CTAPolicy", config.CTAPolicy, 0, kMostCtaPolicy));
  if (config.forceAlgSelection != 0 && config.forceAlgSelection != 1) {
    return refused(fmt::format("forceAlgSelection is {}, not 0 or 1", config.forceAlgSelection));
  }
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config.minCTAs > config.maxCTAs) {
    return refused(fmt::format("minCTAs {} is more than maxCTAs {}", config.minCTAs, config.maxCTAs));
  }
  return {};
}

// The algorithm that algSelection selects, or kAuto if Tutti chooses. For broadcast and reduce NCCL has only rings, so
// Tutti chooses if the text allows rings. For all_to_all, gather and scatter NCCL has no algorithm with a name, so
// Tutti chooses if the text only excludes algorithms.
Result<Algorithm> select(const char* text, CollectiveKind kind) {
  auto selection = parse_algorithm_selection(text);
  if (!selection) return selection.error();
  if (selection->limits_protocols) {
    return unsupported(
        fmt::format("algSelection \"{}\" selects a protocol, which Tutti chooses for all calls of a communicator: name "
                    "the algorithm alone and set NCCL_PROTO, or set forceAlgSelection to 0",
                    text));
  }
  const Counterparts found = counterparts(kind, selection->algorithms);
  const bool only_rings = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
  const bool allowed = found.known > 0 ? !found.allowed.empty()
                       : only_rings    ? (selection->algorithms & kRingBit) != 0
                                       : selection->excludes;
  if (!allowed) {
    return unsupported(
        fmt::format("algSelection \"{}\" allows no algorithm that Tutti has for {}: name one of them by the option "
                    "tuttiNcclAlgorithm, or set forceAlgSelection to 0",
                    text, to_string(kind)));
  }
  return found.allowed.size() == 1 ? found.allowed.front() : Algorithm::kAuto;
}

}  // namespace

Result<CallConfig> read_call_config(const ncclCollConfig_t* config, CollectiveKind kind, Algorithm algorithm) {
  CallConfig read{.algorithm = algorithm};
  if (config == nullptr) return read;
  // NCCL 2.31 introduced the structure, without its last field. A program that was compiled with a newer version may
  // pass a longer one.
  constexpr std::size_t kFirstSize = offsetof(ncclCollConfig_t, launchCompletionEvent);
  if (config->magic != NCCL_API_MAGIC || config->size < kFirstSize) {
    return refused("it was not initialised: start from NCCL_COLLCONFIG_INITIALIZER");
  }
  ncclCollConfig_t own = NCCL_COLLCONFIG_INITIALIZER;
  std::memcpy(&own, config, std::min(config->size, sizeof(own)));
  TUTTI_TRY(check_ranges(own));
  TUTTI_TRY(read_options(own.ext, read));
  // The option for the algorithm takes the place of algSelection.
  if (!read.selects && own.algSelection != nullptr && *own.algSelection != '\0') {
    const auto selected = select(own.algSelection, kind);
    if (selected && *selected != Algorithm::kAuto) {
      read.algorithm = *selected;
      read.selects = true;
    }
    if (!selected && own.forceAlgSelection == 1) return selected.error();
  }
  read.label = own.userProfilerTag;
  read.launched = own.launchCompletionEvent;
  return read;
}

}  // namespace tutti::nccl
