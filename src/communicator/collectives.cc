// The collectives of the public API. Each named collective fills in a CollectiveCall, and run() passes it to the
// implementation.
#include "communicator/communicator_impl.h"
#include "tutti/communicator.h"

namespace tutti {
namespace {

using Kind = CollectiveKind;

CollectiveCall call_of(Kind kind, const void* input, void* output, std::size_t count, DataType type) {
  CollectiveCall call;
  call.kind = kind;
  call.input = input;
  call.output = output;
  call.count = count;
  call.type = type;
  return call;
}

CollectiveCall variable(CollectiveCall call) {
  call.variable = true;
  return call;
}

}  // namespace

Status Communicator::run(const CollectiveCall& call, const CallOptions& options) {
  return impl_->guarded([&] { return impl_->run(call, options); });
}

Result<Work> Communicator::start(const CollectiveCall& call, const CallOptions& options) {
  return impl_->guarded([&] { return impl_->start(call, options); });
}

Status Communicator::all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                const CallOptions& options) {
  CollectiveCall call = call_of(Kind::kAllReduce, input, output, count, type);
  call.op = op;
  return run(call, options);
}

Status Communicator::broadcast(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                               const CallOptions& options) {
  CollectiveCall call = call_of(Kind::kBroadcast, input, output, count, type);
  call.root = root;
  return run(call, options);
}

Status Communicator::reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                            std::int32_t root, const CallOptions& options) {
  CollectiveCall call = call_of(Kind::kReduce, input, output, count, type);
  call.op = op;
  call.root = root;
  return run(call, options);
}

Status Communicator::all_gather(const void* input, void* output, std::size_t count, DataType type,
                                const CallOptions& options) {
  return run(call_of(Kind::kAllGather, input, output, count, type), options);
}

Status Communicator::reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    const CallOptions& options) {
  CollectiveCall call = call_of(Kind::kReduceScatter, input, output, count, type);
  call.op = op;
  return run(call, options);
}

Status Communicator::all_to_all(const void* input, void* output, std::size_t count, DataType type,
                                const CallOptions& options) {
  return run(call_of(Kind::kAllToAll, input, output, count, type), options);
}

Status Communicator::gather(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                            const CallOptions& options) {
  CollectiveCall call = call_of(Kind::kGather, input, output, count, type);
  call.root = root;
  return run(call, options);
}

Status Communicator::scatter(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                             const CallOptions& options) {
  CollectiveCall call = call_of(Kind::kScatter, input, output, count, type);
  call.root = root;
  return run(call, options);
}

Status Communicator::barrier(const CallOptions& options) {
  return run(call_of(Kind::kBarrier, nullptr, nullptr, 0, DataType::kUint8), options);
}

Status Communicator::all_gather_v(const void* input, void* output, const BlockCounts& counts, DataType type,
                                  const CallOptions& options) {
  CollectiveCall call = variable(call_of(Kind::kAllGather, input, output, 0, type));
  call.output_counts = counts;
  return run(call, options);
}

Status Communicator::reduce_scatter_v(const void* input, void* output, const BlockCounts& counts, DataType type,
                                      ReduceOp op, const CallOptions& options) {
  CollectiveCall call = variable(call_of(Kind::kReduceScatter, input, output, 0, type));
  call.input_counts = counts;
  call.op = op;
  return run(call, options);
}

Status Communicator::all_to_all_v(const void* input, const BlockCounts& input_counts, void* output,
                                  const BlockCounts& output_counts, DataType type, const CallOptions& options) {
  CollectiveCall call = variable(call_of(Kind::kAllToAll, input, output, 0, type));
  call.input_counts = input_counts;
  call.output_counts = output_counts;
  return run(call, options);
}

Status Communicator::gather_v(const void* input, std::size_t count, void* output, const BlockCounts& counts,
                              DataType type, std::int32_t root, const CallOptions& options) {
  CollectiveCall call = variable(call_of(Kind::kGather, input, output, count, type));
  call.output_counts = counts;
  call.root = root;
  return run(call, options);
}

Status Communicator::scatter_v(const void* input, const BlockCounts& counts, void* output, std::size_t count,
                               DataType type, std::int32_t root, const CallOptions& options) {
  CollectiveCall call = variable(call_of(Kind::kScatter, input, output, count, type));
  call.input_counts = counts;
  call.root = root;
  return run(call, options);
}

}  // namespace tutti
