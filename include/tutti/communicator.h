// Communicator: one rank's membership in a group of ranks that call collectives together.
//
// Every rank calls the same collectives in the same order with the same count, type, operation and algorithm; buffers,
// in place or not, and registered or not are each rank's own affair. Ranks that disagree get ErrorCode::kMismatch with
// the name of the rank and of the argument, and the communicator stays usable.
//
// A call that is refused for this rank's own arguments (kInvalidArgument) has not happened: it takes no place in the
// order of calls, and peers that have made it wait. Make it again with the right arguments, or abort().
//
// Sends and receives have an order of their own: between two ranks, in each direction, the k-th send meets the k-th
// receive. Collectives and transfers with other ranks do not hold them up.
//
// Buffers: host or device memory (see below), aligned to the element. Input and output are the same memory only in the
// collective's in-place form (docs/collectives.md) and do not overlap otherwise. count may be 0. A rank may pass null
// for a buffer that it has not (the input of a broadcast away from its root, the output of a reduce, ...). Errors of
// every collective: kInvalidArgument, kMismatch, kTimeout, kAborted, kPeerLost. Ranks may end a failed call
// differently: one that has all it needs ends it well while another gives up (unless CommunicatorOptions::uniform).
// After an error other than kInvalidArgument the output holds unspecified values: of each element what stood there, a
// partial result or the result. In place that is the input, too, which is lost then: keep a copy, or work out of place,
// where a step may have to be done again. Out of place the input is as it was, and nothing outside of the output is
// written. A failed call waits for peers that may be writing its output, at most 1 s: one that is stopped for longer
// in the middle may write yet.
//
// Device memory: the buffers of a call may lie in the memory of one GPU instead. Such a call is ordered in a stream
// (CallOptions::stream) and returns before it ran; its buffers belong to it until that stream is through with it. What
// fails later is told by async_status(), and by the Work where there is one; the output then holds unspecified values.
// Collectives of one communicator still run in the order of their calls, whatever their streams. Such calls run on the
// GPUs where every rank has one (CommunicatorOptions::device): then its buffers lie in that GPU's memory on all ranks
// of a call, or in host memory on all. Else the host carries them out, and ranks with device and with host memory may
// meet in one call. Device memory is recognised where the CUDA driver was loaded into the process when the communicator
// was made, or the call names a stream. Managed memory counts as device memory, pinned memory as host memory. A rank
// whose context is lost (a kernel failed, it was destroyed), or whose driver refuses what a call on the GPUs needs, is
// lost to its peers, too: they hear of it as of an abort(), as soon as the rank itself does.
//
// Graphs: a stream may capture calls on device memory; each replay is a call of its own, for which other ranks make
// theirs, in an order that all ranks share. The Work of a captured call is done at once. Ranks that share a GPU in one
// process are captured in one graph, from one thread, in a Group. Synchronize the streams of replays before the
// communicator ends. Where the host carries calls out: from the first captured call on, calls on device memory take
// their places in the order in which streams come to them: put them into one stream, or order the streams by events, on
// all ranks alike; synchronize before calls on host memory that are to follow; and a graph that outlives its
// communicator only lets its stream go on.
//
// Processes: after fork() only the parent may use a Communicator; the child may destroy its copy. Registered memory is
// shared with the child, not copied.
//
// Threads: every function may be called from any thread, also at once. Collectives must be called in one order that all
// ranks agree on, and so must transfers between two ranks: calls from several threads at once that could overtake each
// other need the caller's own ordering. abort() may be called from any thread at any time.
// Different Communicators are independent.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/export.h"
#include "tutti/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"
#include "tutti/unique_id.h"
#include "tutti/user_reduction.h"

