#include "nccl/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"

namespace tutti::nccl {
namespace {

// NCCL waits for ever. These wait for so long that no job that works is ended, and a dead rank is told anyway.
const Variables kDefaults = {{"TUTTI_TIMEOUT_MS", "86400000"}, {"TUTTI_SETUP_TIMEOUT_MS", "600000"}};

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

void set_default(Settings& settings, const char* name, std::string value) {
  std::erase_if(settings.defaults, [&](const auto& pair) { return pair.first == name; });
  settings.defaults.emplace_back(name, std::move(value));
}

struct Range {
  const char* name;
  int value;
  int least;
  int most;
};

// Fields that were left alone are always right.
Status check_ranges(const ncclConfig_t& config) {
  const Range ranges[] = {
      {"blocking", config.blocking, 0, 1},
      {"cgaClusterSize", config.cgaClusterSize, 0, 8},
      {"minCTAs", config.minCTAs, 1, INT_MAX},
      {"maxCTAs", config.maxCTAs, 1, INT_MAX},
      {"splitShare", config.splitShare, 0, 1},
      {"collnetEnable", config.collnetEnable, 0, 1},
      {"CTAPolicy", config.CTAPolicy, NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
      {"shrinkShare", config.shrinkShare, 0, 1},
      {"nvlsCTAs", config.nvlsCTAs, 1, INT_MAX},
      {"nvlinkCentricSched", config.nvlinkCentricSched, 0, 1},
      {"graphUsageMode", config.graphUsageMode, 0, 2},
      {"numRmaCtx", config.numRmaCtx, 1, INT_MAX},
      {"graphStreamOrdering", config.graphStreamOrdering, 0, 1},
  };
  for (const Range& range : ranges) {
    if (range.value == NCCL_CONFIG_UNDEF_INT || (range.value >= range.least && range.value <= range.most)) continue;
    return invalid(fmt::format("ncclConfig_t: {} is {}, not {} to {}", range.name, range.value, range.least,
                               range.most));
  }
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config.minCTAs > config.maxCTAs) {
    return invalid(fmt::format("ncclConfig_t: minCTAs {} is more than maxCTAs {}", config.minCTAs, config.maxCTAs));
  }
  return {};
}

}  // namespace

Result<const Settings*> environment_settings() {
  static const Result<Settings> read = [] {  // once per process, as NCCL does: its functions have no object for it
    Settings settings;
    settings.defaults = kDefaults;
    return Result<Settings>(settings);
  }();
  if (!read) return read.error();
  return &*read;
}

Result<Settings> settings_with(const Settings& base, const ncclConfig_t* config) {
  Settings settings = base;
  if (config == nullptr) return settings;
  // Programs bring the structure of the version that they were compiled with: shorter, or longer, than this one.
  constexpr std::size_t kHead = offsetof(ncclConfig_t, blocking);
  if (config->magic != NCCL_API_MAGIC || config->size < kHead) {
    return invalid("the ncclConfig_t was not initialised: start from NCCL_CONFIG_INITIALIZER");
  }
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&own, config, std::min(config->size, sizeof(own)));
  TUTTI_TRY(check_ranges(own));
  if (own.blocking != NCCL_CONFIG_UNDEF_INT) settings.blocking = own.blocking == 1;
  if (own.commName != nullptr) settings.name = own.commName;
  if (own.splitShare != NCCL_CONFIG_UNDEF_INT) settings.split_share = own.splitShare == 1;
  if (own.maxCTAs != NCCL_CONFIG_UNDEF_INT) {
    set_default(settings, "TUTTI_DEVICE_BLOCKS", std::to_string(std::min(own.maxCTAs, 64)));
  }
  return settings;
}

}  // namespace tutti::nccl
