// A profiler plugin of version TUTTI_TEST_VERSION (4, 5 or 6). Its declarations are written for this file, and not
// those of the library, so that a wrong layout in one of them is found. It writes one line for each event into a file
// (lines.h). The environment variable TUTTI_TEST_MASK is the mask of events (a number). TUTTI_TEST_PROFILER=fail_init:
// init returns an error; no_context: it succeeds, but leaves the context null.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nccl/plugins/lines.h"

namespace {

using tutti::nccl_test::write_line;

using Log = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

#if TUTTI_TEST_VERSION == 4
using TypeNumber = std::uint8_t;
#else
using TypeNumber = std::uint64_t;
#endif

struct Descriptor {
  struct Group {
    bool captured;
    int depth;
  };
  struct CollApi {
    const char* func;
    std::size_t count;
    const char* datatype;
    int root;
    void* stream;
    bool captured;
  };
  struct P2pApi {
    const char* func;
    std::size_t count;
    const char* datatype;
    void* stream;
    bool captured;
  };
  struct Coll {
    std::uint64_t seq;
    const char* func;
    const void* send;
    void* recv;
    std::size_t count;
    int root;
    const char* datatype;
    std::uint8_t channels, warps;
    const char* algo;
    const char* proto;
#if TUTTI_TEST_VERSION > 4
    void* parent_group;
#endif
  };
  struct P2p {
    const char* func;
    void* buff;
    const char* datatype;
    std::size_t count;
    int peer;
    std::uint8_t channels;
#if TUTTI_TEST_VERSION > 4
    void* parent_group;
#endif
  };

