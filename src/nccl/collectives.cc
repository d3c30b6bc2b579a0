// The exported collectives, with and without a configuration of the call, and ncclSend and ncclRecv. Each function
// checks its arguments. It then runs the call or, between ncclGroupStart() and ncclGroupEnd(), adds the call to the
// group (group.h).
#include <fmt/format.h>

#include "nccl/api.h"
#include "nccl/call_config.h"
#include "nccl/comm.h"
#include "nccl/group.h"

namespace tutti::nccl {
namespace {

ncclResult_t fail_in(const char* function, const std::string& message) {
  return fail(ncclInvalidArgument, fmt::format("{}: {}", function, message));
}

struct Arguments {
  CollectiveKind kind;
  const void* input;
  void* output;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  cudaStream_t stream;
  const ncclCollConfig_t* config = nullptr;
};

ncclResult_t take_op(const char* function, Comm& comm, ncclRedOp_t op, GroupCall& one) {
  // The predefined operations: ncclRedOp_t and ReduceOp use the same numbers for them.
  if (op >= 0 && op < 5) {
    one.call.op = static_cast<ReduceOp>(op);
    return ncclSuccess;
  }
  const std::scoped_lock lock(comm.mutex);
  const auto found = comm.ops.find(op);
  if (found == comm.ops.end()) {
    return fail_in(
        function,
        fmt::format("operation {} is not predefined, and was not created on this communicator or was destroyed",
                    static_cast<int>(op)));
  }
  if (found->second.type != one.call.type) {
    return fail_in(function, fmt::format("the operation was made for {}, the call has {}",
                                         to_string(found->second.type), to_string(one.call.type)));
  }
  one.call.op = ReduceOp::kPreMulSum;
  one.custom = found->second;
  return ncclSuccess;
}

ncclResult_t run_collective(const char* function, ncclComm_t handle, const Arguments& arguments) {
  GroupCall one;
  if (const ncclResult_t ready = find_ready(handle, function, &one.comm); ready != ncclSuccess) return ready;
  Comm& comm = *one.comm;
  if (arguments.type < 0 || arguments.type >= ncclNumTypes) {
    return fail_in(function, fmt::format("type {} is none of NCCL's", static_cast<int>(arguments.type)));
  }
  if (arguments.root < 0 || arguments.root >= comm.ranks) {
    return fail_in(function, fmt::format("root {} is outside 0..{}", arguments.root, comm.ranks - 1));
  }
  one.call.kind = arguments.kind;
  one.call.input = arguments.input;
  one.call.output = arguments.output;
  one.call.count = arguments.count;
  one.call.type = static_cast<DataType>(arguments.type);
  one.call.root = arguments.root;
  one.stream = arguments.stream;
  const auto config = read_call_config(arguments.config, arguments.kind,
                                       comm.settings.algorithms[static_cast<std::size_t>(arguments.kind)]);
  if (!config) return fail(result_of(config.error().code), fmt::format("{}: {}", function, config.error().message));
  one.config = *config;
  if (const ncclResult_t taken = take_op(function, comm, arguments.op, one); taken != ncclSuccess) return taken;
  // As in NCCL, nothing is done for count 0. No rank waits for this one, because every rank passes the same count.
  if (arguments.count == 0) return ncclSuccess;
  // A rank may pass any pointer, even an invalid one, for a buffer that it does not use, for example for the input of a
  // broadcast on a rank that is not the root. Such pointers are replaced by null, so that nothing inspects them.
  const bool root = comm.rank == arguments.root;
  const RootHas only_root = row_of(arguments.kind).root;
  if (!root && only_root == RootHas::kTheInput) one.call.input = nullptr;
  if (!root && only_root == RootHas::kTheOutput) one.call.output = nullptr;
  return run_call(function, std::move(one));
}

ncclResult_t transfer(const char* function, GroupCall::CallType kind, const void* input, void* output,
                      std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle, cudaStream_t stream) {
  GroupCall one;
  if (const ncclResult_t ready = find_ready(handle, function, &one.comm); ready != ncclSuccess) return ready;
  if (type < 0 || type >= ncclNumTypes) {
    return fail_in(function, fmt::format("type {} is none of NCCL's", static_cast<int>(type)));
  }
  if (peer < 0 || peer >= one.comm->ranks) {
    return fail_in(function, fmt::format("peer {} is outside 0..{}", peer, one.comm->ranks - 1));
  }
  one.kind = kind;
  one.call.input = input;
  one.call.output = output;
  one.call.count = count;
  one.call.type = static_cast<DataType>(type);
  one.peer = peer;
  one.stream = stream;
  return run_call(function, std::move(one));
}

ncclResult_t collective(const char* function, ncclComm_t comm, const Arguments& arguments) noexcept {
  return guarded_in_group([&] { return run_collective(function, comm, arguments); });
}

// One function for each collective. Its exported functions call it, with a configuration or without one (null).

ncclResult_t all_reduce(const char* function, const void* sendbuff, void* recvbuff, size_t count,
                        ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kAllReduce,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = count,
                     .type = datatype,
                     .op = op,
                     .stream = stream,
                     .config = config});
}

