// The options of a communicator and of a call. Values.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/types.h"
#include "tutti/unique_id.h"
#include "tutti/user_reduction.h"

namespace tutti {

// Which calls are uniform. A uniform call has the same outcome, success or an error, on all live ranks. Only blocking
// collectives on host memory can be uniform.
enum class UniformCalls : std::uint8_t {
  kNone,
  kAsked,  // those with CallOptions::uniform
  kAll,    // all blocking collectives on host memory
};

// How a rank finds the other ranks, and how the communicator works. A field that is left at its default (except
// `device` and `devices`) is read from the environment: first from Tutti's variables (TUTTI_RANK, TUTTI_WORLD_SIZE,
// TUTTI_ROOT, TUTTI_JOB_ID, ..., which `tutti run` sets; docs/config.md lists all of them), then from the variables of
// torchrun, mpirun, srun and other launchers (docs/run.md). If neither sets it, the default that is stated here
// applies.
struct CommunicatorOptions {
  std::int32_t rank = -1;  // 0 .. size-1; -1: from the environment
  std::int32_t size = -1;  // number of ranks, 1 .. 65535; -1: from the environment
  // "host:port" at which rank 0 listens during set-up. Default: the address of `interface` or, if that is empty,
  // 127.0.0.1 (::1 if loopback has only IPv6), and port 29477 or, if TUTTI_PORT_RANGE is set, a port of that range that
  // depends on the job id.
  std::string root;
  std::string job_id;  // ranks with a different job id are refused; at most 128 bytes; default "default"
  // Path of a file with 16 to 4096 random bytes, mode 600: the secret by which the ranks of a job authenticate each
  // other. Default: TUTTI_JOB_KEY_FILE, then TUTTI_JOB_KEY, then a key that is kept for this user on this machine. If a
  // key is configured together with a unique id, a rank needs both, and so does the process that creates the id.
  std::string job_key_file;
  // The secret itself, 16 to 4096 bytes. It takes precedence over the variables. To set job_key and job_key_file is an
  // error.
  std::string job_key;
  // Network interface for this rank's data, and for set-up if `root` has no host. Default: lo for set-up; for data, the
  // interface of the route to the other ranks.
  std::string interface;
  // With an id, the ranks meet at the address in the id: root and job_id are ignored, and interface has no effect on
  // set-up. If a job key is configured, the ranks need both. Unset: TUTTI_UNIQUE_ID, unless `root` is set.
  std::optional<UniqueId> unique_id;
  // How ranks may reach each other: "auto" (shared memory inside a machine; between machines RDMA if both have it,
  // otherwise TCP), "shm" (an error if the ranks are on several machines), or "tcp", "verbs" or "ucx" (also inside a
  // machine; an error if it cannot be used). Empty: TUTTI_TRANSPORT, then "auto".
  std::string transport;
  // Whether ranks of one machine access each other's memory if it is not registered: "auto" (if the system allows it
  // and it is faster), "calls" (by system calls, even between threads of one process) or "off". Empty: TUTTI_ATTACH,
  // then "auto".
  std::string attach;
  // Whether data between machines is encrypted (TLS 1.3 over TCP; docs/security.md states guarantees and cost). Must
  // be the same on all ranks. With encryption the transports verbs and ucx are never chosen. Requesting one of them
  // is a kConfig error, and so is a missing libssl.so.3 if ranks use a network. Unset: TUTTI_ENCRYPT, then false.
  std::optional<bool> encrypt;
  // Ranks share memory only with ranks on the same machine that have the same node id. Different ids split one
  // machine into several, for example for tests. Empty: TUTTI_NODE_ID, then all ranks have the same id. At most 64
  // bytes.
  std::string node_id;
  static constexpr std::int32_t kNoDevice = -1;  // value of `device` if this rank uses no GPU
  // CUDA number of this rank's GPU. Unset: the GPU of the calling thread's current CUDA context, if it has one.
  std::optional<std::int32_t> device;
  // With "auto", calls on GPU memory run on the GPUs if every rank has a GPU of the same machine, these GPUs can access
  // each other, and no limit in docs/limits.md prevents it. Otherwise, or with "staged", the host carries them out; on
  // several machines the GPUs do parts of long all_reduces (docs/communicator.md). Empty: TUTTI_DEVICE_CALLS, "auto".
  std::string device_calls;
  // Which calls are uniform. A uniform call costs a short all-reduce (docs/elastic.md has numbers). start(), Group,
  // sends, receives and calls with a stream are never uniform. With kAll, a uniform call on device memory only ensures
  // that all ranks have begun it, because it ends later, in its stream. Must be the same on all ranks.
  //
  // Unless this is kNone, the blocking collectives of several threads run one after the other. If the communicator
  // breaks during one of them, uniform or not, this call does not return before all ranks have agreed on the outcome of
  // the last uniform call. So it waits until every other rank makes a blocking collective, which fails, too, or calls
  // agree() or shrink(): at most 4 set-up timeouts, even after abort(). After that the communicator refuses all calls
  // on all of these ranks; call shrink() to continue. If live ranks cannot communicate for that long, the outcomes may
  // differ. agree() and shrink() wait for a call in progress. Unset: TUTTI_UNIFORM, then kNone.
  std::optional<UniformCalls> uniform;
  // Whether every message of collectives, sends and receives on host memory carries a checksum (CRC-32C), which the
  // receiver verifies. A flipped bit gives kDamaged on the receiving rank, and the message names sender and receiver.
  // All values then travel through slots or sockets and never directly through another rank's memory, and calls on
  // GPU memory run on the host. docs/reliability.md states coverage and cost. Must be the same on all ranks. Unset:
  // TUTTI_CHECKSUM, then false.
  std::optional<bool> checksum;
  // The device of each rank. Used by create_all() only. If it is empty, all ranks use `device`.
  std::vector<std::int32_t> devices;
  // setup_timeout: how long set-up waits for missing ranks. timeout: how long a collective, send or receive may make no
  // progress before it fails. 0: from the environment (TUTTI_SETUP_TIMEOUT_MS, TUTTI_TIMEOUT_MS), then 60 s.
  std::chrono::milliseconds setup_timeout{0};
  std::chrono::milliseconds timeout{0};
};

// Options of one call.
struct CallOptions {
  Algorithm algorithm = Algorithm::kAuto;  // must be the same on all ranks
  Scale scale{};                           // used by ReduceOp::kPreMulSum only
  std::chrono::milliseconds timeout{0};    // longest time without progress; 0: the communicator's timeout
  // If reduction.combine is not null, this function reduces the elements. The call's data type is then ignored, and its
  // operation only has to be a valid ReduceOp.
  UserReduction reduction{};
  // The CUstream of a call on device memory. The stream must belong to the context of the buffers. If the option is
  // empty or contains a null pointer, the default stream of that context is used. A call on host memory ignores the
  // stream, but fails if the process has not loaded the CUDA driver, because the pointer then cannot be a stream. The
  // stream may be capturing a CUDA graph: docs/communicator.md has the rules.
  std::optional<void*> stream{};
  // Number of the caller's choice, which the recording of this call shows (docs/recorder.md). It has no other effect,
  // and may differ between ranks. 0: none.
  std::uint64_t label = 0;
  // Whether this call is uniform. Must be the same on all ranks. With true, the call must be a blocking collective on
  // host memory without a stream, and CommunicatorOptions::uniform must not be kNone; otherwise the call does not
  // happen (kInvalidArgument). With false, the call is uniform only if that option is kAll.
  bool uniform = false;
  // Whether every message of this call carries a checksum, as with CommunicatorOptions::checksum. Must be the same on
  // all ranks. With true, the call must be a blocking collective on host memory without a stream; otherwise it does not
  // happen (kInvalidArgument). The first call with a checksum makes a second set of connections between the ranks,
  // which may take as long as a split(). Each call with a checksum begins with a barrier; if the barrier fails, for
  // example because a rank is late, the communicator is broken. Not available in a simulation, or after use_plan()
  // (kUnsupported).
  bool checksum = false;
};

}  // namespace tutti