namespace tutti {

namespace detail {
class CommunicatorImpl;
class WorkImpl;
class MemoryImpl;
class GroupImpl;
class PendingImpl;
}  // namespace detail

class Communicator;

// How a rank finds the others. Fields left as they are come from the environment: from TUTTI_RANK, TUTTI_WORLD_SIZE,
// TUTTI_ROOT, TUTTI_JOB_ID, which `tutti run` sets (see docs/config.md for all of them), then from what torchrun,
// mpirun, srun and others say to their ranks (docs/run.md), and then from the stated default.
struct CommunicatorOptions {
  std::int32_t rank = -1;             // 0 .. size-1
  std::int32_t size = -1;             // number of ranks, 1 .. 65535
  std::string root;                   // "host:port" where rank 0 listens during set-up; default 127.0.0.1:29477
  std::string job_id;                 // ranks with another job id are refused; at most 128 bytes; default "default"
  std::string job_key_file;           // 16 to 4096 random bytes by which the job's ranks know each other, mode 600;
                                      // default: TUTTI_JOB_KEY_FILE, TUTTI_JOB_KEY, then one of this machine and user.
                                      // With a unique id: in addition to the id, for the process that makes it, too
  std::string interface;              // network interface for this rank's data, and for meeting when `root` has no
                                      // host; default: lo, and for data the one that leads to rank 0
  std::optional<UniqueId> unique_id;  // replaces root, job_id and interface; a job key is mixed in
  // How ranks may reach each other: "auto" (shared memory inside a machine, TCP across), "shm" (an error where that is
  // not enough) or "tcp" (even inside a machine). Empty: TUTTI_TRANSPORT, then "auto".
  std::string transport;
  // Whether ranks of one machine use each other's memory that is not registered: "auto" (where the system lets them and
  // it pays), "calls" (by system calls, even between threads of one process) or "off". Empty: TUTTI_ATTACH, then
  // "auto".
  std::string attach;
  // Whether what goes between machines is encrypted (TLS 1.3 over TCP; docs/security.md says what that costs and
  // promises). The same on all ranks. verbs and ucx are not chosen then, and are kConfig errors where they are asked
  // for; so is a machine without libssl.so.3. Left alone: TUTTI_ENCRYPT, then false.
  std::optional<bool> encrypt;
  // Ranks share memory only with ranks of the same id (and machine): splits one machine into several. Empty:
  // TUTTI_NODE_ID, then all alike. At most 64 bytes.
  std::string node_id;
  // The GPU of this rank, by its number, or kNoDevice. Left alone: that of the calling thread's current CUDA context,
  // if it has one. Where every rank has a GPU of one machine and these reach each other, calls on their memory run on
  // the GPUs (device_calls "auto"); else, or with "staged", the host carries them out. Empty: TUTTI_DEVICE_CALLS, then
  // "auto".
  static constexpr std::int32_t kNoDevice = -1;
  std::optional<std::int32_t> device;
  std::string device_calls;
  // Whether collectives on host memory end alike on all ranks that live: well, or with an error. Costs a short
  // all-reduce after each blocking call (docs/elastic.md has numbers); start(), Group, sends and receives stay as they
  // are. The same on all ranks. A call whose communicator breaks then lasts until the other ranks have come to theirs
  // and have agreed, at most 4 set-up timeouts, also after abort(); the communicator takes no more collectives then, on
  // all of these ranks: shrink() it. Where living ranks could not hear each other for so long, calls may end
  // differently. agree() and shrink() wait for a call that is under way. Left alone: TUTTI_UNIFORM, then false.
  std::optional<bool> uniform;
  // Whether every message of collectives, sends and receives on host memory carries a checksum (CRC-32C), which its
  // receiver looks at: a flipped bit is kDamaged on that rank, with the hop. All values then travel in slots or
  // sockets, never through each other's memory, and the host carries out calls on GPU memory: docs/reliability.md says
  // what it covers and costs. The same on all ranks. Left alone: TUTTI_CHECKSUM, then false.
  std::optional<bool> checksum;
  std::vector<std::int32_t> devices;  // of create_all() alone: by rank, in place of `device`
  // How long set-up waits for missing ranks, and how long a collective may make no progress. 0: from the environment,
  // then 60 s.
  std::chrono::milliseconds setup_timeout{0};
  std::chrono::milliseconds timeout{0};
};

// One call's extras.
struct CallOptions {
  Algorithm algorithm = Algorithm::kAuto;  // the same on all ranks
  Scale scale{};                           // used by ReduceOp::kPreMulSum only
  std::chrono::milliseconds timeout{0};    // without progress; 0: the communicator's
  UserReduction reduction{};               // with a function: stands for type and operation, which are not looked at
  // The CUstream of a call on device memory, of the buffers' context; null in it: that context's default stream. Calls
  // on host memory do not look at it. It may be capturing a graph where the GPUs carry the call out.
  std::optional<void*> stream{};
};

// What a rank brings to agree().
struct AgreeOptions {
  std::int64_t value = INT64_MAX;         // the application's own; what comes out is the least of all survivors'
  std::chrono::milliseconds patience{0};  // for ranks that live and do not come; 0: the set-up timeout
};

// What the survivors have agreed on.
struct Agreement {
  std::vector<std::int32_t> survivors;  // ranks of the communicator, ascending; the one that reads this is among them
  // The least of the survivors' last good collectives: the number in messages ("all_reduce #7"), 0: none. It has ended
  // well on every survivor, and so have those before it but for such as failed alone (scope kCall). A long call in
  // pieces takes several numbers. Not counted: sends, receives, and calls that GPUs carry out.
  std::uint64_t last_operation = 0;
  std::int64_t value = 0;  // the least of the survivors'

