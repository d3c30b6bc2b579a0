// The driver for Gloo. It uses Gloo's TCP transport even on one machine, because Gloo has no shared-memory transport.
//
// Algorithms of all-reduce: "ring" and "bcube" are those of gloo::allreduce, which PyTorch uses. "legacy_ring" is an
// older class, which can be faster for small messages. compare.py sets COMPARE_RANK, COMPARE_RANKS, COMPARE_STORE (an
// empty folder for the rendezvous) and, between network namespaces, COMPARE_INTERFACE (otherwise lo is used).
// Connections use Gloo's default mode, in which an event-loop thread receives all data, and sends the data that the
// calling thread cannot send at once.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_ring.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/compare/harness.h"

namespace tutti::compare {
namespace {

// Longer than the default of compare.py's --cell-limit-s, so that by default compare.py ends a job before Gloo does.
constexpr std::chrono::minutes kTimeout(5);

std::string variable(const char* name, const char* otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : otherwise;
}

void add(void* sum, const void* left, const void* right, std::size_t count) {
  gloo::sum<float>(sum, left, right, count);
}

// Calls `call`. If it throws an exception, by which Gloo reports errors, returns the exception's message as an error.
template <class Call>
Status guarded(const Call& call) {
  try {
    call();
  } catch (const std::exception& exception) {
    return Error{.code = ErrorCode::kSystem, .scope = ErrorScope::kProcess, .rank = -1, .message = exception.what()};
  }
  return {};
}

using Context = std::shared_ptr<gloo::rendezvous::Context>;  // a shared_ptr, because Gloo's functions take one

class GlooLibrary : public Library {
 public:
  GlooLibrary(int rank, int ranks, std::string algorithm)
      : rank_(rank), ranks_(ranks), algorithm_(std::move(algorithm)), store_(variable("COMPARE_STORE", ".")) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = variable("COMPARE_INTERFACE", "lo");
    attributes.ai_family = AF_INET;
    device_ = gloo::transport::tcp::CreateDevice(attributes);
  }

  Result<Operation> prepare(const Workload& workload, const Buffers& buffers) override {
    Operation operation;
    const Status status = guarded([&] { operation = make(workload, buffers); });
    if (!status) return status.error();
    if (operation) return operation;
    return Error{.code = ErrorCode::kUnsupported,
                 .scope = ErrorScope::kCall,
                 .rank = -1,
                 .message = "Gloo has no such collective or algorithm"};
  }

 private:
  // Connects all ranks in a new context. Each operation gets a context of its own, because Gloo's older classes take
  // slot numbers from a context and never release them.
  Context connect() {
    prefixes_.push_back(
        std::make_unique<gloo::rendezvous::PrefixStore>("context" + std::to_string(prefixes_.size()), store_));
    Context context = std::make_shared<gloo::rendezvous::Context>(rank_, ranks_);
    context->setTimeout(kTimeout);
    context->connectFullMesh(*prefixes_.back(), device_);
    return context;
  }

  // Returns an operation that calls `function` with the same options each time, but with a new tag. `set` fills in
  // the options once.
  template <class Options, class Set, class Function>
  Operation with_options(const Set& set, const Function& function) {
    // A shared_ptr, because std::function requires a target that can be copied.
    auto options = std::make_shared<Options>(connect());
    set(*options);
    return [options, function, tag = std::uint32_t{0}]() mutable {
      return guarded([&] {
        options->setTag(tag++);
        function(*options);
      });
    };
  }

  Operation all_reduce(float* data, std::size_t count) {
    if (algorithm_ == "legacy_ring") {
      auto ring =
          std::make_shared<gloo::AllreduceRing<float>>(connect(), std::vector<float*>{data}, static_cast<int>(count));
      return [ring] { return guarded([&] { ring->run(); }); };
    }
    const bool bcube = algorithm_ == "bcube";
    if (!bcube && algorithm_ != "ring") return {};
    return with_options<gloo::AllreduceOptions>(
        [=](gloo::AllreduceOptions& options) {
          options.setAlgorithm(bcube ? gloo::AllreduceOptions::Algorithm::BCUBE
                                     : gloo::AllreduceOptions::Algorithm::RING);
          options.setOutput(data, count);
          options.setReduceFunction(add);
          options.setTimeout(kTimeout);
        },
        [](gloo::AllreduceOptions& options) { gloo::allreduce(options); });
  }

