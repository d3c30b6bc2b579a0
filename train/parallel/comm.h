// Comm: collectives and sends of tensors over Tutti, and the time that a rank waits for them.
//
// In train/, errors are exceptions of the type Failure, because an error inside libtorch's backward pass cannot be
// returned in another way. A Failure contains a tutti::Error. If a call of Tutti has failed, that is the error of the
// call; require() may append to its message.
//
// The tensors of a call must be contiguous and on the same device. Calls on GPU tensors are ordered in the default
// stream of the current context, which is also libtorch's default stream. One thread uses a Comm and its Pending
// objects.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tutti/tutti.h"

namespace tutti::train {

using torch::Tensor;

class Failure : public std::exception {
 public:
  explicit Failure(Error error) : error_(std::move(error)), text_(to_string(error_)) {}
  Failure(ErrorCode code, std::string message) : Failure(Error{.code = code, .message = std::move(message)}) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  std::string text_;
};

// Throws Failure if `status` is an error. `group_text` is appended to the message, if it is not null. It lists the
// ranks of the job in a group that Comm::split() has made (see Comm::group_text_).
void require(const Status& status, const std::string* group_text = nullptr);

// What the calls of a rank have cost. Used by one thread.
struct CommTime {
  // Time in seconds that the rank has spent in collectives, sends and receives of a Comm, and in Pending::wait().
  double exposed_s = 0;
  // Sum of the lengths of the outputs of its collectives and of the tensors that it has sent. Tensors that it has
  // received by start_receive() do not count.
  std::uint64_t bytes = 0;
};

// A call in progress. It keeps a reference to the tensors that the call uses, so that their memory is not freed
// before the call has ended.
class Pending {
 public:
  Pending() = default;
  Pending(Work work, std::vector<Tensor> tensors, CommTime* time, std::shared_ptr<const std::string> group_text);
  Pending(Pending&&) = default;
  Pending& operator=(Pending&& other) noexcept;  // waits for the call that it contained before
  // Waits for the call, because its memory must not be freed while the call is in progress.
  ~Pending();
  // Waits until the call has completed. Throws Failure if it failed. Does nothing if there is no call.
  void wait();

 private:
  Work work_;
  std::vector<Tensor> tensors_;
  CommTime* time_ = nullptr;
  std::shared_ptr<const std::string> group_text_;  // shared with the Comm; see Comm::group_text_
};

// A group of ranks: a communicator that is owned, or borrowed from the job. Without a communicator it is a group of
// one rank, in which collectives copy the data or do nothing. One thread uses it.
class Comm {
 public:
  explicit Comm(CommTime& time) : time_(&time) {}
  Comm(Communicator& borrowed, CommTime& time) : comm_(&borrowed), time_(&time) {}

  std::int32_t rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  std::int32_t size() const { return comm_ == nullptr ? 1 : comm_->size(); }
  Communicator* communicator() { return comm_; }
  CommTime& time() { return *time_; }
  void use_algorithm(Algorithm algorithm) { algorithm_ = algorithm; }  // for all-reduces

  // Ends all calls on this communicator, on this rank and on its peers.
  void abort();
  // Throws `failure` on this rank, after a barrier of the group. Call it on all ranks of the group, after all have
  // detected the same failure from the result of one collective call. The barrier is needed because a rank that throws
  // aborts its communicators. A rank that is still in the collective call would report the abort instead of `failure`.
  [[noreturn]] void fail_on_all_ranks(const Failure& failure);

  // Divides the group: ranks with the same `colour` form a new group, in the order of their ranks in this one. `name`
  // appears in error messages. Collective.
  Comm split(std::int32_t colour, const std::string& name);

  void all_reduce(Tensor& values, ReduceOp op = ReduceOp::kSum);
  void broadcast(Tensor& values, std::int32_t root);
  // shard: [n] on every rank -> all: [size * n]
  void all_gather(const Tensor& shard, Tensor& all);
  Pending start_all_reduce(const Tensor& values);
  Pending start_all_gather(const Tensor& shard, const Tensor& all);
  // all: [size * n] -> shard: [n], this rank's part of the sum over ranks
  Pending start_reduce_scatter(const Tensor& all, const Tensor& shard);
  void receive(Tensor& values, std::int32_t peer);
  Pending start_send(const Tensor& values, std::int32_t peer);
  Pending start_receive(const Tensor& values, std::int32_t peer);

  // A float32 tensor of `count` zeros, in memory that the ranks of a machine share if they can (see
  // Communicator::allocate()), so that collectives on it avoid a copy. On a GPU, in a group of one rank, or with no
  // elements it is ordinary memory. The tensor must be destroyed before the communicator of this Comm.
  Tensor shared_zeros(std::int64_t count, torch::Device device);

 private:
  Comm(std::unique_ptr<Communicator> owned, CommTime& time);
  Pending start(const CollectiveCall& call, const Tensor& input, const Tensor& output);
  void check(const Status& status) const;

  std::unique_ptr<Communicator> owned_;
  Communicator* comm_ = nullptr;
  CommTime* time_;
  Algorithm algorithm_ = Algorithm::kAuto;
  // If split() has made this communicator: for each rank of this group, its rank in the job. Otherwise empty.
  std::vector<std::int64_t> job_ranks_;
  // If split() has made this communicator: a text for error messages that lists the ranks of the job in this group.
  // Otherwise null.
  std::shared_ptr<const std::string> group_text_;
};

}  // namespace tutti::train
