// Communicator: one rank's membership in a group of ranks that call collectives together.
//
// - All ranks call the same collectives in the same order, with the same count, type, operation, root and algorithm. If
//   ranks disagree, the call fails with kMismatch, which on the host names the rank and the argument; the communicator
//   stays usable if Error::scope is kCall. Sends and receives are ordered separately: between two ranks, in each
//   direction, the k-th send matches the k-th receive.
// - A call that returns kInvalidArgument did not happen, unless Error::rank names a rank, whose buffer could then not
//   be accessed during the call. Peers that made the same call wait until this rank makes it with correct arguments, or
//   until their timeout.
// - Buffers are host memory, or memory of one GPU, aligned to the element. Input and output do not overlap, except in
//   the in-place form that is stated for each collective. Buffers that a rank does not use may be null. count may be 0.
// - Every collective can return kInvalidArgument, kUnsupported (for example, too many ranks for the algorithm),
//   kMismatch, kTimeout, kAborted, kPeerLost, kRefused, kSystem, with checksums kDamaged, and on device memory kDevice.
//   A call that fails on one rank may succeed on another; the option `uniform` prevents this for some calls.
//   After any error, unless the call did not happen, the contents of the output are unspecified; in place, the input is
//   lost as well.
// - A call on device memory is queued on CallOptions::stream and returns before it has run (exception: see run()).
//   Later failures are returned by async_status() and by the call's Work.
// - All functions except the destructor may be called from any thread at any time. The caller ensures that calls from
//   several threads have the same order on all ranks. Different Communicators are independent. After fork() only the
//   parent process may use its communicators.
//
// docs/communicator.md explains all of this: failed calls, in-place calls, device memory, graphs, threads and fork().
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
#include "tutti/options.h"
#include "tutti/plan.h"
#include "tutti/result.h"
#include "tutti/types.h"
#include "tutti/unique_id.h"

namespace tutti {

namespace detail {
class CommunicatorImpl;
class WorkImpl;
class MemoryImpl;
class GroupImpl;
class PendingImpl;
}  // namespace detail

class Communicator;

// Input of agree().
struct AgreeOptions {
  std::int64_t value = INT64_MAX;  // chosen by the application; the result is the minimum over all survivors
  // How long to wait for live ranks that do not call agree(). 0: the set-up timeout. Must be the same on all ranks.
  std::chrono::milliseconds timeout{0};
};

// Result of agree(): the same on all survivors.
struct Agreement {
  std::vector<std::int32_t> survivors;  // ranks of this communicator, ascending; includes the calling rank
  // Sequence number of the last collective that completed on every survivor (the number in error messages, for example
  // 7 in "all_reduce #7"), or 0. Earlier collectives also completed, except those that failed with ErrorScope::kCall.
  // If ranks have GPUs but the host carries out the calls on device memory, some long calls are split into segments,
  // and each segment takes a number. Sends, receives, v-variants that run as these, and calls on GPUs are not counted,
  // nor are all_reduces that GPUs of several machines carry out in parts. Calls with CallOptions::checksum are not
  // counted either, and have numbers of their own, but each of them takes a number for its barrier.
  std::uint64_t last_operation = 0;
  std::int64_t value = 0;  // minimum of AgreeOptions::value over the survivors

  bool operator==(const Agreement&) const = default;
};

// Layout of the blocks of a v-variant, indexed by rank: the length of each block, and its offset from the start of the
// buffer, both in elements. Without displacements the blocks are contiguous. The spans are only read during the call
// that receives them.
struct BlockCounts {
  std::span<const std::size_t> counts{};
  std::span<const std::size_t> displacements{};
};

// The sizes of calls for which a user plan is used if the call passes Algorithm::kAuto: min_bytes <= bytes of one block
// of the call (of a v-variant: of an average block) <= max_bytes.
struct PlanUse {
  std::size_t min_bytes = 0;
  std::size_t max_bytes = SIZE_MAX;
};

// Any collective, as a value for run(), start() and Group::add(). The functions of Communicator describe each
// collective and its buffers. Fields that the collective does not use are ignored, but type and op must be valid
// values.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  // elements of one block; for gather_v and scatter_v: elements of this rank's block
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;
  bool variable = false;        // the v-variant
  BlockCounts input_counts{};   // used by reduce_scatter_v and all_to_all_v, and by scatter_v at the root
  BlockCounts output_counts{};  // used by all_gather_v and all_to_all_v, and by gather_v at the root
};