  // Gloo's class for this collective works in place in `input`. The result is copied to `block`, where the harness
  // expects it.
  Operation reduce_scatter(const Workload& workload, float* input, float* block) {
    const auto m = static_cast<int>(workload.block_elements());
    auto context = connect();
    auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        context, std::vector<float*>{input}, static_cast<int>(workload.elements()),
        std::vector<int>(static_cast<std::size_t>(ranks_), m));
    return [algorithm, context, input, block, m] {
      return guarded([&] {
        algorithm->run();
        std::memcpy(block, input, static_cast<std::size_t>(m) * sizeof(float));
      });
    };
  }

  Operation make(const Workload& workload, const Buffers& buffers);

  const int rank_;
  const int ranks_;
  const std::string algorithm_;
  gloo::rendezvous::FileStore store_;
  std::vector<std::unique_ptr<gloo::rendezvous::PrefixStore>> prefixes_;
  std::shared_ptr<gloo::transport::Device> device_;
};

Operation GlooLibrary::make(const Workload& workload, const Buffers& buffers) {
  float* const main = buffers.main.data();
  float* const other = buffers.other.data();
  const std::size_t n = workload.elements();
  const std::size_t m = workload.block_elements();
  switch (workload.kind) {
    case CollectiveKind::kAllReduce: return all_reduce(main, n);
    case CollectiveKind::kBroadcast:
      return with_options<gloo::BroadcastOptions>([=](auto& o) { o.setOutput(main, n), o.setRoot(0); },
                                                  [](auto& o) { gloo::broadcast(o); });
    case CollectiveKind::kReduce:
      return with_options<gloo::ReduceOptions>(
          [=](auto& o) {
            o.setInput(main, n), o.setOutput(other, n), o.setRoot(0);
            o.setReduceFunction(add);
          },
          [](auto& o) { gloo::reduce(o); });
    case CollectiveKind::kAllGather:
      return with_options<gloo::AllgatherOptions>([=](auto& o) { o.setInput(other, m), o.setOutput(main, n); },
                                                  [](auto& o) { gloo::allgather(o); });
    case CollectiveKind::kReduceScatter: return reduce_scatter(workload, main, other);
    case CollectiveKind::kAllToAll:
      return with_options<gloo::AlltoallOptions>([=](auto& o) { o.setInput(main, n), o.setOutput(other, n); },
                                                 [](auto& o) { gloo::alltoall(o); });
    case CollectiveKind::kGather:
      return with_options<gloo::GatherOptions>(
          [=, root = rank_ == 0](auto& o) {
            o.setInput(other, m), o.setRoot(0);
            if (root) o.setOutput(main, n);
          },
          [](auto& o) { gloo::gather(o); });
    case CollectiveKind::kScatter:
      return with_options<gloo::ScatterOptions>(
          [=, this](auto& o) {
            std::vector<float*> blocks;
            for (int rank = 0; rank < ranks_; ++rank) blocks.push_back(main + static_cast<std::size_t>(rank) * m);
            if (rank_ == 0) o.setInputs(blocks, m);
            o.setOutput(other, m), o.setRoot(0);
          },
          [](auto& o) { gloo::scatter(o); });
    case CollectiveKind::kBarrier:
      return with_options<gloo::BarrierOptions>([](auto&) {}, [](auto& o) { gloo::barrier(o); });
    default: return {};
  }
}

Status run(const Options& options) {
  auto control = Control::create(options.control, options.rank, options.ranks);
  if (!control) return control.error();
  std::unique_ptr<GlooLibrary> library;
  Status made =
      guarded([&] { library = std::make_unique<GlooLibrary>(options.rank, options.ranks, options.gloo_algorithm); });
  if (!made) return made;
  const Status status = run_harness(options, **control, *library);
  if (status) (*control)->barrier();
  // Ends the process without calling destructors, because Gloo does not shut down in order: when the first rank closes
  // its connections, the event loops of the other ranks throw.
  std::_Exit(exit_status_of(status));
}

}  // namespace
}  // namespace tutti::compare

int main(int argc, char** argv) { return tutti::compare::drive(argc, argv, tutti::compare::run); }
