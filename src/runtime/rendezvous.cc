#include "runtime/rendezvous.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <set>

#include "base/assert.h"

namespace tutti {
namespace {

Error config_error(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }

std::string numeric_address(const sockaddr* address) {
  std::array<char, NI_MAXHOST> host{};
  const socklen_t length = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (getnameinfo(address, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return host.data();
}

// "host:port", "[v6]:port", ":port", "port" or "host". Leaves alone what is not said.
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
  } else if (root.find_first_not_of("0123456789") == std::string::npos) {  // nothing, or a port
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

// Names such as localhost become addresses.
Result<std::string> resolve_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* info) {
    if (info != nullptr) freeaddrinfo(info);
  });
  if (status != 0) return config_error(fmt::format("root host \"{}\" is unknown: {}", host, gai_strerror(status)));
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family == AF_INET) return numeric_address(info->ai_addr);
  }
  return numeric_address(found->ai_addr);
}

}  // namespace

Result<std::string> interface_address(const std::string& name) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return config_error("the network interfaces cannot be listed");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  std::set<std::string> names;
  std::string v6;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    names.insert(entry->ifa_name);
    if (name != entry->ifa_name || entry->ifa_addr == nullptr) continue;
    if (entry->ifa_addr->sa_family == AF_INET) return numeric_address(entry->ifa_addr);
    if (entry->ifa_addr->sa_family == AF_INET6 && v6.empty()) v6 = numeric_address(entry->ifa_addr);
  }
  if (!v6.empty()) return v6;
  return config_error(names.contains(name) ? fmt::format("network interface \"{}\" has no address", name)
                                           : fmt::format("there is no network interface \"{}\"; there are: {}", name,
                                                         fmt::join(names, ", ")));
}

Result<RendezvousOptions> resolve_rendezvous(const CommunicatorOptions& options, const Config& config) {
  RendezvousOptions rendezvous;
  const auto invalid = [](std::string message) {
    return Error{ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)};
  };
  rendezvous.size = options.size != -1 ? options.size : config.size.value_or(-1);
  rendezvous.rank = options.rank != -1 ? options.rank : config.rank.value_or(-1);
  if (rendezvous.size == -1)
    return invalid("the number of ranks is not given: set CommunicatorOptions::size or TUTTI_WORLD_SIZE");
  if (rendezvous.rank == -1)
    return invalid("this rank's number is not given: set CommunicatorOptions::rank or TUTTI_RANK");
  if (rendezvous.size < 1 || rendezvous.size > 65535) {
    return invalid(fmt::format("size {} is outside 1..65535", rendezvous.size));
  }
  if (rendezvous.rank < 0 || rendezvous.rank >= rendezvous.size) {
    return invalid(fmt::format("rank {} is outside 0..{}", rendezvous.rank, rendezvous.size - 1));
  }
  rendezvous.job_id = !options.job_id.empty() ? options.job_id : !config.job_id.empty() ? config.job_id : "default";
  if (rendezvous.job_id.size() > 128) return invalid("the job id is longer than 128 bytes");
  if (options.setup_timeout.count() < 0 || options.timeout.count() < 0) return invalid("a timeout is negative");
  const auto timeout = options.setup_timeout.count() > 0 ? options.setup_timeout : config.setup_timeout;
  rendezvous.timeout_ms = std::min<std::int64_t>(timeout.count(), 86'400'000);  // one day

  std::string host;
  rendezvous.port = kDefaultPort;
  TUTTI_TRY(parse_root(!options.root.empty() ? options.root : config.root, host, rendezvous.port));
  auto address = !host.empty() ? resolve_host(host)
                               : interface_address(!options.interface.empty()  ? options.interface
                                                   : !config.interface.empty() ? config.interface
                                                                               : "lo");
  if (!address) return address.error();
  rendezvous.host = *address;
  // The launcher's socket stands for the launcher's address only.
  if (options.root.empty() && rendezvous.rank == 0) rendezvous.listening_fd = config.root_fd.value_or(-1);
  return rendezvous;
}

}  // namespace tutti
