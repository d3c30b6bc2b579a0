// CRC-32C (Castagnoli; RFC 3720, appendix B.4): which finds every flipped bit, every two, and every run of up to 32
// altered bits of a message. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// Of `bytes` bytes at `data`, behind what gave `so_far`: crc32c(b, m, crc32c(a, n)) is that of both, one behind the
// other. By the processor's own instruction where it has one (x86-64 with SSE 4.2, ARMv8 where it is compiled for it).
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t so_far = 0);

// The same by tables, eight bytes at a time.
std::uint32_t crc32c_by_tables(const void* data, std::size_t bytes, std::uint32_t so_far = 0);

// Whether crc32c() uses the processor's instruction.
bool crc32c_is_in_hardware();

}  // namespace tutti