// A handle to an operation that is in progress. Destroying a Work does not stop its operation, so the buffers must
// stay valid until the operation has ended, because it still reads and writes them. A default-constructed Work is
// complete and successful. One thread at a time may use a Work.
class TUTTI_API Work {
 public:
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  // Blocks until the operation has ended, and returns its result. May be called repeatedly. The calling thread does a
  // part of the communication.
  Status wait();
  // Returns true if the operation has ended; wait() then returns at once. The calling thread does a small part of the
  // communication. Does not block, with one exception: if the operation has just failed and peers may still write to
  // its output, test() waits for them for up to 1 s.
  bool test();

 private:
  friend class detail::CommunicatorImpl;
  friend class detail::GroupImpl;
  explicit Work(std::shared_ptr<detail::WorkImpl> impl);
  // A shared_ptr, because Group::start() creates the object first and fills it in after the Work exists. The progress
  // thread shares the operations in the object, but not the object itself. Null: complete and successful.
  std::shared_ptr<detail::WorkImpl> impl_;
};

// Registered memory: other ranks of the machine can access it directly, so most collectives on it avoid a copy. A
// Memory from allocate() owns the memory; one from register_memory() owns only the registration. The destructor frees
// the memory or ends the registration. Destroy a Memory before its Communicator, and not while an operation uses the
// memory, because that operation would then fail on some rank. For device memory, wait until the streams have completed
// the calls that use it.
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

// A communicator during its set-up. The destructor waits until set-up has ended, at most until its deadline, and then
// destroys the new communicator.
class TUTTI_API PendingCommunicator {
 public:
  PendingCommunicator(PendingCommunicator&&) noexcept;
  PendingCommunicator& operator=(PendingCommunicator&&) noexcept;
  ~PendingCommunicator();

  bool test() const;  // true if wait() would not block
  // Blocks until set-up has ended, and returns the communicator. May be called once. Errors: those of
  // Communicator::create(), and kInvalidArgument if it is called again.
  Result<std::unique_ptr<Communicator>> wait();

 private:
  friend class Communicator;
  explicit PendingCommunicator(std::unique_ptr<detail::PendingImpl> impl);
  std::unique_ptr<detail::PendingImpl> impl_;
};

