// DriverState: the complete state of the fake driver. It holds the devices, contexts, memory, streams, events, modules
// and graphs, and the tables that map the program's handles to them.
//
// A process has one DriverState, because a process has one CUDA driver. It is never destroyed, because the program may
// call the driver, and streams may run work, until the process exits.
//
// DriverState::mutex guards all of it. Release the mutex before waiting and before running work of a stream. Objects
// are held by shared_ptr, so that work in progress keeps the objects that it uses. A handle is a number that is never
// used twice, so that the use of a stale handle is always detected.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "control.h"
#include "queue.h"

namespace tutti::cuda::fake {

struct Stream;
struct Graph;

struct Context {
  int device = 0;
  bool alive = true;
  bool primary = false;
  std::shared_ptr<std::atomic<CUresult>> lost = std::make_shared<std::atomic<CUresult>>(CUresult::kSuccess);
  std::set<int> peers;             // devices whose memory may be used from this context
  std::shared_ptr<Stream> legacy;  // the legacy default stream
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  std::vector<std::shared_ptr<Channel>> channels;  // empty: each stream works independently of the others
  std::size_t streams_made = 0;                    // streams of cuStreamCreate; they get the channels in turn
  bool launched = false;                           // a kernel was launched
  std::optional<QueuePosition> set_up{};           // later work begins after it: see set_up_launches()
  std::size_t local_bytes = 0;                     // the largest FakeKernel::local_bytes of those kernels
};

// The thread blocks that one device can run at once. Launches get them in the order in which they ask (first come,
// first served).
struct BlockSlots {
  std::mutex mutex;
  std::deque<std::uint64_t> waiting;  // numbers of the launches that wait for blocks, oldest first
  std::uint64_t next = 0;
  unsigned free_blocks = 0;
};

struct Device {
  std::size_t limit_bytes = 0;
  std::size_t used_bytes = 0;
  std::shared_ptr<Context> primary;
  unsigned retained = 0;
  std::shared_ptr<BlockSlots> block_slots = std::make_shared<BlockSlots>();
};

// A physical allocation, as cuMemCreate() makes it: a file in memory (memfd).
struct Physical {
  int fd = -1;
  std::size_t bytes = 0;
  int device = 0;
  bool own = true;  // made by this process and not imported, so it counts against the device's limit in this process
  MemHandleType handle_types = MemHandleType::kPosixFd;  // the handle types that it can be exported as
  Physical() = default;
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical();
};

// How a range of memory was obtained: cuMemAlloc, cuMemAllocManaged, cuMemHostAlloc, cuMemHostRegister,
// cuIpcOpenMemHandle, cuMemMap, or a memory pool (Control::allocate_from_pool).
enum class MemoryCategory : std::uint8_t { kDevice, kManaged, kPinned, kRegistered, kOpened, kMapped, kPool };

// One range of memory that the driver manages.
struct Memory {
  MemoryCategory category = MemoryCategory::kDevice;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  int device = 0;
  std::shared_ptr<Context> context;  // null for kMapped and kPool
  int fd = -1;                       // the memfd that contains the data; -1 if there is none
  // The mmap() that contains the memory; 0 if there is none. `base` is placed so that the memory ends near the end of
  // the mapped file (see map_shared() in memory.cc).
  std::uintptr_t map = 0;
  std::size_t map_bytes = 0;
  std::uint64_t id = 0;      // PointerAttribute::kBufferId; for kOpened, the inode of the file
  pid_t owner = 0;           // kOpened: the process that allocated the memory
  unsigned references = 1;   // kOpened: how often this process has opened it and not yet closed it
  std::set<int> accesses{};  // kMapped: devices that may use it (cuMemSetAccess)
  std::shared_ptr<Physical> physical{};

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  bool on_device() const {
    return category == MemoryCategory::kDevice || category == MemoryCategory::kOpened ||
           category == MemoryCategory::kMapped || category == MemoryCategory::kPool;
  }
  // Whether this Memory counts against the memory limit of its device. For kMapped, its Physical is counted instead.
  bool counts_against_device() const {
    return category == MemoryCategory::kDevice || category == MemoryCategory::kManaged ||
           category == MemoryCategory::kPool;
  }
};

// A capture of streams into a graph.
struct Capture {
  std::uint64_t id = 0;
  std::shared_ptr<Graph> graph;
  Stream* origin = nullptr;  // the stream that began the capture; only compared, never dereferenced
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id thread;
  CaptureStatus status = CaptureStatus::kActive;  // kNone after the capture has ended
};

struct Stream {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::shared_ptr<Queue> queue;
  std::shared_ptr<Capture> capture{};
  std::vector<std::size_t> tail{};          // nodes of the capture that the next captured node depends on
  std::vector<CUgraphNode> tail_handles{};  // storage for the array that cuStreamGetCaptureInfo returns
  bool legacy = false;
};

// The part of an event that waiting streams share. Each recording of the event has a number, 1 for the first one.
// The event is complete if `completed` has reached `recorded`.
struct EventState {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::int64_t> time_ns{0};
};

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::shared_ptr<EventState> state;
  std::shared_ptr<Capture> capture{};  // the capture of the last recording; null if that was not in a capture
  std::vector<std::size_t> nodes{};
};

