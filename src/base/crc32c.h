// CRC-32C (Castagnoli; RFC 3720, appendix B.4): a checksum that detects every error of one or two flipped bits in a
// message of less than 256 MiB, and every burst of up to 32 changed bits in any message. Pure functions; may be called
// from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti {

// The checksum of `bytes` bytes at `data`. `so_far` is the checksum of the preceding bytes, so that a checksum can be
// computed in parts: crc32c(b, m, crc32c(a, n)) is the checksum of a followed by b. Uses the processor's CRC
// instruction if there is one (x86-64 with SSE 4.2; ARMv8 if the compiler targets it).
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t so_far = 0);

// Like crc32c(), but without the processor's instruction: uses tables, 8 bytes at a time.
std::uint32_t crc32c_by_tables(const void* data, std::size_t bytes, std::uint32_t so_far = 0);

// Whether crc32c() uses the processor's instruction.
bool crc32c_is_in_hardware();

}  // namespace tutti
