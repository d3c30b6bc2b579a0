// The driver for MPI libraries. It is compiled once for each known MPI library that is installed (CMakeLists.txt).
#include <mpi.h>

#include <string>

#include "bench/compare/harness.h"

namespace tutti::compare {
namespace {

Status status_of(int code) {
  if (code == MPI_SUCCESS) return {};
  return Error{.code = ErrorCode::kSystem,
               .scope = ErrorScope::kProcess,
               .rank = -1,
               .message = "MPI returned " + std::to_string(code)};
}

class MpiLibrary : public Library {
 public:
  Result<Operation> prepare(const Workload& workload, const Buffers& buffers) override {
    float* const main = buffers.main.data();
    float* const other = buffers.other.data();
    const int n = static_cast<int>(workload.elements());  // fits, because compare.py measures at most 1 GiB
    const int m = static_cast<int>(workload.block_elements());
    const MPI_Comm world = MPI_COMM_WORLD;
    const MPI_Datatype type = MPI_FLOAT;
    switch (workload.kind) {
      case CollectiveKind::kAllReduce:
        return make([=] { return MPI_Allreduce(MPI_IN_PLACE, main, n, type, MPI_SUM, world); });
      case CollectiveKind::kBroadcast: return make([=] { return MPI_Bcast(main, n, type, 0, world); });
      case CollectiveKind::kReduce: return make([=] { return MPI_Reduce(main, other, n, type, MPI_SUM, 0, world); });
      case CollectiveKind::kAllGather: return make([=] { return MPI_Allgather(other, m, type, main, m, type, world); });
      case CollectiveKind::kReduceScatter:
        return make([=] { return MPI_Reduce_scatter_block(main, other, m, type, MPI_SUM, world); });
      case CollectiveKind::kAllToAll: return make([=] { return MPI_Alltoall(main, m, type, other, m, type, world); });
      case CollectiveKind::kGather: return make([=] { return MPI_Gather(other, m, type, main, m, type, 0, world); });
      case CollectiveKind::kScatter: return make([=] { return MPI_Scatter(main, m, type, other, m, type, 0, world); });
      case CollectiveKind::kBarrier: return make([=] { return MPI_Barrier(world); });
      default:
        return Error{.code = ErrorCode::kUnsupported,
                     .scope = ErrorScope::kCall,
                     .rank = -1,
                     .message = "MPI has no such collective"};
    }
  }

 private:
  template <class Call>
  static Operation make(const Call& call) {
    return [call] { return status_of(call()); };
  }
};

Status run(const Options& options) {
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  auto control = Control::create(options.control, rank, ranks);
  if (!control) return control.error();
  MpiLibrary library;
  return run_harness(options, **control, library);
}

}  // namespace
}  // namespace tutti::compare

int main(int argc, char** argv) {
  return tutti::compare::drive(argc, argv, [](const tutti::compare::Options& options) -> tutti::Status {
    if (MPI_Init(nullptr, nullptr) != MPI_SUCCESS) {
      return tutti::Error{tutti::ErrorCode::kSystem, tutti::ErrorScope::kCommunicator, -1, "MPI_Init failed"};
    }
    const tutti::Status status = tutti::compare::run(options);
    if (!status) MPI_Abort(MPI_COMM_WORLD, tutti::compare::exit_status_of(status));
    MPI_Finalize();
    return status;
  });
}
