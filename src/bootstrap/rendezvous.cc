#include "bootstrap/rendezvous.h"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>

#include "base/assert.h"
#include "base/loopback.h"
#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/launcher.h"
#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

Error config_error(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }
Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

// Parses "host:port", "[IPv6 address]:port", ":port", "port" or "host". A host with several colons but no brackets is
// an IPv6 address without a port. If the text has no port, the parameter `port` keeps its value. `host` must be empty
// at first, and stays empty if the text has no host.
Status parse_root(const std::string& root, std::string& host, std::uint16_t& port) {
  std::string port_text;
  if (root.starts_with('[')) {
    const std::size_t close = root.find(']');
    if (close == std::string::npos) return config_error(fmt::format("root \"{}\" lacks a ]", root));
    host = root.substr(1, close - 1);
    if (close + 1 < root.size()) {
      if (root[close + 1] != ':') return config_error(fmt::format("root \"{}\": after ] comes :port", root));
      port_text = root.substr(close + 2);
    }
  } else if (const std::size_t colon = root.rfind(':'); colon != std::string::npos && root.find(':') == colon) {
    host = root.substr(0, colon);
    port_text = root.substr(colon + 1);
  } else if (root.find_first_not_of("0123456789") == std::string::npos) {  // the text is empty, or only a port
    port_text = root;
  } else {
    host = root;
  }
  if (port_text.empty()) return {};
  const auto [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  if (error != std::errc() || end != port_text.data() + port_text.size() || port == 0) {
    return config_error(fmt::format("root \"{}\": \"{}\" is not a port from 1 to 65535", root, port_text));
  }
  return {};
}

// Rejects only a text that can be neither a host name nor an address. It does not resolve the name, because a name
// that cannot be resolved now may be resolvable later, while the ranks wait.
Status check_host(const std::string& host) {
  const auto is_wrong = [](char c) { return c <= ' ' || c == '/' || c == '\x7f'; };
  if (!host.empty() && host.size() < NI_MAXHOST && std::none_of(host.begin(), host.end(), is_wrong)) return {};
  return config_error(fmt::format("root host \"{}\" is neither a name nor an address", host));
}

std::string first_of(const std::string& a, const std::string& b, const std::string& c = "") {
  return !a.empty() ? a : !b.empty() ? b : c;
}

// Determines rank and size, and returns the launcher's LaunchInfo. The result is empty if the launcher gives another
// number of ranks than was determined here, or none, because its address is not valid then. An error in the environment
// is ignored if the options give both rank and size.
Result<LaunchInfo> resolve_ranks(const CommunicatorOptions& options, const Config& config,
                                 const EnvironmentVariables& environment, RendezvousOptions& rendezvous) {
  auto launch = detect_launcher(environment, config.port_range);
  const bool given = options.size != -1 && options.rank != -1;
  if (!launch && !given) return launch.error();
  const LaunchInfo info = launch ? *launch : LaunchInfo{};
  rendezvous.size = options.size != -1 ? options.size : info.size.value_or(-1);
  rendezvous.rank = options.rank != -1 ? options.rank : info.rank.value_or(-1);
  if (rendezvous.size == -1) {
    return invalid(
        fmt::format("the number of ranks is not given: set CommunicatorOptions::size or TUTTI_WORLD_SIZE, or "
                    "start the ranks with a launcher; looked for: {}",
                    launcher_variables()));
  }
  if (rendezvous.rank == -1) {
    return invalid(
        fmt::format("this rank's number is not given: set CommunicatorOptions::rank or TUTTI_RANK, or start "
                    "the ranks with a launcher; looked for: {}",
                    launcher_variables()));
  }
  if (rendezvous.size < 1 || rendezvous.size > 65535) {
    return invalid(fmt::format("size {} is outside 1..65535", rendezvous.size));
  }
  if (rendezvous.rank < 0 || rendezvous.rank >= rendezvous.size) {
    return invalid(fmt::format("rank {} is outside 0..{}", rendezvous.rank, rendezvous.size - 1));
  }
  return info.size == rendezvous.size ? info : LaunchInfo{};
}

// Returns the value of RendezvousOptions::other_host: an address of this machine that other machines can probably
// reach, either of the configured interface or the result of outward_address(). Rank 0 listens on it if the hosts file
// maps the root's name to loopback. If may_be_forwarded is set, it also does so if the root's address is not an address
// of this machine, because connections to that address may be forwarded to this machine. Empty if there is no such
// address.
std::string other_host(const std::string& interface) {
  auto address = !interface.empty() ? interface_address(interface) : outward_address();
  return address ? *address : std::string();
}

// Sets the fields of `rendezvous` that determine how the ranks meet, from the launcher's information.
Status meet_by_launcher(const LaunchInfo& launch, const std::string& interface, RendezvousOptions& rendezvous) {
  if (launch.pmi_fd || launch.pmix) {
    rendezvous.pmi_fd = launch.pmi_fd;
    rendezvous.pmix = launch.pmix;
    if (rendezvous.rank != 0) return {};
    auto address = !interface.empty()   ? interface_address(interface)
                   : launch.one_machine ? Result<std::string>(loopback_address())
                                        : outward_address();
    if (!address) return address.error();
    rendezvous.host = *address;
    return {};
  }
  if (launch.root_host.empty()) {
    return config_error(
        fmt::format("{} does not say where rank 0 of a job on several machines can be met: set "
                    "TUTTI_ROOT=host:port, rank 0's, on all ranks (mpirun -x, -genv); found: {}",
                    launch.launcher, describe(launch)));
  }
  TUTTI_TRY(check_host(launch.root_host));
  const bool is_default = launch.one_machine && launch.root_host == "127.0.0.1";
  rendezvous.host = is_default ? loopback_address() : launch.root_host;
  rendezvous.ports = launch.root_ports;
  rendezvous.may_be_forwarded = true;
  if (rendezvous.rank == 0 && !launch.one_machine) rendezvous.other_host = other_host(interface);
  return {};
}

}  // namespace