  bool operator==(const Agreement&) const = default;
};

// Lengths of the blocks of a v-variant, in elements, by rank, and where they start in the buffer, in elements from its
// beginning; without displacements one follows the other. The spans are read during the call that takes them only.
struct BlockCounts {
  std::span<const std::size_t> counts{};
  std::span<const std::size_t> displacements{};
};

// For which calls a plan of the caller's own is taken.
struct PlanUse {
  std::size_t min_bytes = 0;  // of one block, both included
  std::size_t max_bytes = SIZE_MAX;
};

// Bytes of GPU memory that a communicator holds.
struct DeviceMemoryUse {
  std::uint64_t suspendable = 0;  // suspend() gives it back
  std::uint64_t lasting = 0;
};

// Any collective, as a value: what the functions below spell out. Fields that the kind does not use are not looked at.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements of one block; gather_v, scatter_v: of this rank's block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  bool variable = false;        // the v-variant
  BlockCounts input_counts{};   // reduce_scatter_v, all_to_all_v; scatter_v at the root
  BlockCounts output_counts{};  // all_gather_v, all_to_all_v; gather_v at the root
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
  // True when the operation has ended (wait() then returns at once). Makes a little progress in this thread; does not
  // block, but for up to a second where the operation has just failed and peers may still write into its output.
  bool test();

 private:
  friend class detail::CommunicatorImpl;
  friend class detail::GroupImpl;
  explicit Work(std::shared_ptr<detail::WorkImpl> impl);
  std::shared_ptr<detail::WorkImpl> impl_;  // shared by the caller and the progress thread, whichever ends last
};

// Memory that the ranks of one machine can reach in place: collectives on it need no copy. Owns what allocate() made;
// for register_memory() it owns the registration only. Release it before its Communicator is destroyed, and not while
// an operation uses it (an operation that is under way then ends with an error on some rank): of device memory, when
// the streams of the calls on it are through with them.
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

// A communicator that is being made. Destroying it waits for the end of set-up, at most its deadline, and drops what
// came of it.
class TUTTI_API PendingCommunicator {
 public:
  PendingCommunicator(PendingCommunicator&&) noexcept;
  PendingCommunicator& operator=(PendingCommunicator&&) noexcept;
  ~PendingCommunicator();

  bool test() const;  // true when wait() will not block
  // Once. Errors: those of Communicator::create(); kInvalidArgument when called again.
  Result<std::unique_ptr<Communicator>> wait();

 private:
  friend class Communicator;
  explicit PendingCommunicator(std::unique_ptr<detail::PendingImpl> impl);
  std::unique_ptr<detail::PendingImpl> impl_;
};

