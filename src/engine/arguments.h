// Checks one rank's arguments of a collective call and converts them to the form that the executor runs. Pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/exchange.h"
#include "executor/plan_execution.h"
#include "plan/plan.h"
#include "tutti/communicator.h"

namespace tutti::detail {

inline constexpr std::size_t kMaxBytes = std::size_t{1} << 56;  // more than the address space of a process

Error invalid_argument(std::string message);

// The calling rank and the size of its communicator.
struct Caller {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
};

// A checked call. The sequence number, algorithm and slot size in its tag are not set yet, and windows have not
// been looked up.
struct CheckedCall {
  Collective collective;  // without `nodes`
  Call call;
  std::size_t input_bytes = 0;  // size of the whole buffer, from its start
  std::size_t output_bytes = 0;
};
// Checks a call and fills in `checked`, which must be a new object. It is an output parameter, because moving the
// result would take a noticeable part of the shortest calls, which take less than a microsecond. Errors:
// kInvalidArgument. Not for calls for which is_exchange() is true.
Status check_call(CheckedCall& checked, const CollectiveCall& call, const CallOptions& options, const Caller& caller);

// The element type and the operation, which must be equal on all ranks. A barrier ignores these fields, so fixed
// values are returned for it.
DataType type_of(const CollectiveCall& call);
ReduceOp op_of(const CollectiveCall& call);

// True for all_to_all_v, gather_v and scatter_v.
bool is_exchange(const CollectiveCall& call);

// One rank's sends and receives of such a call, without connections and sequence numbers. `transfers` contains only
// those with other ranks. A block from a rank to itself is in `own`.
struct CheckedExchange {
  std::vector<Transfer> transfers;
  std::vector<OwnCopy> own;
};
Result<CheckedExchange> check_exchange(const CollectiveCall& call, const CallOptions& options, const Caller& caller);

// Checks one send or receive. `peer` may be this rank. Errors: kInvalidArgument.
Result<Transfer> check_transfer(Direction direction, const void* data, std::size_t count, DataType type,
                                std::int32_t peer, const Caller& caller);

}  // namespace tutti::detail