struct Module {
  std::shared_ptr<Context> context;
};

struct Function {
  std::shared_ptr<Context> context;
  std::weak_ptr<Module> module;
  FakeKernel kernel;
  int dynamic_shared_bytes = 48 * 1024;
};

// One node of a graph. `after` lists the nodes that it depends on, as indices into Graph::nodes.
struct Node {
  const char* what = "";
  std::function<CUresult()> run;
  std::vector<std::size_t> after;
};

struct Graph {
  std::vector<Node> nodes;
};

struct GraphExec {
  std::shared_ptr<const Graph> graph;
  std::vector<std::vector<std::size_t>> chains;  // chains of nodes; a thread runs each chain
  std::optional<QueuePosition> last;             // its last launch; the next launch waits for that one
};

// The handles of one type of object. Handle numbers are not valid addresses, so that a program that dereferences a
// handle crashes. `category` is put into the upper 16 bits, so that handles of different types are different numbers.
template <class T>
class Table {
 public:
  explicit Table(std::uint64_t category) : next_(category << 48U) {}

  std::uintptr_t add(std::shared_ptr<T> object) {
    next_ += 16;
    objects_.emplace(next_, std::move(object));
    return next_;
  }
  std::shared_ptr<T> find(std::uintptr_t handle) const {
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  template <class Handle>
  std::shared_ptr<T> find(Handle* handle) const {
    return find(reinterpret_cast<std::uintptr_t>(handle));
  }
  std::uintptr_t handle_of(const T* object) const {
    for (const auto& [handle, held] : objects_) {
      if (held.get() == object) return handle;
    }
    return 0;
  }
  bool erase(std::uintptr_t handle) { return objects_.erase(handle) == 1; }
  template <class Handle>
  bool erase(Handle* handle) {
    return erase(reinterpret_cast<std::uintptr_t>(handle));
  }
  const std::unordered_map<std::uintptr_t, std::shared_ptr<T>>& all() const { return objects_; }

 private:
  std::uintptr_t next_;
  std::unordered_map<std::uintptr_t, std::shared_ptr<T>> objects_;
};

struct DriverState {
  DriverState();

  std::mutex mutex;
  std::atomic<pid_t> process{0};           // the process that called cuInit; its forked children have other ids
  std::atomic<bool> deinitialized{false};  // the driver is deinitialized, as while a process exits
  int version = 0;
  unsigned blocks = 0;  // the number of blocks that a device can run at once
  std::vector<Device> devices;
  std::set<std::pair<int, int>> unreachable;  // (device, peer)
  std::map<std::string, FakeKernel, std::less<>> kernels;
  std::map<CUdeviceptr, std::shared_ptr<Memory>> memory;  // the key is the first address
  std::map<CUdeviceptr, std::size_t> reservations;        // address ranges of cuMemAddressReserve: address, bytes
  std::uint64_t next_id = 1;
  // One line for each object that still existed when its primary context was released. These are leaks of the program.
  std::string leaked_with_context;
  std::set<std::shared_ptr<Capture>> captures;  // captures in progress
  // The queues of destroyed streams that may still have work to do.
  std::vector<std::pair<std::shared_ptr<Context>, QueuePosition>> draining;

