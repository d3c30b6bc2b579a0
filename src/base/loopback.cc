#include "base/loopback.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>

namespace tutti {
namespace {

// Calls `visit` for each address of each interface. For an interface without addresses `ifa_addr` may be null.
void for_each_interface(const std::function<void(const ifaddrs&)>& visit) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) visit(*entry);
}

}  // namespace

std::string loopback_address() {
  bool v4 = false;
  bool v6 = false;
  for_each_interface([&](const ifaddrs& entry) {
    if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_LOOPBACK) == 0) return;
    if (entry.ifa_addr->sa_family == AF_INET) {
      const auto& address = reinterpret_cast<const sockaddr_in&>(*entry.ifa_addr);
      v4 = v4 || address.sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    } else if (entry.ifa_addr->sa_family == AF_INET6) {
      v6 = v6 || IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(*entry.ifa_addr).sin6_addr);
    }
  });
  return v6 && !v4 ? "::1" : "127.0.0.1";
}

Status check_loopback() {
  bool up = false;
  std::string down;
  for_each_interface([&](const ifaddrs& entry) {
    if ((entry.ifa_flags & IFF_LOOPBACK) == 0) return;
    if ((entry.ifa_flags & IFF_UP) != 0) {
      up = true;
    } else {
      down = entry.ifa_name;
    }
  });
  if (up || down.empty()) return {};
  return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1,
               "the loopback interface \"" + down + "\" is down, so the processes of this machine cannot meet: bring " +
                   "it up (ip link set " + down + " up)"};
}

}  // namespace tutti
