// Tensors over Tutti: a communicator, the calls of the harness on it, and how long they held it up.
//
// Errors are exceptions in this folder (and only here): what fails inside of libtorch's backward has no other way out.
// Failure carries Tutti's error as it was given.
//
// Tensors are contiguous, of one device. Those on a GPU are ordered in the default stream of its context, which is
// libtorch's own default.
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

// Throws Failure; `whose`: added to its message, where the ranks in it are not those of the job.
void require(const Status& status, const std::string* whose = nullptr);

// Seconds that a rank has waited for others, and bytes that it gave to calls. Of one rank's thread.
struct CommTime {
  double exposed_s = 0;
  std::uint64_t bytes = 0;
};

// A started call; the tensors that it uses live with it.
class Pending {
 public:
  Pending() = default;
  Pending(Work work, std::vector<Tensor> tensors, CommTime* time, std::shared_ptr<const std::string> whose);
  Pending(Pending&&) = default;
  Pending& operator=(Pending&& other) noexcept;  // waits for what it held
  ~Pending();                                    // waits: memory of an operation under way must not go away
  void wait();

 private:
  Work work_;
  std::vector<Tensor> tensors_;
  CommTime* time_ = nullptr;
  std::shared_ptr<const std::string> whose_;  // shared with the Comm; see there
};

// A group of ranks. Value-like handle: owns its communicator or borrows the job's. Without one it is a group of one
// rank, whose calls copy or do nothing. One thread.
class Comm {
 public:
  explicit Comm(CommTime& time) : time_(&time) {}
  Comm(Communicator& borrowed, CommTime& time) : comm_(&borrowed), time_(&time) {}

  std::int32_t rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }
  std::int32_t size() const { return comm_ == nullptr ? 1 : comm_->size(); }
  Communicator* communicator() { return comm_; }
  CommTime& time() { return *time_; }
  void use_algorithm(Algorithm algorithm) { algorithm_ = algorithm; }  // of all_reduce

  void abort();  // ends every call on it, here and on its peers

  // Ranks of the same colour, in the order of their ranks here, as `name` in errors. Collective.
  Comm split(std::int32_t colour, const std::string& name);

  void all_reduce(Tensor& values, ReduceOp op = ReduceOp::kSum);
  void broadcast(Tensor& values, std::int32_t root);
  void barrier();
  // shard: [n] of every rank -> all: [size * n]
  void all_gather(const Tensor& shard, Tensor& all);
  Pending start_all_reduce(const Tensor& values);
  Pending start_all_gather(const Tensor& shard, const Tensor& all);
  // all: [size * n] -> shard: [n], the sum over ranks
  Pending start_reduce_scatter(const Tensor& all, const Tensor& shard);
  void send(const Tensor& values, std::int32_t peer);
  void receive(Tensor& values, std::int32_t peer);
  Pending start_send(const Tensor& values, std::int32_t peer);
  Pending start_receive(const Tensor& values, std::int32_t peer);

  // float32 zeros [count] that all ranks of a machine reach in place; on a GPU plain ones. It lives no longer than
  // this.
  Tensor shared_zeros(std::int64_t count, torch::Device device);

 private:
  Comm(std::unique_ptr<Communicator> owned, CommTime& time);
  Pending start(const CollectiveCall& call, const Tensor& input, const Tensor& output);
  void check(const Status& status) const;

  std::unique_ptr<Communicator> owned_;
  Communicator* comm_ = nullptr;
  CommTime* time_;
  Algorithm algorithm_ = Algorithm::kAuto;
  std::vector<std::int64_t> job_ranks_;       // of a part: which ranks of the job its ranks are
  std::shared_ptr<const std::string> whose_;  // for errors of a part: who its ranks are; null: they are the job's
};

}  // namespace tutti::train