  TypeNumber type;
  void* parent;
  int rank;
  union {
    Group group;
    CollApi coll_api;
    P2pApi p2p_api;
    Coll coll;
    P2p p2p;
  };
};

// What the plugin keeps of an event. Its number appears in the lines; 0 is "no event".
struct Kept {
  int number;
  std::string what;
  const float* result;  // of a collective; null: is not read
};

std::atomic<int> last{0};
int number_of(const void* event) { return event == nullptr ? 0 : static_cast<const Kept*>(event)->number; }

struct Context {
  int rank;
};

int begin(void** context, std::uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank, Log log) {
  const char* const text = std::getenv("TUTTI_TEST_MASK");
  __atomic_store_n(mask, text == nullptr ? 0 : std::atoi(text), __ATOMIC_RELAXED);
  write_line("[%d] init v%d name %s nodes %d ranks %d", rank, TUTTI_TEST_VERSION, name == nullptr ? "(null)" : name,
             nodes, ranks);
  write_line("[%d] id %016llx", rank, static_cast<unsigned long long>(id));
  log(2, 1, "file", 1, "a warning of the test profiler");
  const char* const wish = std::getenv("TUTTI_TEST_PROFILER");
  if (wish != nullptr && std::strcmp(wish, "fail_init") == 0) return 2;
  if (wish == nullptr || std::strcmp(wish, "no_context") != 0) *context = new Context{rank};
  return 0;
}

[[maybe_unused]] int init_v4(void** context, int* mask, const char* name, std::uint64_t id, int nodes, int ranks,
                             int rank, Log log) {
  return begin(context, id, mask, name, nodes, ranks, rank, log);
}
[[maybe_unused]] int init_v5(void** context, std::uint64_t id, int* mask, const char* name, int nodes, int ranks,
                             int rank, Log log) {
  return begin(context, id, mask, name, nodes, ranks, rank, log);
}

int start(void* context, void** handle, Descriptor* event) {
  const int rank = context == nullptr ? -1 : static_cast<Context*>(context)->rank;
  const int number = ++last;
  auto* const kept = new Kept{number, "", nullptr};
  const auto& d = *event;
  char text[512] = "";
  switch (std::uint64_t{d.type}) {
    case 1: kept->what = "Group"; break;
    case 2:
      kept->what = "Coll";
      // Read at the end only if no other thread may write it then.
      if (std::getenv("TUTTI_TEST_NO_RESULT") == nullptr) kept->result = static_cast<const float*>(d.coll.recv);
      std::snprintf(text, sizeof(text), " %s #%llu count %zu %s root %d channels %d warps %d %s %s send %d",
                    d.coll.func, static_cast<unsigned long long>(d.coll.seq), d.coll.count, d.coll.datatype,
                    d.coll.root, d.coll.channels, d.coll.warps, d.coll.algo, d.coll.proto, d.coll.send != nullptr);
      break;
    case 4:
      kept->what = "P2p";
      std::snprintf(text, sizeof(text), " %s count %zu %s peer %d buff %d", d.p2p.func, d.p2p.count, d.p2p.datatype,
                    d.p2p.peer, d.p2p.buff != nullptr);
      break;
    case 256:
      kept->what = "GroupApi";
      std::snprintf(text, sizeof(text), " depth %d captured %d", d.group.depth, d.group.captured);
      break;
    case 512:
      kept->what = "CollApi";
      std::snprintf(text, sizeof(text), " %s count %zu %s root %d stream %d captured %d", d.coll_api.func,
                    d.coll_api.count, d.coll_api.datatype, d.coll_api.root, d.coll_api.stream != nullptr,
                    d.coll_api.captured);
      break;
    case 1024:
      kept->what = "P2pApi";
      std::snprintf(text, sizeof(text), " %s count %zu %s stream %d captured %d", d.p2p_api.func, d.p2p_api.count,
                    d.p2p_api.datatype, d.p2p_api.stream != nullptr, d.p2p_api.captured);
      break;
    default: kept->what = "type " + std::to_string(d.type);
  }
  std::string group;
#if TUTTI_TEST_VERSION > 4
  if (d.type == 2) group = " group " + std::to_string(number_of(d.coll.parent_group));
  if (d.type == 4) group = " group " + std::to_string(number_of(d.p2p.parent_group));
#endif
  write_line("[%d] %d %s start rank %d parent %d%s%s", rank, number, kept->what.c_str(), d.rank, number_of(d.parent),
             group.c_str(), text);
  *handle = kept;
  return 0;
}

int stop(void* handle) {
  const auto* const kept = static_cast<const Kept*>(handle);
  // Events are not freed, because they may be parents of others.
  if (kept->result != nullptr) {
    write_line("%d %s stop result %g", kept->number, kept->what.c_str(), static_cast<double>(kept->result[0]));
  } else {
    write_line("%d %s stop", kept->number, kept->what.c_str());
  }
  return 0;
}

int record(void* handle, int new_state, void* arguments) {
  write_line("%d state %d%s", number_of(handle), new_state, arguments == nullptr ? " without arguments" : "");
  return 0;
}

int finalize(void* context) {
  write_line("[%d] finalize", context == nullptr ? -1 : static_cast<Context*>(context)->rank);
  delete static_cast<Context*>(context);
  return 0;
}

struct Table {
  const char* name;
#if TUTTI_TEST_VERSION == 4
  int (*init)(void**, int*, const char*, std::uint64_t, int, int, int, Log);
#else
  int (*init)(void**, std::uint64_t, int*, const char*, int, int, int, Log);
#endif
  int (*start)(void*, void**, Descriptor*);
  int (*stop)(void*);
  int (*record)(void*, int, void*);
  int (*finalize)(void*);
};

}  // namespace

#define TUTTI_PLUGIN extern "C" __attribute__((visibility("default")))
#if TUTTI_TEST_VERSION == 4
TUTTI_PLUGIN const Table ncclProfiler_v4;
const Table ncclProfiler_v4 = {"v4", init_v4, start, stop, record, finalize};
#elif TUTTI_TEST_VERSION == 5
TUTTI_PLUGIN const Table ncclProfiler_v5;
const Table ncclProfiler_v5 = {"v5", init_v5, start, stop, record, finalize};
#else
TUTTI_PLUGIN const Table ncclProfiler_v6;
const Table ncclProfiler_v6 = {"v6", init_v5, start, stop, record, finalize};
#endif
