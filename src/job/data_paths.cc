#include "job/data_paths.h"

#include <fmt/format.h>

#include <utility>

#include "transports/ucx/ucx_maker.h"
#include "transports/verbs/verbs_maker.h"

namespace tutti::detail {
namespace {

VerbsSettings verbs_settings(const Config& config) {
  VerbsSettings settings;
  settings.required = config.transport == TransportPolicy::kVerbs;
  settings.devices = config.rdma_devices;
  settings.gid_index = config.rdma_gid_index;
  settings.queue_pairs = config.rdma_queue_pairs;
  settings.timeout = static_cast<std::uint8_t>(config.rdma_timeout);
  settings.retries = static_cast<std::uint8_t>(config.rdma_retries);
  settings.traffic_class = static_cast<std::uint8_t>(config.rdma_traffic_class);
  settings.service_level = static_cast<std::uint8_t>(config.rdma_service_level);
  settings.cache_bytes = std::uint64_t{config.rdma_cache_mib} << 20;
  settings.write_outputs = config.rdma_write_outputs;
  return settings;
}

// Returns the reason why TUTTI_TRANSPORT=auto does not select verbs although it has usable ports, or an empty text.
// Software devices are limited by the CPU, like TCP, and use more CPU time. So if all usable ports are of software
// devices, verbs is selected only if the user names devices or sets TUTTI_TRANSPORT=verbs.
std::string reason_not_automatic(const VerbsSettings& settings, const VerbsPorts& ports) {
  if (ports.usable.empty()) return "";
  for (const VerbsPort& port : ports.usable) {
    if (!port.software || !settings.devices.empty()) return "";
  }
  return "all usable ports are of software devices, which are not faster than TCP: name them in TUTTI_RDMA_DEVICES, or "
         "set TUTTI_TRANSPORT=verbs";
}

PathCandidate check_verbs(const Config& config) {
  PathCandidate verbs{.name = "verbs", .words = {}};
  const VerbsSettings settings = verbs_settings(config);
  const Result<VerbsPorts> ports = find_verbs_ports(settings);
  if (!ports) {
    verbs.words.push_back(ports.error().message);
    return verbs;
  }
  for (const VerbsPort& port : ports->usable) verbs.words.push_back(describe(port));
  for (const std::string& refused : ports->refused) verbs.words.push_back(refused);
  verbs.usable = !ports->usable.empty();
  if (!verbs.usable && ports->refused.empty()) verbs.words.emplace_back("this machine has no RDMA device");
  const std::string doubt =
      config.encrypt ? "TUTTI_ENCRYPT=1, and verbs cannot be encrypted" : reason_not_automatic(settings, *ports);
  verbs.chosen = verbs.usable && (config.transport == TransportPolicy::kVerbs ||
                                  (config.transport == TransportPolicy::kAuto && doubt.empty()));
  if (verbs.usable && !verbs.chosen) {
    verbs.words.push_back(config.transport == TransportPolicy::kAuto ? "not chosen: " + doubt
                                                                     : "not chosen: TUTTI_TRANSPORT names another one");
  }
  return verbs;
}

PathCandidate check_ucx(const Config& config) {
  PathCandidate ucx{.name = "ucx", .words = {}};
  const Result<std::string> version = find_ucx();
  ucx.usable = version.ok();
  ucx.words.push_back(version.ok() ? *version : version.error().message);
  ucx.chosen = ucx.usable && config.transport == TransportPolicy::kUcx;
  if (ucx.usable && !ucx.chosen) ucx.words.emplace_back("not chosen: UCX is used only with TUTTI_TRANSPORT=ucx");
  return ucx;
}

// The data paths other than TCP, in the order of preference.
struct PathRow {
  TransportPolicy policy;
  bool automatic;  // may be selected if TUTTI_TRANSPORT is auto
  PathCandidate (*check)(const Config& config);
  Result<std::shared_ptr<DataPathMaker>> (*make)(const Config& config);
};
constexpr PathRow kPaths[] = {
    {TransportPolicy::kVerbs, true, check_verbs,
     [](const Config& config) { return make_verbs_maker(verbs_settings(config)); }},
    {TransportPolicy::kUcx, false, check_ucx, [](const Config&) { return make_ucx_maker(); }},
};

}  // namespace

std::vector<PathCandidate> path_candidates(const Config& config) {
  std::vector<PathCandidate> candidates;
  bool other = false;
  for (const PathRow& row : kPaths) {
    candidates.push_back(row.check(config));
    other |= candidates.back().chosen;
  }
  candidates.push_back({.name = "tcp",
                        .usable = true,
                        .chosen = !other && config.transport != TransportPolicy::kShm,
                        .words = {other ? "control traffic only: status, close frames, connection handshakes"
                                        : "needs nothing but an address"}});
  return candidates;
}

Result<std::shared_ptr<DataPathMaker>> find_data_path(const Config& config, const Log& log) {
  if (config.encrypt && !row_of(config.transport).encrypts) {
    return Error{ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
                 fmt::format("encryption is on (TUTTI_ENCRYPT=1, or the program requests it), but messages over {0} "
                             "cannot be encrypted: give all ranks TUTTI_TRANSPORT=auto or tcp, or turn encryption off",
                             row_of(config.transport).name)};
  }
  for (const PathRow& row : kPaths) {
    const bool named = config.transport == row.policy;
    if (!named && !(row.automatic && config.transport == TransportPolicy::kAuto)) continue;
    const PathCandidate candidate = row.check(config);
    std::string why;
    for (const std::string& word : candidate.words) {
      log.write(LogLevel::kInfo, "{}: {}", candidate.name, word);
      why += (why.empty() ? "" : "; ") + word;
    }
    if (candidate.chosen) return row.make(config);
    if (named) {
      return Error{ErrorCode::kConfig, ErrorScope::kCommunicator, -1,
                   fmt::format("TUTTI_TRANSPORT={} is not available here: {}", candidate.name, why)};
    }
  }
  return std::shared_ptr<DataPathMaker>();
}

}  // namespace tutti::detail
