// VerbsRail: one port of this machine as one transport uses it: a completion queue with its channel, which ends sleeps,
// a shared receive queue, and the queue pairs that lead over it. Thread of the driver.
//
// What arrives is a write with immediate data into memory that the peer was told, so receive requests carry no memory:
// they are only counted off, all queue pairs share them, and a peer that finds none is told to try again.
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

// Whom completions are for. `pair`: which of its queue pairs.
class VerbsUser {
 public:
  virtual ~VerbsUser() = default;
  virtual void on_arrival(std::size_t pair, std::uint32_t immediate) = 0;
  // All requests of this queue pair up to the number have been done.
  virtual void on_done(std::size_t pair, std::uint64_t number) = 0;
  virtual void on_failure(std::size_t pair, const std::string& words) = 0;
};

// What one queue pair is told of its peer's, to connect.
struct VerbsRemote {
  std::uint32_t number = 0;         // of the queue pair
  std::uint32_t packet_number = 0;  // its first
  VerbsPort port;
};

class VerbsRail {
 public:
  // Errors: kSystem, with the device.
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
  // Why nothing arrives over this port's queues any more; empty: it does.
  std::string failure();
  std::uint64_t sends_told() const { return sends_told_; }  // completions of requests, ever

  // A queue pair whose completions go to `user` until it is destroyed. It holds `depth` requests. Errors: kSystem.
  struct PairMade {
    ibv_qp* pair = nullptr;
    std::uint32_t most_inline = 0;  // bytes of a message that need no registered memory
  };
  Result<PairMade> create_pair(VerbsUser& user, std::size_t pair, std::uint32_t depth);
  void destroy_pair(ibv_qp* pair);
  // From then on it receives, and sends once the peer's does. `peer`: its rank, for errors. Errors: kSystem.
  Status connect(ibv_qp* pair, const VerbsRemote& remote, std::uint32_t packet_number, std::uint32_t peer);

  // Takes what has come; true if anything had.
  bool poll();
  void arm();  // the next completion ends a sleep

 private:
  struct Place {
    VerbsUser* user = nullptr;
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
  bool needs_route_ = false;  // every packet must say where it comes from and goes to
  bool unreadable_ = false;   // its completions cannot be had any more
  std::uint64_t sends_told_ = 0;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_srq* receives_ = nullptr;
  std::uint32_t most_receives_ = 0;
  std::uint32_t missing_receives_ = 0;               // to be posted anew
  std::unordered_map<std::uint32_t, Place> places_;  // by number of the queue pair
};

}  // namespace tutti
