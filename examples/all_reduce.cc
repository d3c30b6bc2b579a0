// The smallest program: every rank adds its numbers to everyone's. Start it with `tutti run -n 4 -- all_reduce`.
#include <tutti/tutti.h>

#include <cstdio>
#include <memory>
#include <span>

namespace {

constexpr std::size_t kCount = 1000;

// Rank r gives 0, r+1, 2(r+1), ...; the sum over n ranks is i * n(n+1)/2.
tutti::Status add_up(tutti::Communicator& communicator) {
  auto memory = communicator.allocate(kCount * sizeof(float));  // every rank reaches it in place: nothing is copied
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
  auto communicator = tutti::Communicator::create();  // who and where: from what `tutti run` sets
  const tutti::Status status = communicator.ok() ? add_up(**communicator) : tutti::Status(communicator.error());
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", tutti::to_string(status.error()).c_str());
  return 1;
}
