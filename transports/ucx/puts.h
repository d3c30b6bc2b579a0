// Whether long messages over UCX are written into the receiver's memory (ucp_put_nbx).
#pragma once

#include <cstdint>

namespace tutti {

// Where no card writes into memory, UCX emulates it by messages; and once it is told that memory is to be written, it
// writes for whoever reaches its TCP ports, wherever they say. So that is not asked of it without a card.
enum class UcxPuts : std::uint8_t {
  kByCards,  // where ways.h says that a card writes
  kAlways,   // for tests: what UCX emulates, too
};

}  // namespace tutti
