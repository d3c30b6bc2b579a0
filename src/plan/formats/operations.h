// Converts one call of a plan to a list of operations (sends, receives and steps), which is the form that other
// simulators read (goal.h, chakra.h).
//
// In each tile, each step becomes a receive for each message that it receives, the step itself, and a send for
// each message that it sends. The step waits for its receives, for the previous step of its channel, and for the
// steps in its `after`s. Its sends wait for the step. Receives wait for nothing, because credits are left out: a
// connection is assumed to hold any number of messages. All lengths are exact. They are computed by running the
// plan with values that are lengths, so the tiles and the short last chunks are those that the runtime would send.
// Empty messages are included, because their receivers wait for them. Pure functions, used by tools and tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Limit on the operations of a whole call of all ranks. It keeps the files at a few gigabytes, which the other
// simulators can read.
inline constexpr std::uint64_t kMostOperations = 20'000'000;

enum class OperationKind : std::uint8_t { kStep, kSend, kReceive };

struct Operation {
  OperationKind kind = OperationKind::kStep;
  std::uint32_t peer = 0;       // the other rank of a kSend or kReceive
  std::uint32_t tag = 0;        // different for every message from one rank to another
  std::uint64_t bytes = 0;      // length of the message, or of the step's value
  std::uint32_t additions = 0;  // for kStep: number of values that are added to the first one
  // Operations of this rank that must end before this one, as indices. Those of other channels can have larger
  // indices.
  std::vector<std::uint32_t> after{};

  bool operator==(const Operation&) const = default;
};

struct CallSize {
  std::uint64_t count = 0;  // elements of every block (plan/collective.h)
  std::size_t element_bytes = 4;
  std::size_t max_chunk_bytes = 512 * 1024;
};

class CallOperations {
 public:
  // The plan must outlive the object, and must be valid (see verify()). Errors: kInvalidPlan if the plan does not
  // run to its end; kUnsupported if there are more than kMostOperations, or more messages than there are tags.
  static Result<CallOperations> create(const Plan& plan, const CallSize& size);

  std::uint64_t tiles() const { return tiles_; }
  std::uint64_t count() const { return count_; }  // number of operations of all ranks
  std::vector<Operation> of_rank(std::uint32_t rank) const;

 private:
  // Elements of a step's value: in every tile except the last, and in the last tile.
  using StepLengths = std::array<std::uint64_t, 2>;

  CallOperations(const Plan& plan, const CallSize& size) : plan_(&plan), size_(size) {}
  Status count_operations();

  const Plan* plan_;
  CallSize size_;
  std::uint64_t tiles_ = 1;
  std::uint64_t count_ = 0;
  std::vector<std::vector<std::vector<StepLengths>>> lengths_;  // indexed by rank, channel, step
};

}  // namespace tutti
