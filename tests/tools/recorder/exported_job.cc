// One rank of a job of four whose recordings export_test.py exports: exported_job MODE.
//
// every: makes each collective once, with a different length and type each, then sends and receives. halves: makes an
// all_reduce on a communicator of half of the ranks, and ends. late: makes three calls, and rank 2 comes 400 ms late to
// each. variable: makes three all_to_all_v, but rank 1 only two. count: rank 1 passes another count to the second call.
// silent: rank 3 receives from rank 2, which sends nothing and waits in a barrier. Prints one line for each error.
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <thread>
#include <vector>

#include "tutti/tutti.h"

namespace {

using tutti::Communicator;
using tutti::DataType;
using tutti::ReduceOp;
using tutti::Status;

constexpr int kRanks = 4;
constexpr std::size_t kRoomBytes = std::size_t{1} << 23;

// Prints the error of a call, if it has one.
bool good(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", to_string(status.error()).c_str());
  return status.ok();
}

struct Buffers {
  std::vector<std::byte> input_room = std::vector<std::byte>(kRoomBytes);
  std::vector<std::byte> output_room = std::vector<std::byte>(kRoomBytes);
  void* input = input_room.data();
  void* output = output_room.data();
};

bool make_collectives(Communicator& rank, const Buffers& with) {
  static constexpr std::size_t kCounts[kRanks] = {1, 2, 3, 4};
  static constexpr std::size_t kEqualCounts[kRanks] = {2, 2, 2, 2};
  return good(rank.all_reduce(with.input, with.output, 1000, DataType::kFloat32, ReduceOp::kSum)) &&
         good(rank.broadcast(with.input, with.output, 30, DataType::kFloat16, 1)) &&
         good(rank.reduce(with.input, with.output, 20, DataType::kFloat64, ReduceOp::kMax, 2)) &&
         good(rank.all_gather(with.input, with.output, 5, DataType::kUint8)) &&
         good(rank.reduce_scatter(with.input, with.output, 6, DataType::kBfloat16, ReduceOp::kSum)) &&
         good(rank.all_to_all(with.input, with.output, 4, DataType::kInt32)) &&
         good(rank.gather(with.input, with.output, 3, DataType::kInt64, 1)) &&
         good(rank.scatter(with.input, with.output, 9, DataType::kInt8, 3)) &&  //
         good(rank.barrier()) &&
         good(rank.all_gather_v(with.input, with.output, {.counts = kCounts}, DataType::kUint32)) &&
         good(rank.reduce_scatter_v(with.input, with.output, {.counts = kCounts}, DataType::kUint64, ReduceOp::kSum)) &&
         good(rank.all_reduce(with.input, with.output, 1U << 20, DataType::kFloat8E4M3, ReduceOp::kSum)) &&
         good(rank.all_to_all_v(with.input, {.counts = kEqualCounts}, with.output, {.counts = kEqualCounts},
                                DataType::kFloat32));
}

// Rank 0 sends to rank 1, and rank 3 to rank 2. Then all ranks exchange data with their neighbours, in a group.
bool make_transfers(Communicator& rank, const Buffers& with) {
  const int self = rank.rank();
  for (int i = 0; i < 2; ++i) {
    if (self == 0 && !good(rank.send(with.input, 8, DataType::kFloat32, 1))) return false;
    if (self == 1 && !good(rank.receive(with.output, 8, DataType::kFloat32, 0))) return false;
  }
  if (self == 3 && !good(rank.send(with.input, 5, DataType::kInt32, 2))) return false;
  if (self == 2 && !good(rank.receive(with.output, 5, DataType::kInt32, 3))) return false;
  tutti::Group group;
  return good(group.send(rank, with.input, 2, DataType::kFloat64, (self + 1) % kRanks)) &&
         good(group.receive(rank, with.output, 2, DataType::kFloat64, (self + kRanks - 1) % kRanks)) &&
         good(group.run());
}

bool use_halves(Communicator& rank) {
  const Buffers with;
  auto half = rank.split(rank.rank() % 2);
  if (!half) return good(half.error());
  return good((*half)->all_reduce(with.input, with.output, 11, DataType::kUint32, ReduceOp::kSum));
}

bool run(std::string_view mode, Communicator& rank) {
  if (mode == "halves") return use_halves(rank);
  const Buffers with;
  if (mode == "every") return make_collectives(rank, with) && make_transfers(rank, with);
  const auto all_reduce = [&](std::size_t count) {
    return good(rank.all_reduce(with.input, with.output, count, DataType::kFloat32, ReduceOp::kSum));
  };
  if (mode == "late") {
    for (int call = 0; call < 3; ++call) {
      if (rank.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      if (!all_reduce(16)) return false;
    }
    return true;
  }
  if (mode == "variable") {
    static constexpr std::size_t kEqualCounts[kRanks] = {3, 3, 3, 3};
    for (int call = 0; call < (rank.rank() == 1 ? 2 : 3); ++call) {
      if (!good(rank.all_to_all_v(with.input, {.counts = kEqualCounts}, with.output, {.counts = kEqualCounts},
                                  DataType::kFloat32))) {
        return false;
      }
    }
    return rank.rank() != 1 || good(rank.barrier());
  }
  if (mode == "count") return all_reduce(16) && all_reduce(rank.rank() == 1 ? 17 : 16);
  if (mode == "silent") {
    if (rank.rank() == 3) return good(rank.receive(with.output, 8, DataType::kFloat32, 2));
    return good(rank.barrier());
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  auto made = Communicator::create();
  if (!made) return std::fprintf(stderr, "%s\n", to_string(made.error()).c_str()), 1;
  return run(argv[1], **made) ? 0 : 1;
}