// One rank of a communicator. The comment at the top of this file states the contract of all calls.
class TUTTI_API Communicator {
 public:
  // Joins the job as one rank. Blocks until all ranks have joined, set-up has failed, or its deadline has passed; in
  // the last case the error names the missing ranks. Errors: kConfig, kInvalidArgument, kMismatch (the ranks have
  // different settings), kUnsupported (for example too many ranks on one machine), kTimeout, kRefused, kPeerLost (a
  // rank ended during set-up), kDevice, kSystem.
  static Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options = {});

  // Like create(), but returns at once and joins the job in a background thread, so that one process can create
  // several communicators at the same time.
  static PendingCommunicator create_async(const CommunicatorOptions& options = {});

  // Creates all ranks of a job in this process, usually for one thread each. Element i is rank i. Rank i is treated as
  // running on simulated machine `i * nodes / size` (integer division); with nodes 1 all ranks are on one machine. The
  // options rank, size, root, job_id, job_key, job_key_file, interface, unique_id and node_id are ignored, because no
  // rank has to find the others. If nodes is 1 and ranks share memory, no socket is opened. size: 1 .. 1024; nodes: 1
  // .. size.
  static Result<std::vector<std::unique_ptr<Communicator>>> create_all(std::int32_t size,
                                                                       const CommunicatorOptions& options = {},
                                                                       std::int32_t nodes = 1);

  // Collective over this communicator, in the order of its calls. The ranks that pass the same `colour` (>= 0) form a
  // new communicator. Its ranks are ordered by `key`, and by their rank in this communicator if keys are equal. A rank
  // that passes kNoColour takes part and gets null. Calls on host memory on one of the two communicators never disturb
  // the other, and the two may be destroyed in any order. Over TCP the new communicator opens its own sockets when its
  // ranks first communicate. Errors: those of a collective; kInvalidArgument (colour is negative, but not kNoColour);
  // kSystem naming the rank on which split() failed, reported to all ranks of this communicator or to all ranks of that
  // colour. After an error of scope kCall this communicator remains usable.
  static constexpr std::int32_t kNoColour = -1;
  Result<std::unique_ptr<Communicator>> split(std::int32_t colour, std::int32_t key = 0);
  // A new communicator with the same ranks, for example so that a library can make calls in an order of its own.
  // Collective. Errors: those of split().
  Result<std::unique_ptr<Communicator>> duplicate();

  // Creates a communicator of the ranks that are not in `excluded` (any order; duplicates allowed), renumbered without
  // gaps in their present order. Collective over the remaining ranks only, which pass the same set, and which make
  // their shrink() calls in one order. Excluded ranks take no part: their processes may have exited or be stopped, or
  // they may continue to use this communicator. This communicator may be in any state (healthy, broken by abort(),
  // kPeerLost or kTimeout, finalized) and does not change; abort() on it does not end a shrink(). Registered memory and
  // use_plan() are not carried over. Calls on the old and the new communicator do not disturb each other, as after
  // split(). Another shrink() call, also after an error, starts from the beginning. Waits for the other ranks at most
  // the set-up timeout, then at most that long for the set-up of the new communicator, and then up to 1 s for its last
  // messages. Errors, with rank numbers of this communicator, scope kCall: kInvalidArgument (a rank is out of range or
  // is this rank; nothing was sent), kTimeout (names the missing ranks, but only the lowest remaining rank if that one
  // is missing), kPeerLost (the process of a remaining rank has ended), kMismatch (names a rank that passed another
  // set), those of create(). If the process of the lowest remaining rank ends in the last step, some ranks may get the
  // new communicator, in which that rank is lost, while others get an error.
  Result<std::unique_ptr<Communicator>> shrink(std::span<const std::int32_t> excluded);

  // Agrees with all live ranks on the list of survivors, on the last collective that every survivor completed, and on
  // the minimum of a value. A rank is excluded if its process has ended, or if it does not call agree() within
  // `timeout`. If a process on another machine ended earlier and this communicator has not noticed, the call waits for
  // the full `timeout`. This communicator may be in any state and does not change. The results of the n-th agree() of
  // two ranks are equal, even if ranks die during the call, the coordinator included. The only exception: if live ranks
  // could not communicate for `timeout` (they were stopped, or the network was cut), two different results are
  // possible, but then no rank is a survivor in both. Between machines a broken connection counts as a death, even if
  // that rank is alive; that rank may not learn that it was excluded. Takes at most 4 times `timeout` and 1 s, or twice
  // as long unless CommunicatorOptions::uniform is kNone, not counting time in which this rank's process was suspended.
  // If all ranks call agree(), it takes some milliseconds. Errors, scope kCall: kTimeout (names ranks that stopped
  // responding; call again), kRefused (this rank was too late and the others agreed without it; it may join their next
  // agreement), kInvalidArgument (`timeout` is negative).
  Result<Agreement> agree(const AgreeOptions& options = {});
  // Calls agree(), and creates a communicator of the survivors in the order of their ranks. Either all survivors get
  // it, or all get an error. If a rank dies during the call, the survivors start again without it. Errors: those of
  // agree() and of shrink(excluded), which also describe how long the call takes.
  Result<std::unique_ptr<Communicator>> shrink();

  // Creates a communicator of `size` ranks: the present ranks keep their numbers, and new ranks get the numbers from
  // size() on. Collective over this communicator, in the order of its calls. One rank, any of them, has created a
  // unique id and passes it; the new ranks call create() with that id, `size` and their rank. To replace dead ranks,
  // call shrink() and then grow(). The new communicator has the settings of this communicator and shares nothing with
  // it. This communicator stays usable, even if grow() fails. Waits for the new ranks at most the set-up timeout.
  // Errors: kInvalidArgument (`size` is not larger than size(), or no rank passed an id), kMismatch (several ranks
  // passed an id, or sizes differ), those of create() and of a collective.
  Result<std::unique_ptr<Communicator>> grow(std::int32_t size, const std::optional<UniqueId>& id = std::nullopt);

  // From now on this plan runs the calls of its collective (and root) that pass Algorithm::kUser, and those that pass
  // kAuto if their block size lies in `use`. If several plans fit, the one passed last is used. A plan with runs does
  // not run v-variants (PlanBuilder::Step::run()). All ranks must pass the same plans in the same order; otherwise a
  // call for which two ranks use different plans returns kMismatch. Local call. Errors: kInvalidArgument (another
  // number of ranks, another assignment of ranks to machines, an empty range `use`, or 256 plans already), kUnsupported
  // (the plan needs more lanes, or more or longer slots, than the connections have), those of opening its connections.
  Status use_plan(const UserPlan& plan, const PlanUse& use = {});

  // Waits until every operation in progress on this rank has ended (there is no time limit while an operation waits in
  // its stream for earlier work), then leaves the communicator: later calls are refused, and peers that still wait for
  // this rank get an error that it has left. Local call. The destructor also leaves, but aborts the operations in
  // progress.
  Status finalize();

  // Leaves the communicator. Operations in progress on this rank end with kAborted. During the destructor no thread may
  // be inside a call on the communicator or wait for a Work of it. Waits for peers only if they may still use this
  // rank's memory: at most 1 s after a failed call. With GPUs it may also wait some seconds for streams and peers.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // rank(): this rank's number, 0 .. size()-1. size(): the number of ranks.
  std::int32_t rank() const;
  std::int32_t size() const;
  // Number of machines. Ranks of one machine can share memory. Ranks that cannot, or have other node ids, count apart.
  std::int32_t nodes() const;
  // How this rank reaches the others: "shm" (shared memory), "tcp", "verbs" or "ucx", or a combination of shared
  // memory inside its machine and a network between machines: "mixed" (shared memory and TCP), "shm+verbs" or
  // "shm+ucx". If the communicator has only one rank, the result is "shm".
  std::string transport() const;
  // Whether calls on device memory normally run on the ranks' GPUs; otherwise the host carries them out, as it does
  // between suspend() and resume(). False if the ranks are on several machines: their GPUs carry out only parts of long
  // all_reduces. The same on every rank.
  bool runs_on_devices() const;
  // The algorithm that Algorithm::kAuto selects for a call of `count` elements of `type` per block, with root 0 and
  // neither kPreMulSum nor a UserReduction; the same on every rank. `on_device`: the call's buffers are device memory.
  // Returns kAuto itself if there is not enough memory to evaluate the selection.
  Algorithm auto_algorithm(CollectiveKind kind, std::size_t count, DataType type, bool on_device = false) const;
  // The time in microseconds that a call takes according to the cost model. The call is as in auto_algorithm(): on host
  // memory, with root 0. The model uses measured costs if rank 0 has a file of `tutti tune`, and defaults otherwise.
  // Returns nothing if the model does not apply: calls on device memory run on GPUs, a user plan would run, the
  // collective has no such algorithm, there is 1 rank, there are more than 64 ranks, machines have different numbers of
  // ranks, or the ranks of a machine are not numbered consecutively. The first prediction for each combination of
  // collective, algorithm and size runs a simulation (up to 0.1 s with 64 ranks on an idle machine); at most 1,024
  // results are cached.
  std::optional<double> predicted_us(CollectiveKind kind, std::size_t count, DataType type,
                                     Algorithm algorithm = Algorithm::kAuto) const;

  // output[i] = op over all ranks' input[i], i in [0, count), on every rank. In place: input == output.
  Status all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                    const CallOptions& options = {});
  // output[i] on every rank = input[i] of `root`. In place at the root: input == output.
  Status broadcast(const void* input, void* output, std::size_t count, DataType type, std::int32_t root,
                   const CallOptions& options = {});
  // Like all_reduce, but only `root` gets the result; `output` may be null on the other ranks. In place at the root:
  // input == output.
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
  // Returns when every rank has called barrier().
  Status barrier(const CallOptions& options = {});

  // v-variants: the ranks' blocks have different lengths. The `counts` of all_gather_v and reduce_scatter_v must be
  // the same on all ranks (the displacements may differ). In the other three a rank passes only the lengths of the
  // blocks that it sends or receives. The lengths that the sender and the receiver of a block pass must be equal;
  // otherwise the receiver gets kMismatch (on host memory with both lengths). Exceptions: kInvalidArgument for a rank's
  // block for itself, and kTimeout if GPUs carry out the call and one of the lengths is 0. all_to_all_v has no in-place
  // form.
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

  // Point to point. `peer` must be another rank (in a Group it may also be this rank, if the Group holds both the send
  // and its receive). On host memory send() returns when the data has left the buffer; the receiver may not have it
  // yet. If the receiver has left, or its process ended at least 1 s before the call, the result is kPeerLost. Count
  // and type must be the same at both ends.
  Status send(const void* data, std::size_t count, DataType type, std::int32_t peer, const CallOptions& options = {});
  Status receive(void* data, std::size_t count, DataType type, std::int32_t peer, const CallOptions& options = {});
  // Waits until a message has arrived for which this rank has not called a receive, and returns its sender. Messages
  // between GPUs that carry out sends and receives themselves are not found (docs/communicator.md). The message is not
  // taken; the next receive() from that sender gets it. Local call. Only options.timeout is used; `uniform` and
  // `checksum` are refused. If several peers have sent, they take turns. Receives that this rank calls during the wait,
  // also in a Group or all_to_all_v, get the messages first. Errors: kInvalidArgument (for example, a communicator of
  // one rank), kTimeout (no message arrived), kPeerLost (a peer's process ended, or all peers have left), kAborted, or
  // the error that made the communicator unusable. Over TCP, this rank may have no connection to a peer that never sent
  // to it. If the process of such a peer ends, this rank cannot find out whether the peer had left before, and that end
  // alone does not end the wait.
  Result<std::int32_t> next_sender(const CallOptions& options = {});
  // Like next_sender(), but does not wait for a message: returns the sender if a message has arrived, otherwise
  // nothing. However, if another thread is inside a blocking call of this communicator, it waits until that call has
  // ended. Errors: kInvalidArgument (see next_sender()), or the error that made the communicator unusable.
  Result<std::optional<std::int32_t>> try_next_sender();

  // Runs or starts any of the collectives above. start() returns at once, with the errors that are found before the
  // operation is queued (for example of its arguments); Work::wait() returns all others. The buffers belong to the
  // operation until it has ended. Collectives of one communicator run in the order of their calls. For a call on device
  // memory run() also returns at once, and Work::wait() also waits until the stream has completed the call. An
  // exception: if several ranks of one process share a GPU, run(), start() and all other calls on its memory wait on
  // the host. If the GPU carries the call out, they wait until these ranks have made the call, too. If the host does,
  // they wait until the call has ended; but if the call has no output on this rank, they return at once. Captured calls
  // do not wait. A thread that makes the calls of several of these ranks must make them in a Group.
  Status run(const CollectiveCall& call, const CallOptions& options = {});
  Result<Work> start(const CollectiveCall& call, const CallOptions& options = {});

  // suspend() waits for this rank's calls and then frees the GPU memory that the communicator holds for calls, or for
  // parts of calls. Until resume(), calls on device memory run on the host. Both are collective. If the GPUs carry out
  // neither, suspend() only waits for the other ranks, and resume() does nothing. Not allowed in a Group or while
  // another call is in progress. Errors: those of a collective; suspend(): kInvalidArgument (device memory is
  // registered); resume(): those of create(), and kUnsupported (of several machines, one can no longer carry out calls
  // on its GPUs), reported to all ranks, which then remain suspended.
  Status suspend();
  Status resume();
  // Bytes of GPU memory that this rank holds for its connections to the other ranks, without the memory of plans that
  // calls have used. suspend() frees both. A local call.
  std::uint64_t device_memory_use() const;

  // Returns the first error of a call on device memory that failed after it was queued. An error of a single
  // call is cleared, so that it is returned once. An error that has broken the communicator may be returned again; if
  // GPUs carry out calls, that may be an error of another cause, for example kAborted after abort().
  Status async_status();

  // Allocates zeroed, page-aligned memory that the ranks with which this rank shares memory can access, so that most
  // collectives on it avoid a copy. Uses huge pages if the system provides them. Local call. bytes > 0. Errors:
  // kInvalidArgument, kSystem.
  Result<Memory> allocate(std::size_t bytes);

  // Makes existing host memory of this process accessible to the ranks of this machine, by remapping it onto shared
  // pages. Contents and address do not change. `data` must be page-aligned, and `bytes` a multiple of the page size
  // (sysconf(_SC_PAGESIZE)). The memory must be private, anonymous, writable and not registered otherwise, and no
  // other thread may access it during the call. Release the result before the memory is freed, because the release
  // makes the pages private again. Local call. Errors: kInvalidArgument, kSystem.
  //
  // Device memory is registered differently, by a collective call; docs/communicator.md has the rules. Errors, reported
  // to all ranks: kInvalidArgument (names the rank that passed memory of another GPU or context), kSystem (names the
  // rank on which it failed), kDevice, kUnsupported (memory of a pool, managed memory, virtual memory that other
  // processes cannot map or that has too many parts, or 64 registrations exist). If calls on device memory run on the
  // host: kUnsupported on this rank only, and the call has no effect.
  Result<Memory> register_memory(void* data, std::size_t bytes);

  // Ends every operation in progress with kAborted, on this rank at once and on peers when they next check, and makes
  // the communicator unusable. Exception: unless CommunicatorOptions::uniform is kNone, a blocking collective on host
  // memory ends only after the ranks have agreed on its outcome (see there). May be called from any thread, in any
  // state.
  void abort();

 private:
  friend class detail::CommunicatorImpl;
  friend class detail::GroupImpl;
  explicit Communicator(std::unique_ptr<detail::CommunicatorImpl> impl);
  std::unique_ptr<detail::CommunicatorImpl> impl_;
};

}  // namespace tutti
