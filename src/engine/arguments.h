// Checks one rank's arguments of a collective, a send or a receive, and converts them to the form that the executor
// runs. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/exchange.h"
#include "executor/plan_execution.h"
#include "plan/plan.h"
#include "tutti/communicator.h"

namespace tutti::detail {

// Limit for the counts and displacements of a call, in bytes. No process has more address space.
inline constexpr std::size_t kMaxBytes = std::size_t{1} << 56;

Error invalid_argument(std::string message);
// The error of a call with CallOptions::uniform or checksum that is not a blocking collective.
Error only_blocking();

// The calling rank and the size of its communicator.
struct Caller {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
};

// A checked call. The sequence number, the algorithm and the tile size in its tag are still 0, and the windows of its
// buffers have not been looked up.
struct CheckedCall {
  Collective collective;  // its member `nodes` is not set
  Call call;
  std::size_t input_bytes = 0;  // length of the buffer, from its start to the end of the block that ends last
  std::size_t output_bytes = 0;
};
// Checks a call and fills in `checked`, which must be a new object. It is an output parameter, because moving the
// result would take a noticeable part of the shortest calls, which take less than a microsecond. Errors:
// kInvalidArgument. Not for calls for which is_exchange() is true.
Status check_call(CheckedCall& checked, const CollectiveCall& call, const CallOptions& options, const Caller& caller);

// Whether the error says that this rank passed a wrong argument, so that the call did not happen. (If the buffer of
// another rank cannot be accessed, the error has the same code and names that rank, but the call did happen.)
inline bool is_refusal(const Error& error) { return error.code == ErrorCode::kInvalidArgument && error.rank < 0; }

// type_of() returns the element type, and op_of() the operation, for the tag of a call without a UserReduction. These
// must be equal on all ranks. If the collective ignores the field of `call` (a barrier ignores both, and a collective
// that reduces nothing ignores the operation), the result is a fixed value, because ranks may have set the field
// differently.
DataType type_of(const CollectiveCall& call);
ReduceOp op_of(const CollectiveCall& call);

// True for all_to_all_v, gather_v and scatter_v, which run as sends and receives instead of a plan.
bool is_exchange(const CollectiveCall& call);

// One rank's sends and receives, for example of a call for which is_exchange() is true, without connections and
// sequence numbers. `transfers` contains only those with other ranks. Data from the rank to itself is in `own`.
struct CheckedExchange {
  std::vector<Transfer> transfers;
  std::vector<OwnCopy> own;

  // The tag that stands for the whole exchange in error messages and recordings: that of its first transfer or, if
  // there is no transfer, an empty tag of the kind kSendReceive.
  CallTag tag() const {
    if (!transfers.empty()) return transfers.front().tag;
    return {.kind = static_cast<std::uint8_t>(CollectiveKind::kSendReceive)};
  }
};
Result<CheckedExchange> check_exchange(const CollectiveCall& call, const CallOptions& options, const Caller& caller);

// Checks one send or receive of `count` elements. `peer` may be this rank. The result has no connection and no
// sequence number yet. Errors: kInvalidArgument.
Result<Transfer> check_transfer(Direction direction, const void* data, std::size_t count, DataType type,
                                std::int32_t peer, const Caller& caller);

}  // namespace tutti::detail
