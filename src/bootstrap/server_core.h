// RendezvousServer::Core: the state of a RendezvousServer: its connections, the ranks that have joined, the current
// round, and the failure, if any.
#pragma once

// clang-format off
#include <utility>  // needed because Asio before 1.74 does not include it
// clang-format on

#include <atomic>
#include <boost/asio.hpp>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/crypto/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/server_connection.h"
#include "tutti/result.h"

namespace tutti {

// Only the server's thread may use it, except for shortage(), set_succeeded(), leave() and ended_after_leave().
class RendezvousServer::Core {
 public:
  Core(std::vector<Listener> listeners, const RendezvousServerOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  void run();
  int shortage() const { return accept_error_; }  // any thread may call it
  void set_succeeded() { succeeded_ = true; }     // the owner's thread calls it before leave()
  // The owner's thread calls both, first leave(). ended_after_leave() blocks until the owner may continue. It
  // returns true if run() has ended, so that the thread can be joined, and false if the thread still serves slow
  // ranks.
  void leave() noexcept;
  bool ended_after_leave();

 private:
  using Connection = detail::ServerConnection;
  using Body = Connection::Body;
  using ConnectionPtr = std::shared_ptr<Connection>;
  using Next = void (Core::*)(const ConnectionPtr&);
  // A socket that listens on one of the server's addresses.
  struct ListeningSocket {
    explicit ListeningSocket(boost::asio::io_context& io) : acceptor(io), retry(io) {}
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer retry;
  };

  void end_by_exception() noexcept;
  void accept_next(ListeningSocket& listening);
  bool listens() const { return listening_sockets_.front().acceptor.is_open(); }
  void close_listening_sockets();
  void greet(const ConnectionPtr& client);
  void read_frame(const ConnectionPtr& client, std::size_t longest, Next next);
  void take_hello(const ConnectionPtr& client);
  void take_answer(const ConnectionPtr& client);
  std::string fault_of_hello(const ConnectionPtr& client) const;
  std::string fault_of_rank(const wire::RankInfo& rank_info) const;
  std::optional<Error> fault_of_encryption() const;
  void refuse(const ConnectionPtr& client, const std::string& reason);
  void close_oldest_unauthenticated();
  void begin_tls(const ConnectionPtr& client);
  void take_rank_info(const ConnectionPtr& client, const wire::RankInfo& rank_info);
  void admit(const ConnectionPtr& client, const wire::RankInfo& rank_info);
  void take_message(const ConnectionPtr& client);
  void handle_early_leave(const ConnectionPtr& client);
  void finish_round();
  void send(const ConnectionPtr& client, std::shared_ptr<const Body> body);
  void send(const ConnectionPtr& client, std::string text) {
    send(client, std::make_shared<const Body>(std::move(text)));
  }
  void write_next(const ConnectionPtr& client);
  void end(const ConnectionPtr& client);
  void fail(ErrorCode code, std::int32_t rank, const std::string& message);
  void set_deadline(std::int64_t after_ms);
  void deadline_passed();
  void owner_left();
  void release_owner(bool ended);
  void stop_when_empty();
  void note_refusal(const std::string& reason);
  std::vector<std::int32_t> ranks_without(bool (*has)(const ConnectionPtr&)) const;
  bool complete() const { return size_ && joined_ == static_cast<std::size_t>(*size_); }
  static bool has_joined(const ConnectionPtr& client) { return client != nullptr; }
  static bool has_blob(const ConnectionPtr& client) { return client->blob.has_value(); }
  std::string missing_text() const;

  const RendezvousServerOptions options_;
  boost::asio::io_context io_;
  std::deque<ListeningSocket> listening_sockets_;  // at least one; either all are open or none
  boost::asio::steady_timer deadline_, flush_timer_, release_timer_;
  std::int64_t deadline_ms_ = 0;  // for messages
  std::optional<std::int32_t> size_;
  std::vector<ConnectionPtr> clients_;  // indexed by rank
  // By connection number: connections that have not proved that they have the key, or that are being refused.
  std::map<std::uint64_t, ConnectionPtr> unauthenticated_;
  std::uint64_t connection_count_ = 0;  // number of connections so far
  const Tag job_;
  wire::Nonce meeting_{};   // sent to all ranks
  std::size_t joined_ = 0;  // number of ranks that have joined so far
  std::size_t alive_ = 0;   // number of these that are still connected
  std::optional<Error> failure_;
  bool encryption_checked_ = false;  // fault_of_encryption() has been called
  // The errno value with which the last accept failed, or 0 if it succeeded.
  std::atomic<int> accept_error_ = 0;
  std::atomic<bool> succeeded_ = false;  // set if the owner's set-up has succeeded
  bool serves_late_ranks_ = false;       // the owner has left, and the server continues for late ranks
  std::mutex owner_mutex_;
  std::condition_variable owner_released_;
  // Set by release_owner(). Guarded by owner_mutex_.
  bool owner_may_go_ = false, ended_ = false;
  std::vector<std::string> refusals_;  // a few reasons of refusals, for the error if ranks do not join
};

}  // namespace tutti
