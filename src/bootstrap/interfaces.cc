// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
// clang-format on

#include "bootstrap/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <cerrno>
#include <map>
#include <memory>
#include <optional>

#include "base/system_error.h"

namespace tutti {
namespace {

namespace ip = boost::asio::ip;
using boost::system::error_code;

Error error_of_call(const std::string& what, int error) {
  return {ErrorCode::kSystem, ErrorScope::kCall, -1, what + ": " + describe_errno(error)};
}

Error config_error(std::string message) { return {ErrorCode::kConfig, ErrorScope::kCall, -1, std::move(message)}; }

std::optional<ip::address> parse_address(const std::string& text) {
  error_code error;
  const ip::address address = ip::make_address(text, error);
  return error ? std::nullopt : std::optional(address);
}

bool is_link_local(const ip::address& address) { return address.is_v6() && address.to_v6().is_link_local(); }

// A subnet "address/bits", IPv4 or IPv6.
struct Subnet {
  std::optional<ip::network_v4> v4;
  std::optional<ip::network_v6> v6;

  static std::optional<Subnet> parse(const std::string& text) {
    error_code error4, error6;
    Subnet subnet;
    const ip::network_v4 net4 = ip::make_network_v4(text, error4);
    if (!error4) subnet.v4 = net4.canonical();
    const ip::network_v6 net6 = ip::make_network_v6(text, error6);
    if (!error6) subnet.v6 = net6.canonical();
    return error4 && error6 ? std::nullopt : std::optional(subnet);
  }
  bool holds(const ip::address& address) const {
    if (address.is_v4()) return v4 && ip::network_v4(address.to_v4(), v4->prefix_length()).canonical() == *v4;
    if (!v6) return false;
    const ip::address_v6 plain(
        address.to_v6().to_bytes());  // `address` without the scope id, which would make the comparison fail
    return ip::network_v6(plain, v6->prefix_length()).canonical() == *v6;
  }
};

std::string list_of(std::span<const InterfaceAddress> there) {
  std::map<std::string, std::vector<std::string>> by_name;
  for (const InterfaceAddress& one : there) by_name[one.name].push_back(one.address);
  std::vector<std::string> texts;
  for (const auto& [name, addresses] : by_name)
    texts.push_back(fmt::format("{} ({})", name, fmt::join(addresses, ", ")));
  return fmt::format("there are: {}", fmt::join(texts, ", "));
}

// Evaluates one entry of the list of preferences. Returns an empty text if the entry matches no usable address.
// Sets `link_local` to true if it skips a link-local IPv6 address that matches a name or subnet.
Result<std::string> select_one(const std::string& wanted, std::span<const InterfaceAddress> there, bool& link_local) {
  const auto exact = parse_address(wanted);
  std::optional<Subnet> subnet;
  if (wanted.find('/') != std::string::npos) {
    subnet = Subnet::parse(wanted);
    if (!subnet) return config_error(fmt::format("\"{}\" is not a subnet such as 10.1.0.0/16 or fd00::/8", wanted));
  }
  std::string v6;
  for (const InterfaceAddress& one : there) {
    const auto address = parse_address(one.address);
    if (!address) continue;
    if (exact && *exact == *address) return one.address;
    if (exact || (subnet ? !subnet->holds(*address) : one.name != wanted)) continue;
    if (is_link_local(*address)) {
      link_local = true;
    } else if (address->is_v4()) {
      return one.address;
    } else if (v6.empty()) {
      v6 = one.address;
    }
  }
  return v6;
}

// Returns the beginning of an error message that names an interface of the list `wanted` that exists but is down (the
// first one in the order of the operating system). Empty if there is none, or if the interfaces cannot be listed.
std::string words_of_down(std::string_view wanted) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  const std::string list = fmt::format(",{},", wanted);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    const std::string name = entry->ifa_name;
    if ((entry->ifa_flags & IFF_UP) != 0 || list.find("," + name + ",") == std::string::npos) continue;
    return fmt::format("network interface \"{0}\" is down: bring it up (ip link set {0} up); ", name);
  }
  return {};
}

}  // namespace

