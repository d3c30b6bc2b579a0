#include "transports/shm/shared_heap.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace tutti {

const HeapInterface* find_shared_heap() {
  return static_cast<const HeapInterface*>(dlsym(RTLD_DEFAULT, kHeapInterfaceSymbol));
}

std::string shared_heap_problem() {
  const HeapInterface* const heap = find_shared_heap();
  const char* const preload = std::getenv("LD_PRELOAD");
  if (heap == nullptr || preload == nullptr || std::string_view(preload).find("libtutti_heap") == std::string::npos) {
    return {};
  }
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const std::unique_ptr<void, decltype(&std::free)> block(std::malloc(kBytes), &std::free);
  HeapSegment segment{};
  if (block == nullptr || heap->find(block.get(), kBytes, segment)) return {};
  const char* const problem = heap->problem();
  return problem != nullptr ? problem
                            : "blocks of malloc() do not come from libtutti_heap.so: the program has an allocator of "
                              "its own, or the heap has no addresses or segments left";
}

}  // namespace tutti
