// Converts one call of a plan to lists of operations (sends, receives and steps), one list per rank. This is the
// form that other simulators read, for which goal.h and chakra.h write files.
//
// In each tile, each step becomes a receive for each message that it receives, the step itself, and a send for each
// message that it sends. The step waits for its receives, for the previous step of its channel, and for the steps that
// its entries in Channel::after name. The sends of a step wait for the step. Receives wait for nothing, and sends do
// not wait for a free slot, because a connection is assumed to hold any number of messages. All lengths are exact. They
// are computed by running the plan with lengths as values, so tiles and short last chunks are those that the runtime
// would send. Empty messages are included, because their receivers wait for them. Pure functions, used by tools and
// tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Limit on the number of operations of a whole call, over all ranks. With this limit, files have at most a few
// gigabytes, which other simulators can still read.
inline constexpr std::uint64_t kMostOperations = 20'000'000;

enum class OperationKind : std::uint8_t { kStep, kSend, kReceive };

struct Operation {
  OperationKind kind = OperationKind::kStep;
  std::uint32_t peer = 0;       // the other rank of a kSend or kReceive; 0 for kStep
  std::uint32_t tag = 0;        // different for every message from the same sender to the same receiver; 0 for kStep
  std::uint64_t bytes = 0;      // length in bytes of the message, or of the values of the step (one for each chunk)
  std::uint32_t additions = 0;  // for kStep: number of additions (operands - 1); otherwise 0
  // Operations of the same rank that must end before this one starts, as indices into the rank's list. An
  // operation of another channel can be later in the list than this one.
  std::vector<std::uint32_t> after{};

  bool operator==(const Operation&) const = default;
};

struct CallSize {
  std::uint64_t count = 0;  // number of elements of every block (plan/collective.h)
  std::size_t element_bytes = 4;
  // limit for the length of a message, see Layout; messages with a run of chunks are longer if run_fits()
  // (plan/tiling.h) is false
  std::size_t max_message_bytes = 512 * 1024;
};

class CallOperations {
 public:
  // The plan must outlive the object, and must be valid (see verify()). Errors: kInvalidPlan if the plan does not
  // run to its end; kUnsupported if there are more than kMostOperations operations, or more messages on one
  // connection than there are tags.
  static Result<CallOperations> create(const Plan& plan, const CallSize& size);

  std::uint64_t tiles() const { return tiles_; }
  std::uint64_t count() const { return count_; }  // number of operations of all ranks in the whole call
  std::vector<Operation> of_rank(std::uint32_t rank) const;

 private:
  // Number of elements of the values of a step. Element 0: in every tile except the last one. Element 1: in the last
  // tile.
  using StepLengths = std::array<std::uint64_t, 2>;

  CallOperations(const Plan& plan, const CallSize& size) : plan_(&plan), size_(size) {}
  Status count_operations();

  const Plan* plan_;
  CallSize size_;
  std::uint64_t tiles_ = 1;
  std::uint64_t count_ = 0;
  // indexed by rank, channel, step
  std::vector<std::vector<std::vector<StepLengths>>> lengths_;
};

}  // namespace tutti
