// Finds the shared heap of this process (src/heap). Peers can normally map its blocks, and collectives then treat them
// like registered memory. Thread-safe.
#pragma once

#include <string>

#include "heap/heap_interface.h"

namespace tutti {

// Returns the interface of the heap, or null if this process has not loaded libtutti_heap.so. This function searches
// the symbols of the process. That is too slow for every collective call, so keep the result.
const HeapInterface* find_shared_heap();

// Why blocks of malloc() do not come from the heap, although it was loaded with LD_PRELOAD. Empty if they do, or if it
// was not loaded in this way.
std::string shared_heap_problem();

}  // namespace tutti