  Table<Context> contexts{0xC0};
  Table<Stream> streams{0xC1};
  Table<Event> events{0xC2};
  Table<Module> modules{0xC3};
  Table<Function> functions{0xC4};
  Table<Graph> graphs{0xC5};
  Table<GraphExec> executables{0xC6};
  Table<Physical> physicals{0xC7};

  bool has_device(int device) const { return device >= 0 && static_cast<std::size_t>(device) < devices.size(); }
  bool reaches(int device, int peer) const { return device == peer || !unreachable.contains({device, peer}); }
  // Returns the memory that contains [address, address + bytes), or null.
  std::shared_ptr<Memory> find_memory(CUdeviceptr address, std::size_t bytes) const;
  // As find_memory(), but the range may cover several adjacent mappings (kMapped). Returns all of them in ascending
  // order; the result is empty if there is a gap in the range.
  std::vector<std::shared_ptr<Memory>> find_span(CUdeviceptr address, std::size_t bytes) const;
};

DriverState& driver_state();

// Returns the number in the environment variable `name`, or `otherwise` if it is not set.
std::uint64_t setting(const char* name, std::uint64_t otherwise);

template <class Handle>
Handle as_handle(std::uintptr_t number) {
  return std::bit_cast<Handle>(number);
}

// The caller of the functions below must hold DriverState::mutex.

std::shared_ptr<Context> make_context(int device);
void end_context(const std::shared_ptr<Context>& context);  // the context's streams must be idle
// Describes the objects that were made in the context (null: in any context) and not released, one line for each.
std::string describe_unreleased(const Context* context);
// Finds the current context of the calling thread. Returns kInvalidContext if the thread has none, and
// kContextIsDestroyed if that context was destroyed.
CUresult current_context(std::shared_ptr<Context>& context);
CUresult find_stream(CUstream handle, std::shared_ptr<Stream>& stream);
CUresult find_event(CUevent handle, std::shared_ptr<Event>& event);
// Whether the device of the context may use the memory.
bool may_use(const Context& context, const Memory& memory);

// Adds work to a stream. If the stream is capturing, the work becomes a node of the graph; otherwise it is queued to be
// run. If `ticket` is not null, it is set to the number to pass to wait_for(), or to 0 if the stream is capturing.
CUresult submit(const std::shared_ptr<Stream>& stream, Work work, std::uint64_t* ticket = nullptr);
// Call it before the first launch in a context is submitted. The device then sets up the context: that waits for all
// work that was submitted to the context before, and all later work of the context waits for it. The host does not
// wait. Example: stream A waits for a word and has the first launch behind that; then a launch and a write of the word
// are submitted to stream B. Neither runs (see first_launch_while_a_stream_waits() in tests/device/hardware/first).
void set_up_launches(Context& context);
// For calls that are not allowed while a capture is in progress (which captures count depends on the capture modes, see
// cuThreadExchangeStreamCaptureMode). If there is such a capture, invalidates it and returns kStreamCaptureUnsupported.
CUresult refuse_in_capture();

// The caller of the functions below must not hold DriverState::mutex.

// Allocates memory on the device of the current context, as from a memory pool. cuMemFree() frees it. Returns 0 if
// there is not enough memory.
CUdeviceptr allocate_from_pool(std::size_t bytes);

CUresult wait_for(const std::shared_ptr<Stream>& stream, std::uint64_t ticket, const char* what);
// Whether the calls wait that wait on a real driver (FAKE_CUDA_IMPLICIT_WAITS in control.h).
bool has_implicit_waits();
// Waits for all work that was submitted to the contexts of the device, or only to `context` if it is not null.
CUresult wait_for_device(int device, const Context* context, const char* what);

// Describes all objects that were not released, one line for each. A second call no longer lists the objects that went
// with a released primary context.
std::string leaks();

// The capture mode of the calling thread (cuThreadExchangeStreamCaptureMode).
CaptureMode& thread_capture_mode();

}  // namespace tutti::cuda::fake
