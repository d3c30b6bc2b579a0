// Runs a RendezvousServer in a thread of its own. The destructor of the RendezvousServer joins or detaches the
// thread.

// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
// clang-format on

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <vector>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/system_error.h"
#include "base/thread.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/server_core.h"

namespace tutti {

void RendezvousServer::Core::leave() noexcept {
  const bool posted = runs_through([&] { boost::asio::post(io_, [this] { owner_left(); }); });
  // There is no memory to post the request. The server ends at once, and the ranks see that their connections end.
  if (!posted) io_.stop();
}

detail::OwnerWait::Outcome detail::OwnerWait::wait() {
  std::unique_lock lock(mutex_);
  released_.wait(lock, [this] { return outcome_ != Outcome::kWaiting; });
  return outcome_;
}

void detail::OwnerWait::release(Outcome outcome) {
  const std::scoped_lock lock(mutex_);
  outcome_ = std::max(outcome_, outcome);
  released_.notify_all();
}

RendezvousServer::RendezvousServer(std::shared_ptr<Core> core) : core_(std::move(core)) {}

int RendezvousServer::shortage() const { return core_->shortage(); }

void RendezvousServer::set_succeeded() { core_->set_succeeded(); }

RendezvousServer::~RendezvousServer() {
  if (!thread_.joinable()) return;
  core_->leave();
  const bool ended = core_->wait_after_leave() == detail::OwnerWait::Outcome::kEnded;
  ended ? thread_.join() : thread_.detach();
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(Listener listener,
                                                                  const RendezvousServerOptions& options) {
  std::vector<Listener> listeners;
  listeners.push_back(std::move(listener));
  return start(std::move(listeners), options);
}

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(std::vector<Listener> listeners,
                                                                  const RendezvousServerOptions& options) {
  TUTTI_ASSERT(!listeners.empty() && options.job_id.size() <= wire::kMaxJobIdBytes);
  const auto failed = [](const std::string& words) {
    return Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1, "set-up failed: " + words};
  };
  try {
    std::unique_ptr<RendezvousServer> server(
        new RendezvousServer(std::make_shared<Core>(std::move(listeners), options)));
    server->thread_ = start_thread([core = server->core_] { core->run(); });
    return server;
  } catch (const std::system_error& error) {
    return failed(describe_thread_start_error(error));
  } catch (const boost::system::system_error& error) {
    // Asio throws this, for example if no file descriptor is free.
    return failed(describe_errno(error.code().value()));
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

void RendezvousServer::detach(std::unique_ptr<RendezvousServer> server) { server->thread_.detach(); }

}  // namespace tutti
