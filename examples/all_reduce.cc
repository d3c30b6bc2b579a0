// The smallest program: an all-reduce that adds the numbers of all ranks. Start it with `tutti run -n 4 --
// all_reduce`.
#include <tutti/tutti.h>

#include <cstdio>
#include <memory>
#include <span>

namespace {

constexpr std::size_t kCount = 1000;

// Element i of rank r is (r + 1) * i, so the sum over n ranks is i * n * (n + 1) / 2.
tutti::Status add_up(tutti::Communicator& communicator) {
  // Memory from allocate() can be mapped by all ranks of the machine, so the all-reduce needs no extra copies.
  auto memory = communicator.allocate(kCount * sizeof(float));
  if (!memory.ok()) return memory.error();
  const std::span numbers(reinterpret_cast<float*>(memory->data()), kCount);
  const auto factor = static_cast<float>(communicator.rank() + 1);
  for (std::size_t i = 0; i < kCount; ++i) numbers[i] = factor * static_cast<float>(i);

  tutti::Status status =
      communicator.all_reduce(numbers.data(), numbers.data(), kCount, tutti::DataType::kFloat32, tutti::ReduceOp::kSum);
  if (!status.ok()) return status;
  std::printf("rank %d of %d: the last sum is %.0f\n", communicator.rank(), communicator.size(),
              static_cast<double>(numbers.back()));
  return {};
}

}  // namespace

int main() {
  // create() reads the rank, the number of ranks and the address for set-up from variables that `tutti run` sets.
  auto communicator = tutti::Communicator::create();
  const tutti::Status status = communicator.ok() ? add_up(**communicator) : tutti::Status(communicator.error());
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", tutti::to_string(status.error()).c_str());
  return 1;
}
