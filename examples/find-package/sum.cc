// Adds the rank numbers, and a 1 for each rank, over all ranks. The CMakeLists.txt in this folder builds it.
#include <tutti/tutti.h>

#include <array>
#include <cstdio>

int main() {
  auto communicator = tutti::Communicator::create();
  if (!communicator) return std::fprintf(stderr, "%s\n", to_string(communicator.error()).c_str()), 1;
  std::array<std::int64_t, 2> values = {(*communicator)->rank(), 1};
  const tutti::Status status =
      (*communicator)
          ->all_reduce(values.data(), values.data(), values.size(), tutti::DataType::kInt64, tutti::ReduceOp::kSum);
  if (!status) return std::fprintf(stderr, "%s\n", to_string(status.error()).c_str()), 1;
  std::printf("the numbers of %d ranks add up to %d\n", static_cast<int>(values[1]), static_cast<int>(values[0]));
  return 0;
}
