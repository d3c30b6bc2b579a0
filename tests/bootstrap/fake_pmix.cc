// A fake PMIx library for one rank. The function that the variable FAKE_PMIX_HANGS names never returns. The test reads
// fake_pmix_fences, the number of barriers in which the rank has taken part.
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Value {  // has the layout of pmix_value_t
  std::uint16_t type = 3;
  union {
    const char* string;
    std::array<std::uint64_t, 31> room;
  } data{};
};

std::string stored;

int called(const char* name) {
  const char* const hangs = std::getenv("FAKE_PMIX_HANGS");
  while (hangs != nullptr && std::strcmp(hangs, name) == 0) pause();
  return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int fake_pmix_fences = 0;

int PMIx_Init(void*, void*, std::size_t) { return called("PMIx_Init"); }
int PMIx_Put(std::uint8_t, const char*, const Value* value) {
  stored = value->data.string;
  return called("PMIx_Put");
}
int PMIx_Commit() { return called("PMIx_Commit"); }
int PMIx_Fence_nb(const void*, std::size_t, const void*, std::size_t, void (*on_fence)(int, void*), void* context) {
  ++fake_pmix_fences;
  on_fence(0, context);
  return 0;
}
int PMIx_Get_nb(const void*, const char*, const void*, std::size_t, void (*on_value)(int, Value*, void*),
                void* context) {
  Value value;
  value.data.string = stored.c_str();
  on_value(0, &value, context);
  return 0;
}
int PMIx_Finalize(const void*, std::size_t) { return called("PMIx_Finalize"); }
}
#pragma GCC visibility pop
