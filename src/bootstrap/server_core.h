// What a RendezvousServer consists of: its connections, who has come, the present round, and how it failed.
#pragma once

// clang-format off
#include <utility>  // before Asio 1.74, which forgets it
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

#include "base/hmac.h"
#include "bootstrap/bootstrap_wire.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/server_connection.h"
#include "tutti/result.h"

namespace tutti {

// All of it belongs to the server's thread, except for shortage(), set_succeeded(), leave() and
// ended_after_leave().
class RendezvousServer::Core {
 public:
  Core(std::vector<Listener> listeners, const RendezvousServerOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  void run();
  int shortage() const { return starved_; }    // any thread
  void set_succeeded() { succeeded_ = true; }  // the owner's thread, before leave()
  // Both are called by the owner's thread, first leave(). ended_after_leave() blocks until the owner may go on. True:
  // run() has ended, so the thread can be joined. False: it still serves slow ranks.
  void leave() noexcept;
  bool ended_after_leave();

 private:
  using Line = detail::ServerConnection;
  using Body = Line::Body;
  using LinePtr = std::shared_ptr<Line>;
  using Next = void (Core::*)(const LinePtr&);
  struct Door {  // one of the addresses that the server listens on
    explicit Door(boost::asio::io_context& io) : acceptor(io), retry(io) {}
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer retry;
  };

  void end_by_exception() noexcept;
  void accept_next(Door& door);
  bool listens() const { return doors_.front().acceptor.is_open(); }
  void close_doors();
  void greet(const LinePtr& line);
  void read_frame(const LinePtr& line, std::size_t longest, Next next);
  void take_hello(const LinePtr& line);
  void take_answer(const LinePtr& line);
  std::string fault_of_hello(const LinePtr& line) const;
  std::string fault_of_rank(const wire::Introduction& introduction) const;
  std::optional<Error> fault_of_encryption() const;
  void refuse(const LinePtr& line, const std::string& reason);
  void make_room();
  void begin_tls(const LinePtr& line);
  void take_introduction(const LinePtr& line, const wire::Introduction& introduction);
  void admit(const LinePtr& line, const wire::Introduction& introduction);
  void take_word(const LinePtr& line);
  void give_up(const LinePtr& line);
  void finish_round();
  void send(const LinePtr& line, std::shared_ptr<const Body> body);
  void send(const LinePtr& line, std::string text) { send(line, std::make_shared<const Body>(std::move(text))); }
  void write_next(const LinePtr& line);
  void end(const LinePtr& line);
  void fail(ErrorCode code, std::int32_t rank, const std::string& message);
  void set_deadline(std::int64_t after_ms);
  void deadline_passed();
  void owner_left();
  void let_owner_go(bool ended);
  void stop_when_empty();
  void note_refusal(const std::string& reason);
  std::vector<std::int32_t> ranks_without(bool (*has)(const LinePtr&)) const;
  bool complete() const { return size_ && joined_ == static_cast<std::size_t>(*size_); }
  static bool has_joined(const LinePtr& line) { return line != nullptr; }
  static bool has_blob(const LinePtr& line) { return line->blob.has_value(); }
  std::string missing_text() const;

  const RendezvousServerOptions options_;
  boost::asio::io_context io_;
  std::deque<Door> doors_;  // at least one; all are open, or none
  boost::asio::steady_timer deadline_, farewell_, release_;
  std::int64_t deadline_ms_ = 0;  // as told in messages
  std::optional<std::int32_t> size_;
  std::vector<LinePtr> lines_;                  // by rank
  std::map<std::uint64_t, LinePtr> strangers_;  // by number: who has not proved itself, or is being refused
  std::uint64_t came_ = 0;                      // connections, ever
  const Tag job_;
  wire::Nonce meeting_{};   // told to all ranks
  std::size_t joined_ = 0;  // have ever joined
  std::size_t alive_ = 0;   // of these, still connected
  std::optional<Error> failure_;
  bool judged_ = false;                  // whether all ranks encrypt, or none
  std::atomic<int> starved_ = 0;         // an errno: why the system gave no descriptor for the last to come; 0: it did
  std::atomic<bool> succeeded_ = false;  // the owner's set-up has
  bool late_ = false;                    // its owner has left, and it stays for latecomers
  std::mutex going_;
  std::condition_variable gone_;
  bool may_go_ = false, ended_ = false;  // what let_owner_go() has said; under going_
  std::vector<std::string> refusals_;    // the last few, for the error when ranks stay away
};

}  // namespace tutti
