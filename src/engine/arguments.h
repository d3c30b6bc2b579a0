// Checks one rank's arguments of a collective call and turns them into what the executor runs. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/exchange.h"
#include "executor/plan_execution.h"
#include "plan/plan.h"
#include "tutti/communicator.h"

namespace tutti::detail {

inline constexpr std::size_t kMaxBytes = std::size_t{1} << 56;  // no process has more address space

Error invalid_argument(std::string message);

// Who calls, in what communicator.
struct Caller {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
};

// A checked call. The tag has no sequence number, algorithm and slot size yet, and windows are not looked up.
struct CheckedCall {
  Collective collective;  // nodes are not filled in
  Call call;
  std::size_t input_bytes = 0;  // of the whole buffer, from its start
  std::size_t output_bytes = 0;
};
// Errors: kInvalidArgument. Not for the v-variants that are exchanges.
Result<CheckedCall> check_call(const CollectiveCall& call, const CallOptions& options, const Caller& caller);

// What all ranks must give alike. Of a barrier, of which nobody looks at these fields, always the same.
DataType type_of(const CollectiveCall& call);
ReduceOp op_of(const CollectiveCall& call);

// True for all_to_all_v, gather_v and scatter_v.
bool is_exchange(const CollectiveCall& call);

// One rank's sends and receives of such a call, without connections and numbers. Transfers have other peers only; what
// a rank has for itself stands in `own`.
struct CheckedExchange {
  std::vector<Transfer> transfers;
  std::vector<OwnCopy> own;
};
Result<CheckedExchange> check_exchange(const CollectiveCall& call, const CallOptions& options, const Caller& caller);

// One send or receive. `peer` may be this rank. Errors: kInvalidArgument.
Result<Transfer> check_transfer(Direction direction, const void* data, std::size_t count, DataType type,
                                std::int32_t peer, const Caller& caller);

}  // namespace tutti::detail
