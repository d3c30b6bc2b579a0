#include "runtime/root_addresses.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/interfaces.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kLookUpPause{500};  // so that thousands of ranks do not flood a name server

std::string numeric_text(const addrinfo& info) {
  std::array<char, NI_MAXHOST> text{};
  const int status = getnameinfo(info.ai_addr, info.ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? text.data() : std::string();
}

}  // namespace

RootAddresses::RootAddresses(std::string host) : host_(std::move(host)) {}

void RootAddresses::look_up() {
  const auto now = std::chrono::steady_clock::now();
  if (fixed_ || now < next_) return;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host_.c_str(), nullptr, &hints, &found);
  const int reason = errno;
  next_ = std::chrono::steady_clock::now() + kLookUpPause;
  if (status != 0) {
    trouble_ = status == EAI_SYSTEM ? std::strerror(reason) : gai_strerror(status);
    return;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
      std::string address = info->ai_family == family ? numeric_text(*info) : std::string();
      const bool known = std::find(addresses.begin(), addresses.end(), address) != addresses.end();
      if (!address.empty() && !known) addresses.push_back(std::move(address));
    }
  }
  trouble_ = addresses.empty() ? "it has neither an IPv4 nor an IPv6 address" : "";
  if (addresses.empty()) return;
  fixed_ = addresses.front() == host_;  // a numeric address
  list_ = std::move(addresses);
}

void RootAddresses::fix(std::vector<std::string> addresses) {
  list_ = std::move(addresses);
  trouble_.clear();
  fixed_ = true;
}

bool RootAddresses::is_loopback_by_hosts_file() const {
  return !list_.empty() && host_ != "localhost" && !is_loopback_address(host_) &&
         std::all_of(list_.begin(), list_.end(), is_loopback_address);
}

std::string RootAddresses::text() const {
  const bool numeric = list_.empty() || (list_.size() == 1 && list_.front() == host_);
  return numeric ? host_ : fmt::format("{} ({})", host_, fmt::join(list_, ", "));
}

}  // namespace tutti
