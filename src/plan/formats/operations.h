// What a plan does in one call, message by message: the form in which other simulators take it (goal.h, chakra.h).
//
// Each step, in each tile, becomes a receive for each message that it takes, the step itself, and a send for each
// message that it makes. The step waits for its receives, for the step before it in its channel and for its `after`s;
// its sends wait for it. Receives wait for nothing: credits are left out, as if every connection held any number of
// messages. All lengths are exact, worked out by one run of the plan in which a value is its length; so tiles and
// short last chunks are what the runtime would send. Empty messages are there too: their receivers wait for them. Pure
// functions; for tools, tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

// Operations of a whole call, all ranks: what can be written to files of a few gigabytes, and read by those others.
inline constexpr std::uint64_t kMostOperations = 20'000'000;

enum class OperationKind : std::uint8_t { kStep, kSend, kReceive };

struct Operation {
  OperationKind kind = OperationKind::kStep;
  std::uint32_t peer = 0;              // of kSend and kReceive
  std::uint32_t tag = 0;               // no two messages from one rank to another have the same
  std::uint64_t bytes = 0;             // of the message, or of the step's value
  std::uint32_t additions = 0;         // of kStep: values added to the first one
  std::vector<std::uint32_t> after{};  // operations of this rank, by index; of other channels also later ones

  bool operator==(const Operation&) const = default;
};

struct CallSize {
  std::uint64_t count = 0;  // elements of every block (plan/collective.h)
  std::size_t element_bytes = 4;
  std::size_t max_chunk_bytes = 512 * 1024;
};

class CallOperations {
 public:
  // The plan must outlive it, and be one that is proved. Errors: kInvalidPlan where it can not be run to its end;
  // kUnsupported for more than kMostOperations or for numbers that tags do not hold.
  static Result<CallOperations> create(const Plan& plan, const CallSize& size);

  std::uint64_t tiles() const { return tiles_; }
  std::uint64_t count() const { return count_; }  // of all ranks
  std::vector<Operation> of_rank(std::uint32_t rank) const;

 private:
  // Elements of a step's value in every tile but the last, and in the last.
  using StepLengths = std::array<std::uint64_t, 2>;

  CallOperations(const Plan& plan, const CallSize& size) : plan_(&plan), size_(size) {}
  Status count_operations();

  const Plan* plan_;
  CallSize size_;
  std::uint64_t tiles_ = 1;
  std::uint64_t count_ = 0;
  std::vector<std::vector<std::vector<StepLengths>>> lengths_;  // rank, channel, step
};

}  // namespace tutti
