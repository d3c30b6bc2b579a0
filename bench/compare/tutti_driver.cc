// The driver for Tutti. It makes its calls by the public API. Rank, number of ranks and rendezvous address are in the
// environment (TUTTI_RANK and others), as for any program that uses Tutti; compare.py sets them.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "base/collective_table.h"
#include "bench/compare/harness.h"
#include "transports/shm/shared_heap.h"
#include "tutti/tutti.h"

namespace tutti::compare {
namespace {

class TuttiLibrary : public Library {
 public:
  TuttiLibrary(Communicator& communicator, const Options& options) : communicator_(communicator), options_(options) {}

  Result<std::shared_ptr<float>> allocate(std::size_t bytes) override {
    if (options_.tutti_malloc) return allocate_by_malloc(bytes);
    if (!options_.tutti_registered) return Library::allocate(bytes);
    Result<Memory> memory = communicator_.allocate(bytes);
    if (!memory) return memory.error();
    // The returned pointer shares the ownership of the Memory.
    auto owner = std::make_shared<Memory>(*std::move(memory));
    return std::shared_ptr<float>(owner, reinterpret_cast<float*>(owner->data()));
  }

  Result<Operation> prepare(const Workload& workload, const Buffers& buffers) override {
    const CollectiveCall call = call_of(workload, buffers);
    if (workload.kind == CollectiveKind::kAllReduce) {  // uses all_reduce(), as applications do, not run()
      return Operation(
          [this, call] { return communicator_.all_reduce(call.input, call.output, call.count, call.type, call.op); });
    }
    return Operation([this, call] { return communicator_.run(call); });
  }

 private:
  static Error error(ErrorCode code, const std::string& text) { return {code, ErrorScope::kProcess, -1, text}; }
  static Result<std::shared_ptr<float>> allocate_by_malloc(std::size_t bytes) {
    auto* const data = static_cast<float*>(std::malloc(bytes));
    if (data == nullptr) {
      return error(ErrorCode::kSystem, "malloc() has no memory for a buffer of " + std::to_string(bytes) + " bytes");
    }
    HeapSegment segment{};
    const HeapInterface* const heap = find_shared_heap();
    if (bytes >= 64 * 1024 && (heap == nullptr || !heap->find(data, bytes, segment))) {
      return error(ErrorCode::kUnsupported,
                   "malloc() is not that of libtutti_heap.so: is it beside the drivers, in lib/?");
    }
    return std::shared_ptr<float>(data, &std::free);
  }
  static CollectiveCall call_of(const Workload& workload, const Buffers& buffers) {
    const CollectiveKind kind = workload.kind;
    return {.kind = kind,
            .input = (input_in_main(kind) ? buffers.main : buffers.other).data(),
            .output = (output_in_main(kind) ? buffers.main : buffers.other).data(),
            .count = has_blocks(kind) ? workload.block_elements() : workload.elements()};
  }

  Communicator& communicator_;
  const Options& options_;
};

Status run(const Options& options) {
  Result<std::unique_ptr<Communicator>> communicator = Communicator::create();
  if (!communicator) return communicator.error();
  auto control = Control::create(options.control, (*communicator)->rank(), (*communicator)->size());
  if (!control) return control.error();
  TuttiLibrary library(**communicator, options);
  return run_harness(options, **control, library);
}

}  // namespace
}  // namespace tutti::compare

int main(int argc, char** argv) { return tutti::compare::drive(argc, argv, tutti::compare::run); }
