#include "nccl/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/log.h"
#include "nccl/environment/environment.h"
#include "nccl/ranges.h"

namespace tutti::nccl {
namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

void set_default(Settings& settings, const char* name, std::string value) {
  std::erase_if(settings.defaults, [&](const auto& pair) { return pair.first == name; });
  settings.defaults.emplace_back(name, std::move(value));
}

// Sets the default of TUTTI_DEVICE_BLOCKS, which limits the number of thread blocks that a call uses on a GPU, to the
// smaller of `most` and 64. (64 is the largest value of the variable.)
void limit_blocks(Settings& settings, std::int32_t most) {
  set_default(settings, "TUTTI_DEVICE_BLOCKS", std::to_string(std::min(most, 64)));
}

Result<Settings> first_settings(const EnvironmentSettings& environment) {
  Settings settings;
  settings.defaults = with_defaults(environment.overlay, default_timeouts());
  settings.blocking = environment.blocking.value_or(true);
  settings.root = environment.root;
  settings.algorithms = environment.algorithms;
  if (environment.max_ctas) limit_blocks(settings, *environment.max_ctas);
  const auto config = parse_config(with_defaults(environment_variables(), settings.defaults));
  if (!config) return config.error();
  report(environment, Log(config->log_level, -1));
  return settings;
}

// Checks the ranges of the integer fields, except trafficClass, of which every value is accepted, and that minCTAs is
// not greater than maxCTAs. A field that the program did not set has the value NCCL_CONFIG_UNDEF_INT, which is always
// valid.
Status check_ranges(const ncclConfig_t& config) {
  struct Range {
    const char* field;
    int value;
    int least;
    int most;
  };
  const Range ranges[] = {
      {"blocking", config.blocking, 0, 1},
      {"cgaClusterSize", config.cgaClusterSize, 0, 8},
      {"minCTAs", config.minCTAs, 1, INT_MAX},
      {"maxCTAs", config.maxCTAs, 1, INT_MAX},
      {"splitShare", config.splitShare, 0, 1},
      {"collnetEnable", config.collnetEnable, 0, 1},
      {"CTAPolicy", config.CTAPolicy, NCCL_CTA_POLICY_DEFAULT, kMostCtaPolicy},
      {"shrinkShare", config.shrinkShare, 0, 1},
      {"nvlsCTAs", config.nvlsCTAs, 1, INT_MAX},
      {"nChannelsPerNetPeer", config.nChannelsPerNetPeer, 1, 64},
      {"nvlinkCentricSched", config.nvlinkCentricSched, 0, 1},
      {"graphUsageMode", config.graphUsageMode, 0, 2},
      {"numRmaCtx", config.numRmaCtx, 0, INT_MAX},
      {"maxP2pPeers", config.maxP2pPeers, 1, INT_MAX},
      {"graphStreamOrdering", config.graphStreamOrdering, 0, 1},
      {"launchOrderImplicit", config.launchOrderImplicit, 0, 1},
      {"numRmaSig", config.numRmaSig, 0, INT_MAX},
      {"rmaEagerInit", config.rmaEagerInit, 0, 1},
      {"hostCftMode", config.hostCftMode, ncclHostCftEnable, ncclHostCftFallback},
  };
  for (const Range& range : ranges) {
    TUTTI_TRY(check_range("ncclConfig_t", range.field, range.value, range.least, range.most));
  }
  if (config.nvlsHostMode != ncclNvlsHostModeDisable) {
    TUTTI_TRY(check_range("ncclConfig_t", "nvlsHostMode", config.nvlsHostMode, ncclNvlsHostModeEnable,
                          ncclNvlsHostModeDisableTransport | ncclNvlsHostModeDisableSymmetricMultimem));
  }
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config.minCTAs > config.maxCTAs) {
    return invalid(fmt::format("ncclConfig_t: minCTAs {} is more than maxCTAs {}", config.minCTAs, config.maxCTAs));
  }
  return {};
}

}  // namespace

Result<Settings> environment_settings() {
  // Created once, because all functions must use the same settings. Never destroyed, because jobs may still run after
  // main() has returned.
  static const auto& made = *new Result<Settings>([] {
    const auto& environment = process_settings();
    return environment ? first_settings(*environment) : Result<Settings>(environment.error());
  }());
  if (!made) return made.error();
  Settings settings = *made;
  settings.encryption_key = requested_key();
  return settings;
}

Result<Settings> settings_with(const Settings& base, const ncclConfig_t* config) {
  Settings settings = base;
  if (config == nullptr) return settings;
  // A program passes the ncclConfig_t of the NCCL version with which it was compiled. That can be shorter or longer
  // than the ncclConfig_t of this library.
  constexpr std::size_t kHead = offsetof(ncclConfig_t, blocking);
  if (config->magic != NCCL_API_MAGIC || config->size < kHead) {
    return invalid("the ncclConfig_t was not initialised: start from NCCL_CONFIG_INITIALIZER");
  }
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&own, config, std::min(config->size, sizeof(own)));
  TUTTI_TRY(check_ranges(own));
  const auto& environment = process_settings();
  const bool blocking_is_set = environment.ok() && environment->blocking.has_value();
  const bool blocks_are_set = environment.ok() && environment->max_ctas.has_value();
  if (own.blocking != NCCL_CONFIG_UNDEF_INT && !blocking_is_set) settings.blocking = own.blocking == 1;
  if (own.maxCTAs != NCCL_CONFIG_UNDEF_INT && !blocks_are_set) limit_blocks(settings, own.maxCTAs);
  if (own.commName != nullptr) settings.name = own.commName;
  return settings;
}

}  // namespace tutti::nccl
