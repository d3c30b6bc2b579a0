// The types, constants and functions of PMIx that are needed are declared here, so that Tutti can be built without
// the headers of PMIx. They are those of libpmix.so.2, and were compared with the header of OpenPMIx 4.2.2.
#include "bootstrap/pmix.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/assert.h"
#include "base/crypto/key.h"
#include "base/shared_library.h"
#include "base/system_error.h"
#include "base/thread.h"
#include "bootstrap/unique_id_parts.h"

namespace tutti {
namespace {

using TimePoint = std::chrono::steady_clock::time_point;

struct Process {  // PMIx declares it as pmix_proc_t
  std::array<char, 256> name_space{};
  std::uint32_t rank = 0;
};
static_assert(sizeof(Process) == 260);

// PMIx declares it as pmix_value_t. This one is larger, because newer versions may add members.
struct Value {
  std::uint16_t type = 0;
  union {
    const char* string;
    std::array<std::uint64_t, 31> room;
  } data{};
};
static_assert(offsetof(Value, data) == 8);

constexpr std::uint16_t kString = 3;
constexpr std::uint8_t kGlobal = 3;
// Time limit for PMIx_Finalize. It is longer than the 2 s that OpenPMIx 4 itself waits for the launcher.
constexpr std::chrono::seconds kFinalizeTimeout{3};
// PMIX_OPERATION_SUCCEEDED: the operation has completed already, and its callback will not be called.
constexpr int kOverAtOnce = -157;

extern "C" {
using Initialise = int (*)(Process*, void*, std::size_t);
using Put = int (*)(std::uint8_t scope, const char* key, Value*);
using Commit = int (*)();
using OnFence = void (*)(int status, void* context);
using Fence = int (*)(const Process*, std::size_t, const void*, std::size_t, OnFence, void* context);
using OnValue = void (*)(int status, Value*, void* context);
using Get = int (*)(const Process*, const char* key, const void*, std::size_t, OnValue, void* context);
using Finalise = int (*)(const void*, std::size_t);
}

Error fail(ErrorCode code, const std::string& message) {
  return {code, ErrorScope::kCommunicator, -1,
          message + "; set TUTTI_ROOT=host:port, rank 0's, on all ranks (mpirun -x TUTTI_ROOT=...)"};
}

// One operation that usually another thread completes, for example a thread of the PMIx library. The waiting thread and
// the completing thread share the object, because either may be the last to use it.
struct Pending {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  int status = 0;
  std::string text;  // the result; may be a unique id, which contains a secret, so it is wiped

  // Makes the context pointer that is passed to the library: a shared owner of `pending`, which end() deletes. If the
  // library accepts the operation, it passes the pointer to the callback exactly once, and the callback calls end().
  // Otherwise the caller must call refuse().
  static void* context(const std::shared_ptr<Pending>& pending) {
    return std::make_unique<std::shared_ptr<Pending>>(pending).release();
  }
  static void end(void* context, int status, const char* text) {
    const std::unique_ptr<std::shared_ptr<Pending>> owner(static_cast<std::shared_ptr<Pending>*>(context));
    (*owner)->finish(status, text);
  }
  void finish(int with_status, const char* with_text) {
    const std::lock_guard lock(mutex);
    status = with_status;
    text = with_text;
    done = true;
    ended.notify_all();
  }
  ~Pending() { explicit_bzero(text.data(), text.size()); }
  // Call this if the library has not accepted the operation (`status` is not 0), because it refused the operation
  // or has completed it at once. The library does not call the callback in that case.
  static void refuse(void* context, int status) { end(context, status == kOverAtOnce ? 0 : status, ""); }

  Status wait(TimePoint deadline, const char* what) {
    std::unique_lock lock(mutex);
    if (!ended.wait_until(lock, deadline, [this] { return done; })) {
      return fail(ErrorCode::kTimeout,
                  fmt::format("the launcher's {} (PMIx) did not end in time: is a rank missing?", what));
    }
    if (status != 0) return fail(ErrorCode::kSystem, fmt::format("the launcher's {} (PMIx) fails: {}", what, status));
    return {};
  }
};

// Some functions of the library have no time limit of their own. This runs `call` in a new thread, and waits for its
// end until the deadline. If the call hangs, the thread is left running. Therefore `call` may use only objects that it
// owns or that exist until the process exits. Errors: kTimeout if the call hangs, kSystem if it fails or no thread can
// be started.
Status call_limited(const char* what, TimePoint deadline, std::function<int()> call) {
  // Shared with the new thread, because either thread may be the last to use it.
  const auto pending = std::make_shared<Pending>();
  try {
    start_thread([pending, call = std::move(call)] { pending->finish(call(), ""); }).detach();
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kSystem, "for PMIx, " + describe_thread_start_error(error));
  }
  return pending->wait(deadline, what);
}

// The library, loaded and initialized once per process. The launcher sees one client per process, and it treats a
// rank that exits without PMIx_Finalize as crashed. The library is never unloaded, because it has a thread of its
// own.
struct Library {
  std::mutex mutex;
  pid_t pid = -1;  // the process that has initialized the library, or -1; a forked child must not call PMIx_Finalize
  Process self;
  bool hangs = false;  // a function run by call() did not end in time, so the library may not be used any more
  // Number of names in the store that share_through_pmix() has used so far. It must be the same on all ranks, so every
  // rank must take part in every call.
  int round = 0;
  Put put = nullptr;
  Commit commit = nullptr;
  Fence fence = nullptr;
  Get get = nullptr;
  Finalise finalise = nullptr;

