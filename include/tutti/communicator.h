// Communicator: one rank's membership in a group of ranks that call collectives together.
//
// Every rank calls the same collectives in the same order with the same count, type, operation and algorithm; buffers,
// in place or not, and registered or not are each rank's own affair. Ranks that disagree get ErrorCode::kMismatch with
// the name of the rank and of the argument, and the communicator stays usable.
//
// A call that is refused for this rank's own arguments (kInvalidArgument) has not happened: it takes no place in the
// order of calls, and peers that have made it wait. Make it again with the right arguments, or abort().
//
// Processes: after fork() only the parent may use a Communicator; the child may destroy its copy. Registered memory is
// shared with the child, not copied.
//
// Threads: a Communicator may be used from any thread, but its collectives must be called in one agreed order, so calls
// from several threads at once need the caller's own ordering. abort() may be called from any thread at any time.
// Different Communicators are independent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/export.h"
#include "tutti/result.h"
#include "tutti/types.h"
#include "tutti/unique_id.h"

namespace tutti {

namespace detail {
class CommunicatorImpl;
class WorkImpl;
class MemoryImpl;
}  // namespace detail

// How a rank finds the others. Fields left as they are come from the environment: from TUTTI_RANK, TUTTI_WORLD_SIZE,
// TUTTI_ROOT, TUTTI_JOB_ID, which `tutti run` sets (see docs/config.md for all of them), then from what torchrun,
// mpirun, srun and others say to their ranks (docs/run.md), and then from the stated default.
struct CommunicatorOptions {
  std::int32_t rank = -1;             // 0 .. size-1
  std::int32_t size = -1;             // number of ranks, 1 .. 65535
  std::string root;                   // "host:port" where rank 0 listens during set-up; default 127.0.0.1:29477
  std::string job_id;                 // ranks with another job id are refused; at most 128 bytes; default "default"
  std::string interface;              // network interface that rank 0 binds to when `root` has no host; default "lo"
  std::optional<UniqueId> unique_id;  // where to meet, in place of root, job_id and interface
  // How long set-up waits for missing ranks, and how long a collective may make no progress. 0: from the environment,
  // then 60 s.
  std::chrono::milliseconds setup_timeout{0};
  std::chrono::milliseconds timeout{0};
};

// One call's extras.
struct AllReduceOptions {
  Algorithm algorithm = Algorithm::kAuto;  // the same on all ranks
  Scale scale;                             // used by ReduceOp::kPreMulSum only
  std::chrono::milliseconds timeout{0};    // 0: the communicator's
};

// An operation under way. Destroying a Work that was not waited for lets the operation run on; the buffers must outlive
// it.
class TUTTI_API Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  // Blocks until the operation has ended and returns how it ended; may be called again. Makes progress in this thread.
  Status wait();
  // True when the operation has ended (wait() then returns at once). Makes a little progress in this thread; never
  // blocks.
  bool test();

 private:
  friend class detail::CommunicatorImpl;
  explicit Work(std::shared_ptr<detail::WorkImpl> impl);
  std::shared_ptr<detail::WorkImpl> impl_;  // shared by the caller and the progress thread, whichever ends last
};

// Memory that the ranks of one machine can reach in place: collectives on it need no copy. Owns what allocate() made;
// for register_memory() it owns the registration only. Release it before its Communicator is destroyed, and not while
// an operation uses it (an operation that is under way then ends with an error on some rank).
class TUTTI_API Memory {
 public:
  Memory();
  Memory(Memory&&) noexcept;
  Memory& operator=(Memory&&) noexcept;
  ~Memory();

  std::byte* data() const;
  std::size_t size() const;  // bytes

 private:
  friend class detail::CommunicatorImpl;
  explicit Memory(std::unique_ptr<detail::MemoryImpl> impl);
  std::unique_ptr<detail::MemoryImpl> impl_;
};

class TUTTI_API Communicator {
 public:
  // Joins the job as one rank. Blocks until all ranks have joined or the set-up deadline has passed; the error then
  // names the ranks that are missing. Errors: kConfig, kInvalidArgument, kTimeout, kRefused, kSystem.
  static Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options = {});

  // All ranks of a job in this process, for one thread each: element i is rank i. `options.rank`, `.size`, `.root`,
  // `.job_id` and `.interface` are ignored; no socket is opened.
  static Result<std::vector<std::unique_ptr<Communicator>>> create_all(std::int32_t size,
                                                                       const CommunicatorOptions& options = {});

  // Ends the membership: operations under way here are ended with kAborted. No thread may be inside a call on it or
  // wait for its Work. Waits for peers at most 1 s, and only after a call on registered memory failed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::int32_t rank() const;
  std::int32_t size() const;
  // What Algorithm::kAuto stands for in a call of `count` elements of `type`; the same on every rank.
  Algorithm auto_algorithm(std::size_t count, DataType type) const;

  // output[i] = op over all ranks' input[i], i in [0, count), on every rank. In place when input == output; otherwise
  // the two must not overlap. Host memory, aligned to the element. count may be 0. Errors: kInvalidArgument, kMismatch,
  // kTimeout, kAborted, kPeerLost. After an error output (in place: the buffer) holds unspecified values.
  Status all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                    const AllReduceOptions& options = {});

  // The same, but returns at once; argument errors, and that the communicator is unusable, are returned here, all
  // others by Work::wait(). The buffers belong to the operation until it has ended. Operations of one communicator run
  // in the order of their calls.
  Result<Work> all_reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                const AllReduceOptions& options = {});

  // New zeroed memory, page-aligned, in huge pages where the system gives them, reachable by all ranks of this machine.
  // Local call. bytes > 0. Errors: kInvalidArgument, kSystem.
  Result<Memory> allocate(std::size_t bytes);

  // Makes existing private memory reachable in place by remapping it onto shared pages; contents and address stay.
  // `data` must be page-aligned, `bytes` a multiple of the page size (sysconf(_SC_PAGESIZE)), the memory private,
  // anonymous, writable and registered nowhere else, and no other thread may touch it during the call. Release the
  // result before the memory is freed: that makes the pages private again. Local call. Errors: kInvalidArgument,
  // kSystem.
  Result<Memory> register_memory(void* data, std::size_t bytes);

  // Ends every operation under way with kAborted, here at once and on peers as soon as they look, and makes the
  // communicator unusable. From any thread, in any state.
  void abort();

 private:
  friend class detail::CommunicatorImpl;
  explicit Communicator(std::unique_ptr<detail::CommunicatorImpl> impl);
  std::unique_ptr<detail::CommunicatorImpl> impl_;
};

}  // namespace tutti
