// mpirun.openmpi -n P mpi_judge launcher|unique_id|mpi_ends_first: compares Tutti with Open MPI. Every rank calls
// both libraries with the same inputs and compares the results. Integers and moved data must have the same bits.
// Floating-point sums and products of both must be within the error bound of the exact ones. If any rank has a wrong
// result, the exit status of every rank is 1.
//
// - launcher: Tutti takes rank, size and the address of rank 0 from mpirun's variables.
// - unique_id: one rank makes a unique id, and MPI broadcasts it.
// - mpi_ends_first: like launcher, but the communicator is used once more and destroyed after MPI_Finalize.
#include <cstdio>
#include <string_view>

#include "judge.h"

namespace tutti::test {

void Judge::expect(bool good, const std::string& what) {
  constexpr std::int64_t kShown = 10;
  ++compared_;
  if (good) return;
  if (++failures_ <= kShown) std::fprintf(stderr, "rank %d: %s\n", rank(), what.c_str());
}

void Judge::expect_ok(const Status& status, const std::string& what) {
  if (!status.ok()) expect(false, what + ": " + to_string(status.error()));
}

namespace {

Result<std::unique_ptr<Communicator>> meet(std::string_view mode) {
  if (mode != "unique_id") return Communicator::create();
  CommunicatorOptions options;
  MPI_Comm_rank(MPI_COMM_WORLD, &options.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &options.size);
  UniqueId id;
  const bool makes = options.rank == options.size - 1;  // any rank could make it
  if (makes) {
    auto made = UniqueId::create();
    if (!made.ok()) return made.error();
    id = *made;
  }
  MPI_Bcast(id.bytes.data(), static_cast<int>(id.bytes.size()), MPI_BYTE, options.size - 1, MPI_COMM_WORLD);
  options.unique_id = id;
  return Communicator::create(options);
}

int run(std::string_view mode) {
  auto communicator = meet(mode);
  if (!communicator.ok()) {
    std::fprintf(stderr, "%s\n", to_string(communicator.error()).c_str());
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  Judge judge(**communicator);
  std::int32_t mpi_rank = -1, mpi_ranks = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &mpi_ranks);
  judge.expect(judge.rank() == mpi_rank && judge.ranks() == mpi_ranks, "rank or size is not MPI's");
  judge_reductions(judge);
  judge_user_reductions(judge);
  judge_movements(judge);
  judge_uneven_movements(judge);

  std::int64_t sum[2] = {judge.compared(), judge.failures()};
  MPI_Allreduce(MPI_IN_PLACE, sum, 2, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  if (mpi_rank == 0) {
    std::printf("%d ranks: compared %lld results, %lld wrong\n", mpi_ranks, static_cast<long long>(sum[0]),
                static_cast<long long>(sum[1]));
  }
  const bool good = sum[1] == 0;
  if (mode == "mpi_ends_first") {
    MPI_Finalize();
    const Status status = (*communicator)->barrier();
    if (!status.ok()) std::fprintf(stderr, "after MPI_Finalize: %s\n", to_string(status.error()).c_str());
    return good && status.ok() ? 0 : 1;
  }
  const Status status = (*communicator)->finalize();
  communicator->reset();
  MPI_Finalize();
  return good && status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 2) MPI_Abort(MPI_COMM_WORLD, 2);
  return tutti::test::run(argv[1]);
}
