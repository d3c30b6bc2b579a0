#include "transports/verbs/reports.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace tutti {

// event.element is a union. The type of the event determines which member is valid.
void DeviceReports::take(const ibv_async_event& event, const std::string& words) {
  const auto port = [&] { return static_cast<std::uint8_t>(event.element.port_num); };
  const std::scoped_lock lock(mutex_);
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      troubles_[port()] = fmt::format("{} port {} is down", device_, port());
      down_.try_emplace(port(), SteadyClock().now_ns());
      break;
    case IBV_EVENT_PORT_ACTIVE:
      troubles_.erase(port());
      down_.erase(port());
      break;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_GID_CHANGE:
      troubles_.try_emplace(port(), fmt::format("the addresses of {} port {} have changed ({})", device_, port(),
                                                event.event_type == IBV_EVENT_GID_CHANGE ? "GIDs" : "LID"));
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    // A queue pair with a shared receive queue has left the working state. If it has sent nothing, this event can be
    // the only report of its failure. Tutti never moves a queue pair out of that state itself, so the event always
    // means a failure.
    case IBV_EVENT_QP_LAST_WQE_REACHED: note_failure(event.element.qp, words); break;
    case IBV_EVENT_CQ_ERR: note_failure(event.element.cq, words); break;
    case IBV_EVENT_SRQ_ERR: note_failure(event.element.srq, words); break;
    case IBV_EVENT_DEVICE_FATAL:
      troubles_[0] = fmt::format("{} has failed: {}", device_, words);
      dead_.store(true, std::memory_order_release);
      break;
    default: break;  // other events need no action
  }
}

void DeviceReports::note_failure(const void* object, const std::string& words) {
  const auto found = watched_.find(object);
  if (found == watched_.end() || !found->second.failure.empty()) return;
  found->second.failure = words;
  failures_.fetch_add(1, std::memory_order_release);
}

std::optional<std::int64_t> DeviceReports::down_since_ns(std::uint8_t port) {
  const std::scoped_lock lock(mutex_);
  const auto found = down_.find(port);
  return found == down_.end() ? std::nullopt : std::optional(found->second);
}

std::string DeviceReports::trouble(std::uint8_t port) {
  const std::scoped_lock lock(mutex_);
  for (const std::uint8_t key : {std::uint8_t{0}, port}) {
    if (const auto found = troubles_.find(key); found != troubles_.end()) return found->second;
  }
  return {};
}

void DeviceReports::watch(ibv_qp* pair) {
  const std::scoped_lock lock(mutex_);
  watched_[pair] = {.pair = pair, .failure = {}};
}

void DeviceReports::watch(const void* queue) {
  const std::scoped_lock lock(mutex_);
  watched_[queue] = {};
}

void DeviceReports::unwatch(const void* object) {
  const std::scoped_lock lock(mutex_);
  const auto found = watched_.find(object);
  if (found == watched_.end()) return;
  if (!found->second.failure.empty()) failures_.fetch_sub(1, std::memory_order_release);
  watched_.erase(found);
}

std::string DeviceReports::failure(const void* object) {
  if (!any_failure()) return {};
  const std::scoped_lock lock(mutex_);
  const auto found = watched_.find(object);
  return found == watched_.end() ? std::string() : found->second.failure;
}

std::vector<ibv_qp*> DeviceReports::pairs() {
  const std::scoped_lock lock(mutex_);
  std::vector<ibv_qp*> all;
  for (const auto& [object, one] : watched_) {
    if (one.pair != nullptr) all.push_back(one.pair);
  }
  return all;
}

}  // namespace tutti
