// Finds the shared heap of this process (src/heap). Peers can map its blocks, so collectives treat them like registered
// memory. Thread-safe.
#pragma once

#include <string>

#include "heap/heap_interface.h"

namespace tutti {

// The interface of the heap. Null if this process has not loaded libtutti_heap.so. It searches the symbols of the
// process, which is too slow for each call.
const HeapInterface* find_shared_heap();

// Why blocks of malloc() do not come from the heap, although it was loaded with LD_PRELOAD. Empty if they do, or if it
// was not loaded in this way.
std::string shared_heap_problem();

}  // namespace tutti
