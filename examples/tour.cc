// A tour of the API: a collective in the background, a group of transfers, a user-defined reduction, splitting a
// communicator, and creating one with a unique id. Each result is checked. Start it with `tutti run -n 4 -- tour`,
// with any number of ranks.
#include <tutti/tutti.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

using tutti::Communicator;
using tutti::DataType;
using tutti::Result;
using tutti::Status;

Status wrong(const char* what) {
  return tutti::Error{.code = tutti::ErrorCode::kSystem, .message = std::string("wrong result: ") + what};
}

// An all-reduce runs in the background, while this thread can do other work.
Status sum_in_the_background(Communicator& ranks) {
  std::vector<std::int64_t> numbers(100'000, ranks.rank());
  Result<tutti::Work> work = ranks.start({.kind = tutti::CollectiveKind::kAllReduce,
                                          .input = numbers.data(),
                                          .output = numbers.data(),  // do not use the buffer before wait() has returned
                                          .count = numbers.size(),
                                          .type = DataType::kInt64});
  if (!work.ok()) return work.error();
  std::int64_t expected = 0;
  for (std::int64_t rank = 0; rank < ranks.size(); ++rank) expected += rank;
  if (Status ended = work->wait(); !ended.ok()) return ended;
  return numbers.back() == expected ? Status() : wrong("start");
}

// Every rank sends to the next rank and receives from the previous one. The group executes both at the same time. If
// each rank called send() and then receive(), all ranks could wait in their sends for each other.
Status shift_around_ring(Communicator& ranks) {
  const std::int32_t next = (ranks.rank() + 1) % ranks.size();
  const std::int32_t previous = (ranks.rank() + ranks.size() - 1) % ranks.size();
  const std::int32_t own = ranks.rank();
  std::int32_t received = -1;
  tutti::Group group;
  if (Status added = group.send(ranks, &own, 1, DataType::kInt32, next); !added.ok()) return added;
  if (Status added = group.receive(ranks, &received, 1, DataType::kInt32, previous); !added.ok()) return added;
  if (Status ended = group.run(); !ended.ok()) return ended;
  return received == previous ? Status() : wrong("Group");
}

// The element type of the user-defined reduction: a value, and the rank that has it.
struct Best {
  double value;
  std::int64_t rank;
};

void keep_the_better(const void* left, const void* right, void* result, std::size_t count, void*) {
  const auto* a = static_cast<const Best*>(left);
  const auto* b = static_cast<const Best*>(right);
  for (std::size_t i = 0; i < count; ++i) static_cast<Best*>(result)[i] = a[i].value < b[i].value ? b[i] : a[i];
}

Status find_the_best(Communicator& ranks) {
  Best best = {.value = ranks.rank() % 2 == 0 ? ranks.rank() : -1.0, .rank = ranks.rank()};
  const tutti::CallOptions options = {
      .reduction = {.combine = keep_the_better, .element_bytes = sizeof(Best), .id = 1}};
  // The arguments kUint8 and kSum are ignored, because options.reduction defines the size of an element and how two
  // elements are combined.
  if (Status ended = ranks.all_reduce(&best, &best, 1, DataType::kUint8, tutti::ReduceOp::kSum, options); !ended.ok()) {
    return ended;
  }
  return best.rank == (ranks.size() - 1) / 2 * 2 ? Status() : wrong("UserReduction");
}

// Splits the ranks into two communicators: one for the even ranks, one for the odd ranks.
Status split_even_odd(Communicator& ranks) {
  auto half = ranks.split(ranks.rank() % 2);
  if (!half.ok()) return half.error();
  std::int32_t count = 1;
  Status ended = (*half)->all_reduce(&count, &count, 1, DataType::kInt32, tutti::ReduceOp::kSum);
  if (!ended.ok()) return ended;
  return count == (*half)->size() ? Status() : wrong("split");
}

// Rank 0 creates a unique id: 128 bytes that contain the address at which ranks meet. The id can be sent to the other
// ranks by any means, here by a broadcast. Processes that have the id can create a communicator with it, and choose
// their rank numbers in it: here the ranks are in reverse order.
Status create_with_unique_id(Communicator& ranks) {
  tutti::UniqueId id;
  if (ranks.rank() == 0) {
    auto made = tutti::UniqueId::create();
    if (!made.ok()) return made.error();
    id = *made;
  }
  Status sent = ranks.broadcast(id.bytes.data(), id.bytes.data(), id.bytes.size(), DataType::kUint8, 0);
  if (!sent.ok()) return sent;
  tutti::CommunicatorOptions options;
  options.rank = ranks.size() - 1 - ranks.rank();
  options.size = ranks.size();
  options.unique_id = id;
  auto again = Communicator::create(options);
  if (!again.ok()) return again.error();
  std::int32_t first = ranks.rank();
  if (Status ended = (*again)->broadcast(&first, &first, 1, DataType::kInt32, 0); !ended.ok()) return ended;
  return first == ranks.size() - 1 ? Status() : wrong("UniqueId");
}

Status tour(Communicator& ranks) {
  for (const auto stop :
       {sum_in_the_background, shift_around_ring, find_the_best, split_even_odd, create_with_unique_id}) {
    if (Status status = stop(ranks); !status.ok()) return status;
  }
  std::printf("rank %d of %d completed the tour\n", ranks.rank(), ranks.size());
  return ranks.finalize();  // waits for operations in progress, then closes the connections
}

}  // namespace

int main() {
  auto ranks = Communicator::create();
  const Status status = ranks.ok() ? tour(**ranks) : Status(ranks.error());
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", tutti::to_string(status.error()).c_str());
  return 1;
}