class TUTTI_API Communicator {
 public:
  // Joins the job as one rank. Blocks until all ranks have joined or the set-up deadline has passed; the error then
  // names the ranks that are missing. Errors: kConfig, kInvalidArgument, kTimeout, kRefused, kSystem.
  static Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options = {});

  // The same in the background: several communicators of one process may be made at once.
  static PendingCommunicator create_async(const CommunicatorOptions& options = {});

  // All ranks of a job in this process, for one thread each: element i is rank i, on machine node_of(i) = i * nodes /
  // size of the mind (nodes 1: all on one). Of the options only transport and the timeouts count. With one machine and
  // without TCP no socket is opened. size 1 .. 1024, nodes 1 .. size.
  static Result<std::vector<std::unique_ptr<Communicator>>> create_all(std::int32_t size,
                                                                       const CommunicatorOptions& options = {},
                                                                       std::int32_t nodes = 1);

  // Collective over this communicator, in the order of its calls: the ranks that give the same `colour` (>= 0) form a
  // new communicator, in the order of their `key`, and of their ranks here where keys are equal. A rank that gives
  // kNoColour takes part, and gets null. The new communicator shares nothing with this one that a call could disturb;
  // the two end in any order. Over TCP the new one opens sockets of its own as its ranks first talk to each other.
  // Errors: as a collective's; kInvalidArgument (a negative colour); kSystem naming the rank where it failed, told to
  // all ranks of this communicator or of the same colour. This communicator works on (scope kCall) unless the scope
  // says otherwise.
  static constexpr std::int32_t kNoColour = -1;
  Result<std::unique_ptr<Communicator>> split(std::int32_t colour, std::int32_t key = 0);
  // A new communicator of the same ranks. Collective.
  Result<std::unique_ptr<Communicator>> duplicate();

  // A new communicator of the ranks that are not in `excluded` (any order, repeats allowed), in the order of their
  // ranks here, the gaps closed. Collective over these ranks alone, in one order among them; all give the same set. The
  // excluded do not take part: they may have ended, be stopped, or go on using this communicator. It may be in any
  // state: healthy, broken by abort(), kPeerLost or kTimeout, finalized; it stays as it is, abort() on it does not
  // end a shrink(), and registered memory and use_plan() stay with it. The new one relates to it as one of split().
  // Calling it again, also after an error, starts anew. Waits for the others at most the set-up timeout, and as long
  // again for their set-up.
  // Errors, with ranks of this communicator, scope kCall: kInvalidArgument (a rank outside, this rank itself: nothing
  // was said to the others); kTimeout (ranks that did not come are named; where it is the lowest of all, only that
  // one), kPeerLost (a rank that was to remain has ended), kMismatch (another set on the rank that is named), kSystem.
  // Where the lowest rank ends in the very last round, some may have the new communicator, in which that rank is lost.
  Result<std::unique_ptr<Communicator>> shrink(std::span<const std::int32_t> excluded);

  // Finds out together with all ranks that live which these are, and what they have in common. Nobody gives a list: a
  // rank is out when its process has ended, or when it does not come before the patience of the others is over (the
  // same on all; across machines a process that had ended before costs the patience, unless this communicator has
  // noticed). In any state of this communicator, which stays as it is; nothing else of it is used. The n-th
  // agreements of two ranks are equal, whoever dies when, the rank that leads included; or, where ranks that live could
  // not hear each other for the patience (stopped, cut off), they have no survivor in common. (Across machines a
  // connection that breaks counts as a death, of which that rank may not learn.) Takes 4 patiences of this rank's
  // running time at most, twice that in the uniform mode; some milliseconds where nobody is missing.
  // Errors, scope kCall: kTimeout (ranks that hang in the middle are named; call again), kRefused (the others have
  // agreed without this rank, which came too late; it may come to their next), kUnsupported.
  Result<Agreement> agree(const AgreeOptions& options = {});
  // agree(), and a communicator of the survivors, in the order of their ranks; every survivor gets it, or none does: if
  // another rank dies meanwhile it begins again without it. Else as the other shrink(). Errors: those of both.
  Result<std::unique_ptr<Communicator>> shrink();

  // A new communicator of `size` ranks: those of this one, with the numbers that they have here, and newcomers with the
  // numbers from size() on. Collective over this communicator, in the order of its calls. One rank, whichever, has made
  // a unique id and gives it; newcomers call create() with that id, `size` and their number. To replace the dead:
  // shrink(), then grow(). The new one has this one's settings, and shares nothing with it; this one works on, also
  // where it fails. Waits for newcomers at most the set-up timeout. Errors: kInvalidArgument (too few ranks; nobody has
  // given an id), kMismatch (several have; another size), those of create() and of a collective.
  Result<std::unique_ptr<Communicator>> grow(std::int32_t size, const std::optional<UniqueId>& id = std::nullopt);

  // From now on calls of `plan`'s collective (and root) that leave the algorithm to Tutti, and whose block has
  // use.min_bytes to use.max_bytes bytes, run by this plan; Algorithm::kUser always does. Of several plans that fit,
  // the one given last counts. All ranks must give the same plans in the same order: ranks that differ are told so by
  // their next call. Local. Errors: kInvalidArgument (the plan is for another number of ranks, or another deal of the
  // ranks to machines), kUnsupported (more slots or lanes than the connections have).
  Status use_plan(const UserPlan& plan, const PlanUse& use = {});

  // Waits until every operation under way here has ended, then ends the membership in peace: later calls are refused,
  // and peers that still wait for this rank are told that it has left. Local; the destructor does the same without the
  // wait.
  Status finalize();

  // Ends the membership: operations under way here are ended with kAborted. No thread may be inside a call on it or
  // wait for its Work. Waits for peers at most 1 s, and only after a call failed in which they may have used its
  // memory.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::int32_t rank() const;
  std::int32_t size() const;
  // Machines that the ranks are on: ranks of one can share memory.
  std::int32_t nodes() const;
  // How this rank reaches the others: "shm" (shared memory), "tcp", or "mixed" (the one inside its machine, the other
  // across). Alone it has "shm".
  std::string transport() const;
  // Whether calls on device memory run on the ranks' GPUs; else the host carries them out. The same on every rank.
  bool runs_on_devices() const;
  // What Algorithm::kAuto stands for in a call of `count` elements of `type` per block; the same on every rank. kAuto
  // itself if there is no memory to find out.
  Algorithm auto_algorithm(CollectiveKind kind, std::size_t count, DataType type) const;
  // What the cost model says that such a call takes on host memory, in microseconds: by measured costs where `tutti
  // tune` has run on rank 0's machine, else by defaults. Nothing where it cannot say: GPUs carry calls out, plans of
  // the caller's own, one rank or more than 64, machines with different numbers of ranks or whose ranks are not
  // numbered side by side. The first call for a kind, an algorithm and so many bytes is a simulation (up to 0.1 s with
  // 64 ranks, longer beside other work); 1,024 answers are kept.
  std::optional<double> predicted_us(CollectiveKind kind, std::size_t count, DataType type,
                                     Algorithm algorithm = Algorithm::kAuto) const;

  // output[i] = op over all ranks' input[i], i in [0, count), on every rank. In place: input == output.
  Status all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                    const CallOptions& options = {});
  // output[i] on every rank = input[i] of `root`. In place at the root: input == output.
  Status broadcast(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                   const CallOptions& options = {});
  // all_reduce whose result only `root` gets. In place at the root: input == output.
  Status reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, std::int32_t root,
                const CallOptions& options = {});
  // output[r * count + i] on every rank = input[i] of rank r. In place: input == output + rank * count.
  Status all_gather(const void* input, void* output, std::size_t count, DataType type, const CallOptions& options = {});
  // output[i] of rank r = op over all ranks' input[r * count + i]. In place: output == input + rank * count.
  Status reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                        const CallOptions& options = {});
  // output[q * count + i] of rank r = input[r * count + i] of rank q. In place: input == output.
  Status all_to_all(const void* input, void* output, std::size_t count, DataType type, const CallOptions& options = {});
  // output[r * count + i] of `root` = input[i] of rank r. In place at the root: input == output + root * count.
  Status gather(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                const CallOptions& options = {});
  // output[i] of rank r = input[r * count + i] of `root`. In place at the root: output == input + root * count.
  Status scatter(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                 const CallOptions& options = {});
  // Returns when every rank has called it.
  Status barrier(const CallOptions& options = {});

  // v-variants. `counts` of all_gather_v and reduce_scatter_v are the same on all ranks (displacements are each rank's
  // own affair). Of the others a rank gives the lengths that concern it, and both ends of every pair must agree; a
  // disagreement is told by the receiving rank, with both lengths. all_to_all_v has no in-place form.
  Status all_gather_v(const void* input, void* output, const BlockCounts& counts, DataType type,
                      const CallOptions& options = {});
  Status reduce_scatter_v(const void* input, void* output, const BlockCounts& counts, DataType type, ReduceOp op,
                          const CallOptions& options = {});
  Status all_to_all_v(const void* input, const BlockCounts& input_counts, void* output,
                      const BlockCounts& output_counts, DataType type, const CallOptions& options = {});
  Status gather_v(const void* input, std::size_t count, void* output, const BlockCounts& counts, DataType type,
                  std::int32_t root, const CallOptions& options = {});
  Status scatter_v(const void* input, const BlockCounts& counts, void* output, std::size_t count, DataType type,
                   std::int32_t root, const CallOptions& options = {});

  // Point to point; `peer` is not this rank (a Group takes pairs of both). send() returns when the data has left the
  // buffer, which does not mean that the receiver has it; but a receiver whose process had ended a second before the
  // call, or that had left, is an error (kPeerLost). Count and type must be the same at both ends.
  Status send(const void* data, std::size_t count, DataType type, std::int32_t peer, const CallOptions& options = {});
  Status receive(void* data, std::size_t count, DataType type, std::int32_t peer, const CallOptions& options = {});
  // Waits until a message of send() is there that no receive of this rank has been called for, and returns its sender:
  // that rank's next message is this one, which stays for receive(). Local; of options only the timeout counts. Peers
  // take turns where several have sent. Receives that this rank calls while it waits, also in a Group, all_to_all_v and
  // the like, have the messages before that one. Errors: kInvalidArgument (a communicator of one rank), kTimeout
  // (nobody has sent), kPeerLost (a peer's process ended, or all peers have left), kAborted. By TCP this rank may have
  // no connection to a peer that never sent to it, and then cannot tell whether that peer had left before its process
  // ended. Such an end alone does not end the wait.
  Result<std::int32_t> next_sender(const CallOptions& options = {});
  // The sender of such a message if one is there. Does not wait for a message, but waits its turn: if another thread is
  // in a blocking call of this communicator, until that call has ended. Errors: kInvalidArgument (a communicator of
  // one rank), that the communicator is unusable.
  Result<std::optional<std::int32_t>> try_next_sender();

  // Any of the collectives above, blocking or not. start() returns at once; argument errors, and that the communicator
  // is unusable, are returned here, all others by Work::wait(). The buffers belong to the operation until it has ended.
  // Collectives of one communicator run in the order of their calls.
  // On device memory both return at once; Work::wait() then waits for the stream, too.
  Status run(const CollectiveCall& call, const CallOptions& options = {});
  Result<Work> start(const CollectiveCall& call, const CallOptions& options = {});

  // Gives back the GPU memory that the communicator holds for its calls, when those of this rank have ended; until
  // resume() the host carries out calls on device memory. Both are collective, and do nothing more where the host does
  // that anyway. Not in a Group, and with no other call under way. Errors: as a collective's; suspend():
  // kInvalidArgument (device memory is registered); resume(): as create()'s, told to all ranks, which stay suspended.
  Status suspend();
  Status resume();
  DeviceMemoryUse device_memory_use() const;  // local

  // The first error, since this was last asked, of a call on device memory that failed after it had returned.
  Status async_status();

  // New zeroed memory, page-aligned, in huge pages where the system gives them, reachable by all ranks of this machine.
  // Local call. bytes > 0. Errors: kInvalidArgument, kSystem.
  Result<Memory> allocate(std::size_t bytes);

  // Makes existing private memory reachable in place by remapping it onto shared pages; contents and address stay.
  // `data` must be page-aligned, `bytes` a multiple of the page size (sysconf(_SC_PAGESIZE)), the memory private,
  // anonymous, writable and registered nowhere else, and no other thread may touch it during the call. Release the
  // result before the memory is freed: that makes the pages private again. Local call. Errors: kInvalidArgument,
  // kSystem.
  //
  // Device memory, where the GPUs carry out the calls, has rules of its own: any piece of what cuMemAlloc (cudaMalloc)
  // gave, or of what cuMemMap mapped (one allocation or several side by side, created with a POSIX file descriptor as
  // handle type), of this rank's GPU, at most 64 pieces at once. A collective call: every rank registers memory of its
  // own, of any length, at the same place in the order of calls; not in a Group, and not while its stream captures.
  // Buffers that lie inside a piece are then read and written in place by ranks of other processes, too; buffers that
  // do not, on this rank or another, travel as ever. Release the result on all ranks between the same two calls: a call
  // of one rank in memory that another has released fails there. A rank keeps the others' memory mapped until it has
  // released its own: release on all ranks, barrier(), and only then free the memory. If the communicator has failed,
  // barrier() is not possible: release on all ranks once each has its error and its stream has come to an end, and free
  // the memory after that. Graphs that were captured with it are not launched any more. Errors, told to all ranks:
  // kInvalidArgument (on the rank that gave memory of another GPU or context), kUnsupported (memory of a pool, managed
  // memory, virtual memory that other processes cannot map; 64 pieces are registered; where the host carries out the
  // calls: local, and nothing has happened), kSystem naming the rank where it failed.
  Result<Memory> register_memory(void* data, std::size_t bytes);

  // Ends every operation under way with kAborted, here at once and on peers as soon as they look, and makes the
  // communicator unusable. From any thread, in any state.
  void abort();

 private:
  friend class detail::CommunicatorImpl;
  friend class detail::GroupImpl;
  explicit Communicator(std::unique_ptr<detail::CommunicatorImpl> impl);
  std::unique_ptr<detail::CommunicatorImpl> impl_;
};

}  // namespace tutti