Result<RendezvousOptions> resolve_rendezvous(const CommunicatorOptions& options, const Config& config,
                                             const EnvironmentVariables& environment) {
  RendezvousOptions rendezvous;
  auto launch = resolve_ranks(options, config, environment, rendezvous);
  if (!launch) return launch.error();
  rendezvous.origin = describe(*launch);
  rendezvous.job_id = first_of(options.job_id, config.job_id, launch->job_id);
  if (rendezvous.job_id.empty()) rendezvous.job_id = "default";
  if (rendezvous.job_id.size() > wire::kMaxJobIdBytes) {
    if (!options.job_id.empty()) return invalid("the job id is longer than 128 bytes");
    rendezvous.job_id = fmt::format("{}#{:016x}", rendezvous.job_id.substr(0, 100), spread(rendezvous.job_id));
  }
  if (options.setup_timeout.count() < 0 || options.timeout.count() < 0) return invalid("a timeout is negative");
  const auto timeout = options.setup_timeout.count() > 0 ? options.setup_timeout : config.setup_timeout;
  rendezvous.timeout_ms = std::min<std::int64_t>(timeout.count(), 86'400'000);  // at most one day
  rendezvous.port_range = config.port_range;
  rendezvous.encrypt = config.encrypt;

  const bool explicit_root = !options.root.empty();
  if (options.unique_id || (!explicit_root && !config.unique_id.empty())) {
    if (options.unique_id) {
      rendezvous.unique_id = *options.unique_id;
    } else {
      auto id = UniqueId::from_text(config.unique_id);
      if (!id) return id.error();
      rendezvous.unique_id = *id;
    }
    auto parts = unpack_unique_id(*rendezvous.unique_id);
    if (!parts) return parts.error();
    return rendezvous;
  }
  const std::string interface = first_of(options.interface, config.interface);
  if (!explicit_root && config.root.empty() && !launch->launcher.empty() && launch->launcher != "tutti") {
    TUTTI_TRY(meet_by_launcher(*launch, interface, rendezvous));
    return rendezvous;
  }
  std::string host;
  std::uint16_t port = 0;
  TUTTI_TRY(parse_root(first_of(options.root, config.root), host, port));
  if (host.empty()) {
    auto address = interface_address(interface.empty() ? "lo" : interface);
    if (!address) return address.error();
    rendezvous.host = *address;
  } else {
    TUTTI_TRY(check_host(host));
    rendezvous.host = host;
    if (rendezvous.rank == 0 && !launch->one_machine) rendezvous.other_host = other_host(interface);
  }
  rendezvous.ports = port != 0                 ? std::vector<std::uint16_t>{port}
                     : config.port_range.any() ? std::vector<std::uint16_t>{kDefaultPort}
                                               : derived_ports(rendezvous.job_id, config.port_range);
  // The inherited socket (TUTTI_ROOT_FD) is bound to the address in TUTTI_ROOT, so it is not used if the options
  // specify a root.
  if (options.root.empty() && rendezvous.rank == 0) rendezvous.listening_fd = config.root_fd.value_or(-1);
  rendezvous.listening_port = port;
  return rendezvous;
}

}  // namespace tutti
