// A tuner plugin of version TUTTI_TEST_VERSION (4, 5 or 6; 3: one that Tutti cannot use). Its declarations are written
// for this file, and not those of the library, so that a wrong layout in one of them is found. It writes its arguments
// into a file (lines.h). The environment variable TUTTI_TEST_TUNER, read at each call, determines what it does:
//
//   set A P COST   sets the cost of NCCL's algorithm number A with protocol number P
//   all COST       sets every cost
//   fail           getCollInfo returns an error
//   fail_init      init returns an error
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nccl/plugins/lines.h"

namespace {

using tutti::nccl_test::write_line;

using Log = void (*)(int level, unsigned long flags, const char* file, int line, const char* format, ...);
enum Level { kWarnLevel = 2, kInfoLevel = 3, kTraceLevel = 5 };

struct Domains {
  int number, least, most;
};
struct Constants {
  double numbers[144];
};

int state;  // its address is the context

const char* wish() {
  const char* const text = std::getenv("TUTTI_TEST_TUNER");
  return text == nullptr ? "" : text;
}

[[maybe_unused]] int start(Log log, void** context) {
  log(kWarnLevel, 0x40, "file", 7, "a %s of the test tuner, %d", "warning", 17);
  log(kInfoLevel, 0x40, "file", 7, "information of the test tuner");
  if (std::strcmp(wish(), "fail_init") == 0) return 3;
  *context = &state;
  return 0;
}

[[maybe_unused]] int init_v4(std::size_t ranks, std::size_t nodes, Log log, void** context) {
  write_line("init v4 ranks %zu nodes %zu", ranks, nodes);
  return start(log, context);
}

[[maybe_unused]] int init_v5(void** context, std::uint64_t id, std::size_t ranks, std::size_t nodes, Log log,
                             Domains* domains, Constants* constants) {
  write_line("init v%d ranks %zu nodes %zu domains %d %d %d", TUTTI_TEST_VERSION, ranks, nodes, domains->number,
             domains->least, domains->most);
  write_line("id %016llx", static_cast<unsigned long long>(id));
  constants->numbers[143] = 1;  // the last one: as long as the library's
  return start(log, context);
}

int get_coll_info(void* context, int function, std::size_t bytes, int operations, float** costs, int algorithms,
                  int protocols, int registered, int* channels) {
  auto* const table = reinterpret_cast<float*>(costs);
  std::string there;
  for (int i = 0; i < algorithms * protocols; ++i) there += table[i] == -1.0F ? '-' : table[i] > 0 ? '+' : '?';
  write_line("call %s function %d bytes %zu operations %d table %dx%d %s registered %d channels %d",
             context == &state ? "known" : "UNKNOWN", function, bytes, operations, algorithms, protocols, there.c_str(),
             registered, *channels);
  *channels = 3;
  int algorithm = 0, protocol = 0;
  float cost = 0;
  if (std::sscanf(wish(), "set %d %d %f", &algorithm, &protocol, &cost) == 3) {
    table[algorithm * protocols + protocol] = cost;
  }
  if (std::sscanf(wish(), "all %f", &cost) == 1) {
    for (int i = 0; i < algorithms * protocols; ++i) table[i] = cost;
  }
  return std::strcmp(wish(), "fail") == 0 ? 3 : 0;
}

[[maybe_unused]] int end(void* context) {
  write_line("end %s", context == &state ? "known" : "UNKNOWN");
  return 0;
}

[[maybe_unused]] int get_chunk_size(void*, int, std::size_t, int, int, int, std::size_t*) {
  write_line("chunk");
  return 0;
}

struct TableV4 {
  const char* name;
  int (*init)(std::size_t, std::size_t, Log, void**);
  int (*call)(void*, int, std::size_t, int, float**, int, int, int, int*);
  int (*destroy)(void*);
};
struct TableV5 {
  const char* name;
  int (*init)(void**, std::uint64_t, std::size_t, std::size_t, Log, Domains*, Constants*);
  int (*call)(void*, int, std::size_t, int, float**, int, int, int, int*);
  int (*finalize)(void*);
};
struct TableV6 {
  TableV5 first;
  int (*chunk)(void*, int, std::size_t, int, int, int, std::size_t*);
};

}  // namespace

#define TUTTI_PLUGIN extern "C" __attribute__((visibility("default")))
#if defined(TUTTI_TEST_INCOMPLETE)
TUTTI_PLUGIN const TableV5 ncclTunerPlugin_v5;
const TableV5 ncclTunerPlugin_v5 = {"incomplete", init_v5, get_coll_info, nullptr};
#elif TUTTI_TEST_VERSION == 3
TUTTI_PLUGIN const TableV4 ncclTunerPlugin_v3;
const TableV4 ncclTunerPlugin_v3 = {"v3", init_v4, get_coll_info, end};
#elif TUTTI_TEST_VERSION == 4
TUTTI_PLUGIN const TableV4 ncclTunerPlugin_v4;
const TableV4 ncclTunerPlugin_v4 = {"v4", init_v4, get_coll_info, end};
#elif TUTTI_TEST_VERSION == 5
TUTTI_PLUGIN const TableV5 ncclTunerPlugin_v5;
const TableV5 ncclTunerPlugin_v5 = {"v5", init_v5, get_coll_info, end};
#else
// Also exports an older version, which must not be used.
TUTTI_PLUGIN const TableV4 ncclTunerPlugin_v4;
const TableV4 ncclTunerPlugin_v4 = {"v4", init_v4, get_coll_info, end};
TUTTI_PLUGIN const TableV6 ncclTunerPlugin_v6;
const TableV6 ncclTunerPlugin_v6 = {{"v6", init_v5, get_coll_info, end}, get_chunk_size};
#endif
