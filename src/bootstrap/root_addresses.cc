#include "bootstrap/root_addresses.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "base/system_error.h"
#include "base/thread.h"
#include "bootstrap/interfaces.h"

namespace tutti {
namespace {

// Minimum time between the end of one look-up and the start of the next, so that thousands of ranks do not overload a
// name server.
constexpr std::chrono::milliseconds kLookUpPause{500};

std::string numeric_text(const addrinfo& info) {
  std::array<char, NI_MAXHOST> text{};
  const int status = getnameinfo(info.ai_addr, info.ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return status == 0 ? text.data() : std::string();
}

std::vector<std::string> numeric_addresses(const addrinfo* found) {
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
      std::string address = info->ai_family == family ? numeric_text(*info) : std::string();
      const bool known = std::find(addresses.begin(), addresses.end(), address) != addresses.end();
      if (!address.empty() && !known) addresses.push_back(std::move(address));
    }
  }
  return addresses;
}

}  // namespace

// One query to the resolver of the system, and its answer: `addresses`, or `trouble` if there are none.
struct RootAddresses::LookUp {
  std::mutex mutex;  // guards `done`, `addresses` and `trouble`
  std::condition_variable answered;
  bool done = false;
  std::vector<std::string> addresses;
  std::string trouble;

  // Runs the query. Blocks the calling thread, which may be any thread. `flags` are those of getaddrinfo().
  void ask(const std::string& host, int flags) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    addrinfo* found = nullptr;
    const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    const int reason = errno;
    const std::scoped_lock lock(mutex);
    if (status != 0) {
      trouble = status == EAI_SYSTEM ? std::strerror(reason) : gai_strerror(status);
    } else {
      const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
      addresses = numeric_addresses(found);
      if (addresses.empty()) trouble = "it has neither an IPv4 nor an IPv6 address";
    }
    done = true;
    answered.notify_all();
  }

  void ask_in_background(const std::string& host) {
    try {
      ask(host, 0);
    } catch (const std::exception&) {
      const std::scoped_lock lock(mutex);
      trouble = "no memory";  // short enough for the string's internal buffer, so it allocates nothing
      done = true;
      answered.notify_all();
    }
  }
};

RootAddresses::RootAddresses(std::string host) : host_(std::move(host)) {}

void RootAddresses::look_up(std::chrono::milliseconds timeout) {
  if (fixed_ || (pending_ == nullptr && std::chrono::steady_clock::now() < next_)) return;
  if (LookUp numeric; list_.empty()) {
    numeric.ask(host_, AI_NUMERICHOST);
    if (!numeric.addresses.empty()) return fix(std::move(numeric.addresses));
  }
  if (pending_ == nullptr) {
    const auto asked = std::make_shared<LookUp>();
    try {
      start_thread([asked, host = host_] { asked->ask_in_background(host); }).detach();
      pending_ = asked;
      trouble_ = "the name server has not answered";
    } catch (const std::system_error& error) {
      trouble_ = "to look it up, " + describe_thread_start_error(error);
      next_ = std::chrono::steady_clock::now() + kLookUpPause;
    } catch (const std::exception& error) {
      trouble_ = fmt::format("no thread can be started to look it up: {}", error.what());
      next_ = std::chrono::steady_clock::now() + kLookUpPause;
    }
  }
  if (pending_ == nullptr) return;
  std::unique_lock lock(pending_->mutex);
  if (!pending_->answered.wait_for(lock, timeout, [this] { return pending_->done; })) return;
  lock.unlock();
  take(*std::exchange(pending_, nullptr));
}

void RootAddresses::take(LookUp& answer) {
  next_ = std::chrono::steady_clock::now() + kLookUpPause;
  trouble_ = std::move(answer.trouble);
  if (!answer.addresses.empty()) list_ = std::move(answer.addresses);
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
  if (host_.empty()) return fmt::format("{}", fmt::join(list_, ", "));
  const bool numeric = list_.empty() || (list_.size() == 1 && list_.front() == host_);
  return numeric ? host_ : fmt::format("{} ({})", host_, fmt::join(list_, ", "));
}

}  // namespace tutti