ncclResult_t broadcast(const char* function, const void* sendbuff, void* recvbuff, size_t count,
                       ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream,
                       const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kBroadcast,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = root,
                     .stream = stream,
                     .config = config});
}

ncclResult_t reduce(const char* function, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                    ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kReduce,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = count,
                     .type = datatype,
                     .op = op,
                     .root = root,
                     .stream = stream,
                     .config = config});
}

ncclResult_t all_gather(const char* function, const void* sendbuff, void* recvbuff, size_t sendcount,
                        ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kAllGather,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = sendcount,
                     .type = datatype,
                     .stream = stream,
                     .config = config});
}

ncclResult_t reduce_scatter(const char* function, const void* sendbuff, void* recvbuff, size_t recvcount,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                            const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kReduceScatter,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = recvcount,
                     .type = datatype,
                     .op = op,
                     .stream = stream,
                     .config = config});
}

ncclResult_t all_to_all(const char* function, const void* sendbuff, void* recvbuff, size_t count,
                        ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kAllToAll,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = count,
                     .type = datatype,
                     .stream = stream,
                     .config = config});
}

ncclResult_t gather(const char* function, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                    int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kGather,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = root,
                     .stream = stream,
                     .config = config});
}

ncclResult_t scatter(const char* function, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                     int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return collective(function, comm,
                    {.kind = CollectiveKind::kScatter,
                     .input = sendbuff,
                     .output = recvbuff,
                     .count = count,
                     .type = datatype,
                     .root = root,
                     .stream = stream,
                     .config = config});
}

}  // namespace

TUTTI_NCCL(ncclResult_t, AllReduce, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return all_reduce("ncclAllReduce", sendbuff, recvbuff, count, datatype, op, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, AllReduceConfig, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return all_reduce("ncclAllReduceConfig", sendbuff, recvbuff, count, datatype, op, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, Broadcast, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           int root, ncclComm_t comm, cudaStream_t stream) {
  return broadcast("ncclBroadcast", sendbuff, recvbuff, count, datatype, root, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, BroadcastConfig, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return broadcast("ncclBroadcastConfig", sendbuff, recvbuff, count, datatype, root, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, Bcast, void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
           cudaStream_t stream) {
  return broadcast("ncclBcast", buff, buff, count, datatype, root, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, Reduce, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return reduce("ncclReduce", sendbuff, recvbuff, count, datatype, op, root, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, ReduceConfig, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return reduce("ncclReduceConfig", sendbuff, recvbuff, count, datatype, op, root, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, AllGather, const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype,
           ncclComm_t comm, cudaStream_t stream) {
  return all_gather("ncclAllGather", sendbuff, recvbuff, sendcount, datatype, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, AllGatherConfig, const void* sendbuff, void* recvbuff, size_t sendcount,
           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return all_gather("ncclAllGatherConfig", sendbuff, recvbuff, sendcount, datatype, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, ReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype,
           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return reduce_scatter("ncclReduceScatter", sendbuff, recvbuff, recvcount, datatype, op, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, ReduceScatterConfig, const void* sendbuff, void* recvbuff, size_t recvcount,
           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
           const ncclCollConfig_t* config) {
  return reduce_scatter("ncclReduceScatterConfig", sendbuff, recvbuff, recvcount, datatype, op, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, AlltoAll, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           ncclComm_t comm, cudaStream_t stream) {
  return all_to_all("ncclAlltoAll", sendbuff, recvbuff, count, datatype, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, AlltoAllConfig, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return all_to_all("ncclAlltoAllConfig", sendbuff, recvbuff, count, datatype, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, Gather, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
           ncclComm_t comm, cudaStream_t stream) {
  return gather("ncclGather", sendbuff, recvbuff, count, datatype, root, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, GatherConfig, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return gather("ncclGatherConfig", sendbuff, recvbuff, count, datatype, root, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, Scatter, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root,
           ncclComm_t comm, cudaStream_t stream) {
  return scatter("ncclScatter", sendbuff, recvbuff, count, datatype, root, comm, stream, nullptr);
}

TUTTI_NCCL(ncclResult_t, ScatterConfig, const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
           int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config) {
  return scatter("ncclScatterConfig", sendbuff, recvbuff, count, datatype, root, comm, stream, config);
}

TUTTI_NCCL(ncclResult_t, Send, const void* sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
           cudaStream_t stream) {
  return guarded_in_group([&] {
    return transfer("ncclSend", GroupCall::CallType::kSend, sendbuff, nullptr, count, datatype, peer, comm, stream);
  });
}

TUTTI_NCCL(ncclResult_t, Recv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
           cudaStream_t stream) {
  return guarded_in_group([&] {
    return transfer("ncclRecv", GroupCall::CallType::kReceive, nullptr, recvbuff, count, datatype, peer, comm, stream);
  });
}

}  // namespace tutti::nccl
