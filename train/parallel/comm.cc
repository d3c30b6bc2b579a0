#include "train/parallel/comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "train/memory.h"

namespace tutti::train {
namespace {

DataType type_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32: return DataType::kFloat32;
    case torch::kFloat64: return DataType::kFloat64;
    case torch::kFloat16: return DataType::kFloat16;
    case torch::kBFloat16: return DataType::kBfloat16;
    case torch::kInt64: return DataType::kInt64;
    case torch::kUInt8: return DataType::kUint8;
    default: throw Failure(ErrorCode::kUnsupported, std::string("tensors of ") + tensor.dtype().name().data());
  }
}

CallOptions options_of(const Tensor& tensor) {
  CallOptions options;
  if (tensor.is_cuda()) options.stream = nullptr;  // the default stream of the context, which libtorch uses as well
  return options;
}

std::size_t count_of(const Tensor& tensor) {
  if (!tensor.is_contiguous()) throw Failure(ErrorCode::kInvalidArgument, "a tensor is not contiguous");
  return static_cast<std::size_t>(tensor.numel());
}

// Adds the time from its construction to its destruction to CommTime::exposed_s.
class ExposedTimer {
 public:
  explicit ExposedTimer(CommTime& time) : time_(time) {}
  ~ExposedTimer() {
    time_.exposed_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  ExposedTimer(const ExposedTimer&) = delete;
  ExposedTimer& operator=(const ExposedTimer&) = delete;

 private:
  CommTime& time_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void require(const Status& status, const std::string* group_text) {
  if (status.ok()) return;
  Error error = status.error();
  if (group_text != nullptr) error.message += *group_text;
  throw Failure(std::move(error));
}

void Comm::check(const Status& status) const { require(status, group_text_.get()); }

Pending::Pending(Work work, std::vector<Tensor> tensors, CommTime* time, std::shared_ptr<const std::string> group_text)
    : work_(std::move(work)), tensors_(std::move(tensors)), time_(time), group_text_(std::move(group_text)) {}

Pending::~Pending() {
  if (!tensors_.empty()) (void)work_.wait();
}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (!tensors_.empty()) (void)work_.wait();
  work_ = std::move(other.work_);
  tensors_ = std::move(other.tensors_);
  time_ = other.time_;
  group_text_ = std::move(other.group_text_);
  return *this;
}

void Pending::wait() {
  if (tensors_.empty()) return;
  const ExposedTimer timer(*time_);
  const Status status = work_.wait();
  tensors_.clear();
  require(status, group_text_.get());
}

Comm::Comm(std::unique_ptr<Communicator> owned, CommTime& time)
    : owned_(std::move(owned)), comm_(owned_.get()), time_(&time) {}

void Comm::abort() {
  if (comm_ != nullptr) comm_->abort();
}

void Comm::fail_on_all_ranks(const Failure& failure) {
  // An error of the barrier is ignored, because a rank that has left the barrier may already have aborted its
  // communicators. `failure` is thrown all the same.
  if (comm_ != nullptr) static_cast<void>(comm_->barrier());
  throw failure;
}

Comm Comm::split(std::int32_t colour, const std::string& name) {
  if (comm_ == nullptr) return Comm(*time_);
  auto made = comm_->split(colour);
  if (!made) throw Failure(made.error());
  Comm part(*std::move(made), *time_);
  const auto rank = static_cast<std::size_t>(comm_->rank());
  const Tensor mine =
      torch::tensor({job_ranks_.empty() ? std::int64_t{comm_->rank()} : job_ranks_[rank]}, torch::kInt64);
  Tensor all = torch::empty({part.size()}, torch::kInt64);
  part.all_gather(mine, all);
  part.job_ranks_.assign(all.data_ptr<std::int64_t>(), all.data_ptr<std::int64_t>() + part.size());
  part.group_text_ =
      std::make_shared<const std::string>(fmt::format(" (among the {} ranks: 0 to {} are ranks {} of the job)", name,
                                                      part.size() - 1, fmt::join(part.job_ranks_, ", ")));
  return part;
}

Pending Comm::start(const CollectiveCall& call, const Tensor& input, const Tensor& output) {
  const ExposedTimer timer(*time_);
  time_->bytes += static_cast<std::uint64_t>(output.nbytes());
  CallOptions options = options_of(output);
  if (call.kind == CollectiveKind::kAllReduce) options.algorithm = algorithm_;
  auto work = comm_->start(call, options);
  if (!work) check(work.error());
  return {*std::move(work), {input, output}, time_, group_text_};
}

void Comm::all_reduce(Tensor& values, ReduceOp op) {
  if (size() == 1) return;
  const ExposedTimer timer(*time_);
  time_->bytes += static_cast<std::uint64_t>(values.nbytes());
  CallOptions options = options_of(values);
  options.algorithm = algorithm_;
  check(comm_->all_reduce(values.data_ptr(), values.data_ptr(), count_of(values), type_of(values), op, options));
}

void Comm::broadcast(Tensor& values, std::int32_t root) {
  if (size() == 1) return;
  const ExposedTimer timer(*time_);
  time_->bytes += static_cast<std::uint64_t>(values.nbytes());
  check(comm_->broadcast(values.data_ptr(), values.data_ptr(), count_of(values), type_of(values), root,
                         options_of(values)));
}

void Comm::all_gather(const Tensor& shard, Tensor& all) { start_all_gather(shard, all).wait(); }

Pending Comm::start_all_reduce(const Tensor& values) {
  if (size() == 1) return {};
  return start({.kind = CollectiveKind::kAllReduce,
                .input = values.data_ptr(),
                .output = values.data_ptr(),
                .count = count_of(values),
                .type = type_of(values)},
               values, values);
}

Pending Comm::start_all_gather(const Tensor& shard, const Tensor& all) {
  if (size() == 1) {
    if (all.data_ptr() != shard.data_ptr()) all.copy_(shard);
    return {};
  }
  return start({.kind = CollectiveKind::kAllGather,
                .input = shard.data_ptr(),
                .output = all.data_ptr(),
                .count = count_of(shard),
                .type = type_of(shard)},
               shard, all);
}

Pending Comm::start_reduce_scatter(const Tensor& all, const Tensor& shard) {
  if (size() == 1) {
    if (all.data_ptr() != shard.data_ptr()) shard.copy_(all);
    return {};
  }
  return start({.kind = CollectiveKind::kReduceScatter,
                .input = all.data_ptr(),
                .output = shard.data_ptr(),
                .count = count_of(shard),
                .type = type_of(shard)},
               all, shard);
}

void Comm::receive(Tensor& values, std::int32_t peer) { start_receive(values, peer).wait(); }

Pending Comm::start_send(const Tensor& values, std::int32_t peer) {
  const ExposedTimer timer(*time_);
  time_->bytes += static_cast<std::uint64_t>(values.nbytes());
  Group group;
  require(group.send(*comm_, values.data_ptr(), count_of(values), type_of(values), peer, options_of(values)));
  auto work = group.start();
  if (!work) check(work.error());
  return {*std::move(work), {values}, time_, group_text_};
}

Pending Comm::start_receive(const Tensor& values, std::int32_t peer) {
  const ExposedTimer timer(*time_);
  Group group;
  require(group.receive(*comm_, values.data_ptr(), count_of(values), type_of(values), peer, options_of(values)));
  auto work = group.start();
  if (!work) check(work.error());
  return {*std::move(work), {values}, time_, group_text_};
}

Tensor Comm::shared_zeros(std::int64_t count, torch::Device device) {
  const auto options = torch::TensorOptions(torch::kFloat32).device(device);
  if (size() == 1 || !device.is_cpu() || count == 0) return torch::zeros({count}, options);
  auto made = comm_->allocate(static_cast<std::size_t>(count) * sizeof(float));
  if (!made) throw Failure(made.error());
  // A shared_ptr, because the deleter of libtorch's storage must be copyable.
  auto memory = std::make_shared<Memory>(*std::move(made));
  const auto bytes = static_cast<std::int64_t>(memory->size());
  count_bytes(bytes);
  void* const data = memory->data();
  return torch::from_blob(
      data, {count},
      [memory, bytes](void*) mutable {
        memory.reset();
        count_bytes(-bytes);
      },
      options);
}

}  // namespace tutti::train