  Status open(TimePoint deadline);
  Status call(const char* what, TimePoint deadline, std::function<int()> function);
};
Library library;  // the only instance; see Library

void finalize_now() {
  if (library.pid != getpid() || library.hangs) return;
  const auto finalise = [] { return library.finalise(nullptr, 0); };
  static_cast<void>(library.call("end", std::chrono::steady_clock::now() + kFinalizeTimeout, finalise));
}

Status Library::call(const char* what, TimePoint deadline, std::function<int()> function) {
  Status ended = call_limited(what, deadline, std::move(function));
  hangs = hangs || (!ended.ok() && ended.error().code == ErrorCode::kTimeout);
  return ended;
}

Status Library::open(TimePoint deadline) {
  if (hangs) return fail(ErrorCode::kSystem, "the launcher's store (PMIx) did not answer an earlier set-up in time");
  if (pid == getpid()) return {};
  auto opened = SharedLibrary::open("libpmix.so.2");
  if (!opened) {
    return fail(ErrorCode::kUnsupported, fmt::format("the ranks of this job are on several machines and the launcher's "
                                                     "store cannot be used: {}",
                                                     opened.error().message));
  }
  Initialise initialise = nullptr;
  opened->find(initialise, "PMIx_Init");
  opened->find(put, "PMIx_Put");
  opened->find(commit, "PMIx_Commit");
  opened->find(fence, "PMIx_Fence_nb");
  opened->find(get, "PMIx_Get_nb");
  opened->find(finalise, "PMIx_Finalize");
  if (opened->missing() != nullptr) {
    return fail(ErrorCode::kUnsupported, "libpmix.so.2 lacks a function of the PMIx standard");
  }
  TUTTI_TRY(call("start", deadline, [this, initialise] { return initialise(&self, nullptr, 0); }));
  pid = getpid();
  std::atexit(finalize_now);
  return {};
}

}  // namespace

Result<std::string> share_through_pmix(std::int32_t rank, const std::function<Result<std::string>()>& make,
                                       TimePoint deadline) {
  const std::lock_guard lock(library.mutex);
  TUTTI_TRY(library.open(deadline));
  const std::string key = fmt::format("tutti-{}", library.round++);
  Status made;
  if (rank == 0) {
    auto text = make();
    if (!text) {
      made = text.error();
      text = std::string(kNoUniqueId);
    }
    const WipesText wipes(*text);
    // The call owns a copy of the text, because it may still run when this function has returned.
    const auto put = [key, secret = std::make_shared<const SecretText>(*text)] {
      Value value;
      value.type = kString;
      value.data.string = secret->text.c_str();
      return library.put(kGlobal, key.c_str(), &value);
    };
    const Status stored = library.call("store", deadline, put);
    if (!stored.ok()) return made.ok() ? stored.error() : made.error();
  }
  const Status committed = library.call("store", deadline, [] { return library.commit(); });
  if (!committed.ok()) return made.ok() ? committed.error() : made.error();
  const auto fenced = std::make_shared<Pending>();  // the barrier; shared with the library
  void* context = Pending::context(fenced);
  int status = library.fence(
      nullptr, 0, nullptr, 0, [](int result, void* given) { Pending::end(given, result, ""); }, context);
  if (status != 0) Pending::refuse(context, status);
  const Status met = fenced->wait(deadline, "barrier");
  TUTTI_TRY(made);
  TUTTI_TRY(met);
  Process root = library.self;
  root.rank = 0;
  const auto got = std::make_shared<Pending>();  // the answer of the store; shared with the library
  context = Pending::context(got);
  status = library.get(
      &root, key.c_str(), nullptr, 0,
      [](int result, Value* value, void* given) {
        const bool there = result == 0 && value != nullptr && value->type == kString && value->data.string != nullptr;
        Pending::end(given, result, there ? value->data.string : "");
      },
      context);
  if (status != 0) Pending::refuse(context, status);
  TUTTI_TRY(got->wait(deadline, "store"));
  if (got->text == kNoUniqueId) return no_unique_id();
  return got->text;
}

}  // namespace tutti
