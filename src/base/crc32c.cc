#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace tutti {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // bits in reversed order

// kTables[k][b]: the CRC register, which starts at zero, after the byte b and k zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
    }
  }
  return tables;
}();

std::uint64_t word_at(const std::uint8_t* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

std::uint32_t run_tables(std::uint32_t state, const std::uint8_t* data, std::size_t bytes) {
  for (; bytes >= 8; data += 8, bytes -= 8) {
    const std::uint64_t word = word_at(data) ^ state;
    state = 0;
    for (std::size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; bytes > 0; ++data, --bytes) state = (state >> 8) ^ kTables[0][(state ^ *data) & 0xff];
  return state;
}

#if defined(__x86_64__) || defined(__ARM_FEATURE_CRC32)

#if defined(__x86_64__)
#define TUTTI_WITH_CRC __attribute__((target("sse4.2")))
TUTTI_WITH_CRC inline std::uint32_t step(std::uint32_t state, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(state, word));
}
TUTTI_WITH_CRC inline std::uint32_t step(std::uint32_t state, std::uint8_t byte) { return _mm_crc32_u8(state, byte); }
const bool kInHardware = __builtin_cpu_supports("sse4.2") != 0;
#else
#define TUTTI_WITH_CRC
inline std::uint32_t step(std::uint32_t state, std::uint64_t word) { return __crc32cd(state, word); }
inline std::uint32_t step(std::uint32_t state, std::uint8_t byte) { return __crc32cb(state, byte); }
constexpr bool kInHardware = true;
#endif

// On common processors, the instruction has a latency of three cycles, and one can start in each cycle. So three
// adjacent parts of the data are processed at the same time; the second and the third start with an empty register. A
// CRC is linear. Therefore the registers are combined by advancing the earlier one over kPartBytes zero bytes (Shift)
// and XORing the next one.
constexpr std::size_t kPartBytes = 1024;

// Advances a register over kPartBytes zero bytes, with one table for each byte of the register.
struct Shift {
  std::array<std::array<std::uint32_t, 256>, 4> tables{};

  Shift() {
    const std::array<std::uint8_t, kPartBytes> zeros{};
    for (std::size_t place = 0; place < tables.size(); ++place) {
      for (std::uint32_t byte = 0; byte < 256; ++byte) {
        tables[place][byte] = run_tables(byte << (8 * place), zeros.data(), zeros.size());
      }
    }
  }
  std::uint32_t operator()(std::uint32_t state) const {
    return tables[0][state & 0xff] ^ tables[1][(state >> 8) & 0xff] ^ tables[2][(state >> 16) & 0xff] ^
           tables[3][state >> 24];
  }
};

TUTTI_WITH_CRC std::uint32_t run_instruction(std::uint32_t state, const std::uint8_t* data, std::size_t bytes) {
  if (bytes >= 3 * kPartBytes) {
    static const Shift shift;
    for (; bytes >= 3 * kPartBytes; data += 3 * kPartBytes, bytes -= 3 * kPartBytes) {
      std::uint32_t second = 0;
      std::uint32_t third = 0;
      for (std::size_t i = 0; i < kPartBytes; i += 8) {
        state = step(state, word_at(data + i));
        second = step(second, word_at(data + kPartBytes + i));
        third = step(third, word_at(data + 2 * kPartBytes + i));
      }
      state = shift(shift(state) ^ second) ^ third;
    }
  }
  for (; bytes >= 8; data += 8, bytes -= 8) state = step(state, word_at(data));
  for (; bytes > 0; ++data, --bytes) state = step(state, *data);
  return state;
}

#undef TUTTI_WITH_CRC

#else

constexpr bool kInHardware = false;
std::uint32_t run_instruction(std::uint32_t state, const std::uint8_t* data, std::size_t bytes) {
  return run_tables(state, data, bytes);
}

#endif

}  // namespace

bool crc32c_is_in_hardware() { return kInHardware; }

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t so_far) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  return ~(kInHardware ? run_instruction(~so_far, at, bytes) : run_tables(~so_far, at, bytes));
}

std::uint32_t crc32c_by_tables(const void* data, std::size_t bytes, std::uint32_t so_far) {
  return ~run_tables(~so_far, static_cast<const std::uint8_t*>(data), bytes);
}

}  // namespace tutti
