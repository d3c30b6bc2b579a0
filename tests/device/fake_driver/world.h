// What the double's driver knows: devices, contexts, memory, streams, events, modules, graphs, and the handles by which
// the program names them. One World in a process, since a driver is one; it is never destroyed, because the program may
// call, and streams run, until the very end.
//
// All of it is guarded by World::mutex, which nothing holds while it waits or runs work. Objects are shared: work that
// is under way keeps what it uses. A handle is a number that is never used twice, so a stale one is always found out.
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
  std::set<int> peers;  // devices whose memory it may use
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
};

// Room for blocks on a device, given out in the order in which launches ask for it.
struct Room {
  std::mutex mutex;
  std::deque<std::uint64_t> waiting;  // launches, by number
  std::uint64_t next = 0;
  unsigned free_blocks = 0;
};

struct Device {
  std::size_t limit_bytes = 0;
  std::size_t used_bytes = 0;
  std::shared_ptr<Context> primary;
  unsigned retained = 0;
  std::shared_ptr<Room> room = std::make_shared<Room>();
};

// Physical memory of the driver's virtual memory functions.
struct Physical {
  int fd = -1;
  std::size_t bytes = 0;
  int device = 0;
  bool own = true;                                       // counts against the device here: made here, not imported
  MemHandleType handle_types = MemHandleType::kPosixFd;  // that it may be exported as
  Physical() = default;
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical();
};

enum class MemKind : std::uint8_t { kDevice, kManaged, kPinned, kRegistered, kOpened, kMapped, kPool };

struct Memory {
  MemKind kind = MemKind::kDevice;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  int device = 0;
  std::shared_ptr<Context> context;  // none for kMapped and kPool
  int fd = -1;                       // shared memory that carries it, or -1
  std::uintptr_t map = 0;            // the mapping around it: `base` lies in it so that its end is the mapping's
  std::size_t map_bytes = 0;
  std::uint64_t id = 0;      // PointerAttribute::kBufferId; for kOpened, the file's inode
  pid_t owner = 0;           // kOpened: whose
  unsigned references = 1;   // kOpened
  std::set<int> accesses{};  // kMapped: devices that may use it
  std::shared_ptr<Physical> physical{};

  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  bool on_device() const {
    return kind == MemKind::kDevice || kind == MemKind::kOpened || kind == MemKind::kMapped || kind == MemKind::kPool;
  }
  // Whether what it takes is counted by the memory itself; the device's, then.
  bool counts() const { return kind == MemKind::kDevice || kind == MemKind::kManaged || kind == MemKind::kPool; }
};

struct Capture {
  std::uint64_t id = 0;
  std::shared_ptr<Graph> graph;
  Stream* origin = nullptr;  // compared only
  CaptureMode mode = CaptureMode::kGlobal;
  std::thread::id thread;
  CaptureStatus status = CaptureStatus::kActive;  // kNone: over
};

struct Stream {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::shared_ptr<Queue> queue;
  std::shared_ptr<Capture> capture{};
  std::vector<std::size_t> tail{};          // the capture's nodes that the next one follows
  std::vector<CUgraphNode> tail_handles{};  // what cuStreamGetCaptureInfo points to
  bool legacy = false;
};

// The part of an event that several processes may share.
struct EventState {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::int64_t> time_ns{0};
};

struct Event {
  std::shared_ptr<Context> context;
  unsigned flags = 0;
  std::shared_ptr<EventState> state;
  int fd = -1;
  bool opened = false;
  std::shared_ptr<Capture> capture{};  // in which it was recorded last
  std::vector<std::size_t> nodes{};
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();
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
  std::vector<std::vector<std::size_t>> lanes;  // chains of nodes; each is run by a thread
  std::optional<After> last;                    // launches of one executable follow each other
};

// Handles of one kind. Their numbers are no addresses, so that using one as a pointer is found out too.
template <class T>
class Table {
 public:
  explicit Table(std::uint64_t kind) : next_(kind << 48U) {}

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

struct World {
  World();

  std::mutex mutex;
  std::atomic<pid_t> process{0};  // that has called cuInit; a forked child is another
  std::atomic<bool> gone{false};
  int version = 0;
  unsigned blocks = 0;  // that a device runs at once
  std::vector<Device> devices;
  std::set<std::pair<int, int>> unreachable;  // (device, peer)
  std::map<std::string, FakeKernel, std::less<>> kernels;
  std::map<CUdeviceptr, std::shared_ptr<Memory>> memory;
  std::map<CUdeviceptr, std::size_t> reservations;
  std::uint64_t next_id = 1;
  std::string swept_away;  // what was still there when a primary context was released: leaks of the program
  std::set<std::shared_ptr<Capture>> captures;                       // under way
  std::vector<std::pair<std::shared_ptr<Context>, After>> draining;  // of streams that were destroyed with work left

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
  // The memory that holds [address, address + bytes), or null.
  std::shared_ptr<Memory> find_memory(CUdeviceptr address, std::size_t bytes) const;
  // The same where mapped memory lies side by side: all of it, in order; empty: there is a gap.
  std::vector<std::shared_ptr<Memory>> find_span(CUdeviceptr address, std::size_t bytes) const;
};

World& world();

// A number from the environment, or `otherwise`.
std::uint64_t setting(const char* name, std::uint64_t otherwise);

template <class Handle>
Handle as_handle(std::uintptr_t number) {
  return std::bit_cast<Handle>(number);
}

// The functions below want World::mutex held.

std::shared_ptr<Context> make_context(int device);
void end_context(const std::shared_ptr<Context>& context);  // its streams must be idle
std::string held_in(const Context* context);                // what was made in it and not given back; null: in any
// The thread's current context. kInvalidContext: there is none; kContextIsDestroyed: it is gone.
CUresult current_context(std::shared_ptr<Context>& context);
CUresult find_stream(CUstream handle, std::shared_ptr<Stream>& stream);
CUresult find_event(CUevent handle, std::shared_ptr<Event>& event);
// Whether the context's device may use that memory.
bool may_use(const Context& context, const Memory& memory);

// Puts work in a stream: into the graph that it captures, or to be run. `ticket`, if wanted, gets what to wait for; 0
// in a capture.
CUresult submit(const std::shared_ptr<Stream>& stream, Work work, std::uint64_t* ticket = nullptr);
// Some calls would break a capture that is under way: then ends it and returns kStreamCaptureUnsupported.
CUresult refuse_in_capture();

// The functions below want it free.

// Memory of the current context's device, as a pool gives it; cuMemFree takes it back. 0: there is not enough.
CUdeviceptr allocate_from_pool(std::size_t bytes);

CUresult wait_for(const std::shared_ptr<Stream>& stream, std::uint64_t ticket, const char* what);
// Waits for all that was submitted to the device's contexts, or only to `context`.
CUresult wait_for_device(int device, const Context* context, const char* what);

std::string leaks();  // and forgets what was swept away

// The capture mode of the calling thread.
CaptureMode& thread_capture_mode();

}  // namespace tutti::cuda::fake
