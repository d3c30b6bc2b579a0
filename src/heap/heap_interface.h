// The interface between libtutti and the shared heap, which is a library of its own (libtutti_heap.so). A process has
// the shared heap only if that library was loaded, so libtutti finds the interface by its symbol at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// A part of the heap: one memfd, of which all pages are mapped in this process. Other processes can map it as well.
struct HeapSegment {
  std::byte* start;
  std::size_t bytes;
  std::uint32_t number;  // identifies the segment in this process; a number is not used again
};

// All functions are thread-safe.
struct HeapInterface {
  // Whether [data, data+bytes) is in one segment that other processes can map, and its first and last byte are in
  // blocks (not necessarily in the same one). If so, sets `segment`. The memory must not be freed during the call.
  // Blocks that were allocated before a fork are private in the child, so they are not found there.
  bool (*find)(const void* data, std::size_t bytes, HeapSegment& segment);
  // Returns a new descriptor of the segment's memfd, which the caller must close. -1: no descriptor is left, the
  // program has closed the heap's descriptor of the memfd, no segment has this number, or this process is a forked
  // child and the segment is from before the fork.
  int (*open_segment)(std::uint32_t number);
  // The reason why the heap cannot be used at all, which is found when the program first allocates a block that is
  // large enough for the heap. Null before that, and if there is no such reason. The string is never freed.
  const char* (*problem)();
};

// The name of the symbol, of type HeapInterface. The number changes with the interface.
inline constexpr const char* kHeapInterfaceSymbol = "tutti_heap_interface_1";

}  // namespace tutti
