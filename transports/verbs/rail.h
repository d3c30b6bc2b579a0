// VerbsRail: one port of this machine as one transport uses it. It owns a completion queue with its channel, which
// wakes a sleeping thread, and a shared receive queue. It also creates the queue pairs that use this port; they belong
// to the QueuePairs of the lanes. Use it in the thread that drives progress.
//
// Every arrival that a device reports is an RDMA write with immediate data, into memory whose address was sent to the
// peer before. Therefore receive requests have no memory of their own: each arrival only consumes one of them. All
// queue pairs share them. If none is left, the device asks the sender to try again later (receiver not ready).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transports/verbs/device.h"
#include "transports/verbs/verbs_maker.h"

namespace tutti {

// Receives the completions of queue pairs. `pair` is the index that was given to create_pair().
class CompletionHandler {
 public:
  virtual ~CompletionHandler() = default;
  // A write with this immediate data has arrived.
  virtual void on_arrival(std::size_t pair, std::uint32_t immediate) = 0;
  // All requests of this queue pair up to `number` are complete.
  virtual void on_done(std::size_t pair, std::uint64_t number) = 0;
  // A request has failed, so the queue pair has broken. `words`: the reason.
  virtual void on_failure(std::size_t pair, const std::string& words) = 0;
};

// The queue pair of a peer to which a queue pair of this rank is connected.
struct RemoteQueuePair {
  std::uint32_t number = 0;         // number of the queue pair
  std::uint32_t packet_number = 0;  // packet sequence number of the first packet
  VerbsPort port;
};

class VerbsRail {
 public:
  // Errors: kSystem, with the name of the device.
  static Result<std::unique_ptr<VerbsRail>> create(std::shared_ptr<VerbsDevice> device, VerbsPort port,
                                                   const VerbsSettings& settings);
  ~VerbsRail();
  VerbsRail(const VerbsRail&) = delete;
  VerbsRail& operator=(const VerbsRail&) = delete;

  const VerbsPort& port() const { return port_; }
  VerbsDevice& device() { return *device_; }
  const VerbsLibrary& library() const { return device_->library(); }
  int wait_fd() const { return channel_->fd; }
  std::uint64_t longest_message() const { return longest_message_; }
  // The reason why nothing arrives over the queues of this port any more; empty if no failure of them is known.
  std::string failure();
  std::uint64_t send_completions() const { return send_completions_; }  // successful send completions so far

  struct CreatedPair {
    ibv_qp* pair = nullptr;
    // The longest message, in bytes, that can be sent inline, which needs no registered memory.
    std::uint32_t most_inline = 0;
  };
  // Creates a queue pair with space for `depth` send requests. Until destroy_pair(), its completions go to `user`, with
  // the index `pair`. Errors: kSystem.
  Result<CreatedPair> create_pair(CompletionHandler& user, std::size_t pair, std::uint32_t depth);
  void destroy_pair(ibv_qp* pair);
  // Connects the queue pair. It can receive from now on, and can send as soon as the peer has connected its end.
  // `peer`: rank of the peer, for error messages. Errors: kSystem.
  Status connect(ibv_qp* pair, const RemoteQueuePair& remote, std::uint32_t packet_number, std::uint32_t peer);

  // Processes the completions that the queue contains; returns true if there were any.
  bool poll();
  void arm();  // requests that the next completion wakes a sleeping thread

 private:
  struct PairOwner {
    CompletionHandler* user = nullptr;
    std::size_t pair = 0;
  };
  VerbsRail(std::shared_ptr<VerbsDevice> device, VerbsPort port, const VerbsSettings& settings)
      : device_(std::move(device)), port_(std::move(port)), settings_(settings) {}
  Status prepare();
  void refill();
  Error error_of(const std::string& what, int error) const;

  const std::shared_ptr<VerbsDevice> device_;  // shared by the process
  const VerbsPort port_;
  const VerbsSettings settings_;
  std::uint64_t longest_message_ = 0;
  bool needs_route_ = false;  // every packet needs a global routing header (source and destination GID)
  bool unreadable_ = false;   // reading the completion queue has failed
  std::uint64_t send_completions_ = 0;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_srq* receives_ = nullptr;
  std::uint32_t most_receives_ = 0;
  std::uint32_t missing_receives_ = 0;                   // receive requests that must be posted again
  std::unordered_map<std::uint32_t, PairOwner> owners_;  // indexed by queue pair number
};

}  // namespace tutti