Result<std::vector<InterfaceAddress>> interface_addresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return error_of_call("the network interfaces cannot be listed", errno);
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> host{};
    if (getnameinfo(entry->ifa_addr, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses.push_back({entry->ifa_name, host.data()});
  }
  return addresses;
}

Result<std::string> select_address(std::string_view wanted, std::span<const InterfaceAddress> there) {
  bool link_local = false;
  std::string_view rest = wanted;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string one(rest.substr(0, comma));
    if (one.empty()) return config_error(fmt::format("\"{}\" has an empty preference", wanted));
    auto address = select_one(one, there, link_local);
    if (!address || !address->empty()) return address;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (link_local) {
    return config_error(
        fmt::format("network interface \"{}\" has link-local IPv6 addresses only, which mean something else on every "
                    "machine: give one in full, such as fe80::1%eth0, or choose another; {}",
                    wanted, list_of(there)));
  }
  return config_error(fmt::format("there is no network interface \"{}\"; {}", wanted, list_of(there)));
}

Result<std::string> interface_address(std::string_view wanted) {
  auto there = interface_addresses();
  if (!there) return there.error();
  auto selected = select_address(wanted, *there);
  if (selected) return selected;
  return config_error(words_of_down(wanted) + selected.error().message);
}

bool is_own_address(const std::string& address) {
  const auto wanted = parse_address(address);
  if (!wanted) return false;
  if (wanted->is_loopback() || wanted->is_unspecified()) return true;  // loopback: all of 127.0.0.0/8, and ::1
  const auto there = interface_addresses();
  if (!there) return false;
  for (const InterfaceAddress& one : *there) {
    if (parse_address(one.address) == wanted) return true;
  }
  return false;
}

bool is_loopback_address(const std::string& address) {
  const auto parsed = parse_address(address);
  return parsed && parsed->is_loopback();
}

Result<std::string> route_address(const std::string& peer) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(peer.c_str(), "9", &hints, &found) != 0) return std::string();
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 && is_shortage(errno)) return error_of_call(fmt::format("the route to {} cannot be found", peer), errno);
  if (fd < 0) return std::string();  // for example, the machine does not support the address family of `peer`
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  std::array<char, NI_MAXHOST> host{};
  auto* const generic = reinterpret_cast<sockaddr*>(&name);
  const bool known = connect(fd, found->ai_addr, found->ai_addrlen) == 0 && getsockname(fd, generic, &length) == 0 &&
                     getnameinfo(generic, length, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) == 0;
  close(fd);
  return std::string(known ? host.data() : "");
}

Result<std::string> outward_address() {
  // These IPv4 and IPv6 addresses are reserved for documentation, so no host should have them. The system would
  // therefore normally send packets to them over the default route.
  for (const char* anywhere : {"198.51.100.1", "2001:db8::1"}) {
    auto address = route_address(anywhere);
    if (!address || (!address->empty() && !is_loopback_address(*address))) return address;
  }
  auto there = interface_addresses();
  if (!there) return there.error();
  for (const InterfaceAddress& one : *there) {
    const auto address = parse_address(one.address);
    if (address && !address->is_loopback() && !is_link_local(*address)) return one.address;
  }
  return config_error(
      fmt::format("no network interface leads to other machines: set TUTTI_INTERFACE; {}", list_of(*there)));
}

Result<std::string> data_address(const Config& config, const std::string& towards) {
  if (!config.interface.empty()) return interface_address(config.interface);
  auto address = route_address(towards);
  if (!address || !address->empty()) return address;
  return config_error(fmt::format("there is no route to {}, where the ranks met: set TUTTI_INTERFACE", towards));
}

Result<std::string> route_to_others(const std::string& own, const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (is_own_address(address)) continue;
    auto route = route_address(address);
    return route && route->empty() ? own : route;
  }
  return own;
}

}  // namespace tutti
