// RendezvousServer::Core: the state of a RendezvousServer: the ranks that have joined, the current round, and the
// failure, if there is one. It has three parts. ListeningSockets accepts the connections. Admission does the
// handshake with each new connection. OwnerWait lets the destructor of the RendezvousServer wait for the server's
// thread.
#pragma once

// clang-format off
#include <utility>  // needed because the Asio of Boost 1.74 does not include it
// clang-format on

#include <atomic>
#include <boost/asio.hpp>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/crypto/hmac.h"
#include "bootstrap/admission.h"
#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/listening_sockets.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/server_connection.h"
#include "tutti/result.h"

namespace tutti {
namespace detail {

// Lets the destructor of a RendezvousServer wait until the server's thread permits it to continue. Any thread may
// use the object.
class OwnerWait {
 public:
  enum class Outcome : std::uint8_t {
    kWaiting,
    kServing,  // the owner may continue; the server's thread goes on, for slow ranks
    kEnded,    // the server's thread has ended or will end at once, so it can be joined
  };
  // Blocks until release() was called. Returns kEnded if a call of release() so far had that argument, otherwise
  // kServing.
  Outcome wait();
  // Ends wait(). A call with kServing has no effect after a call with kEnded.
  void release(Outcome outcome);

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  Outcome outcome_ = Outcome::kWaiting;  // guarded by mutex_
};

}  // namespace detail

// While the server's thread runs, only that thread may use the object, except for shortage(), set_succeeded(), leave()
// and wait_after_leave().
class RendezvousServer::Core final : detail::AdmissionHost {
 public:
  Core(std::vector<Listener> listeners, const RendezvousServerOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  // Runs the event loop until the server ends. Called in the server's thread.
  void run();
  // See RendezvousServer::shortage(). Any thread may call it.
  int shortage() const { return listening_.accept_error(); }
  // See RendezvousServer::set_succeeded(). The owner's thread calls it before leave().
  void set_succeeded() { succeeded_ = true; }
  // The owner's thread calls leave() and then wait_after_leave(). leave() asks the server to end, and
  // wait_after_leave() blocks until the owner may continue.
  void leave() noexcept;
  detail::OwnerWait::Outcome wait_after_leave() { return owner_wait_.wait(); }

 private:
  using Body = detail::ServerConnection::Body;
  using ConnectionPtr = std::shared_ptr<detail::RankConnection>;

  std::string fault_of_rank(const wire::RankInfo& rank_info) const override;
  bool has_failed() const override { return failure_.has_value(); }
  void admit(const ConnectionPtr& client, const wire::RankInfo& rank_info) override;
  void unadmitted_ended() override { stop_when_empty(); }

  void end_by_exception() noexcept;
  void close_connections();
  std::optional<Error> fault_of_encryption() const;
  void read_message(const ConnectionPtr& client);
  void take_message(const ConnectionPtr& client);
  void handle_early_leave(const ConnectionPtr& client, bool has_failed);
  void fail_because_left(std::int32_t rank);
  void finish_round();
  void end(const ConnectionPtr& client);
  void fail(ErrorCode code, std::int32_t rank, const std::string& message);
  void set_deadline(std::int64_t after_ms);
  void deadline_passed();
  void owner_left();
  void stop_when_empty();
  std::vector<std::int32_t> ranks_without(bool (*has)(const ConnectionPtr&)) const;
  bool complete() const { return size_ && joined_ == static_cast<std::size_t>(*size_); }
  std::string missing_text() const;

  const RendezvousServerOptions options_;
  boost::asio::io_context io_;
  detail::ListeningSockets listening_;
  detail::Admission admission_;
  boost::asio::steady_timer deadline_, flush_timer_, release_timer_;
  std::int64_t deadline_ms_ = 0;  // the limit that deadline_ implements, for messages
  std::optional<std::int32_t> size_;
  std::vector<ConnectionPtr> clients_;  // indexed by rank; null until the rank has joined
  wire::Nonce meeting_{};               // nonce that all ranks receive with the welcome
  std::size_t joined_ = 0;              // number of ranks that have joined so far
  std::size_t alive_ = 0;               // number of the joined ranks that are still connected
  std::optional<Error> failure_;
  bool encryption_checked_ = false;      // fault_of_encryption() has been called
  std::atomic<bool> succeeded_ = false;  // see set_succeeded()
  bool serves_late_ranks_ = false;       // the owner has left after a failure; late ranks get the reason
  detail::OwnerWait owner_wait_;
};

}  // namespace tutti
