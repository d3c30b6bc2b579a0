// The kernels of the probes (probes.cc). Only nvcc compiles this file.
#include "kernels/device/port.h"

namespace port = tutti::device::port;

namespace {

constexpr unsigned kLineThreads = 8;

__device__ bool over(std::uint64_t begin, std::uint64_t limit_ns) { return port::now_ns() - begin > limit_ns; }

}  // namespace

extern "C" {

// Waits until *word is not 0, at most limit_ns. Then writes 1 to *end, or 2 if the time was over.
__global__ void probe_spin(std::uint64_t* word, std::uint64_t limit_ns, std::uint64_t* end) {
  if (threadIdx.x != 0) return;
  const std::uint64_t begin = port::now_ns();
  bool late = false;
  while (port::load_acquire(word) == 0 && !late) late = over(begin, limit_ns);
  if (blockIdx.x == 0) port::store_release(end, late ? 2 : 1);
}

__global__ void probe_empty() {}

// Needs 4 KiB of local memory in each thread, more than any kernel of the library.
__global__ void probe_local(unsigned seed, unsigned* result) {
  unsigned values[1024];
  for (unsigned i = 0; i < 1024; ++i) values[i] = i * seed;
  for (unsigned i = 0; i < 64; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[seed >> 22] += i;
  }
  if (values[seed >> 22] == 0xffffffffu) *result = seed;
}

// Writes to `steps` the smallest and the largest step of the clock that waiting kernels read, over 2 ms.
__global__ void probe_clock(std::uint64_t* steps) {
  std::uint64_t least = ~0ull;
  std::uint64_t most = 0;
  const std::uint64_t begin = port::now_ns();
  std::uint64_t before = begin;
  while (before - begin < 2'000'000) {
    const std::uint64_t now = port::now_ns();
    if (now == before) continue;
    least = now - before < least ? now - before : least;
    most = now - before > most ? now - before : most;
    before = now;
  }
  steps[0] = least;
  steps[1] = most;
}

// Hand-over as in the protocol `simple`: block 0 writes 16 KiB and then, with release, the number of the round; block 1
// acquires the number, checks the data, and releases its answer. The kernel writes to counts[0] the number of rounds,
// to counts[1] the number of wrong values, and to counts[2] 1 if a block has waited for more than 2 s. It must be
// launched with 2 blocks of 512 threads.
__global__ void probe_hand_over(std::uint64_t* data, std::uint64_t* words, std::uint64_t rounds,
                                std::uint64_t* counts) {
  constexpr unsigned kEach = 4;
  const std::uint64_t begin = port::now_ns();
  __shared__ int stop;
  if (threadIdx.x == 0) stop = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const bool writer = blockIdx.x == 0;
    if (threadIdx.x == 0) {
      const std::uint64_t wanted = writer ? round - 1 : round;
      while (port::load_acquire(&words[writer ? 16 : 0]) < wanted && stop == 0) stop = over(begin, 2'000'000'000ull);
    }
    __syncthreads();
    if (stop != 0) break;
    for (unsigned i = 0; i < kEach; ++i) {
      std::uint64_t* const at = &data[i * blockDim.x + threadIdx.x];
      if (writer) {
        port::store(at, round * 1000 + i);
      } else if (port::load(at) != round * 1000 + i) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&counts[1]), 1ull);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      port::store_release(&words[writer ? 0 : 16], round);
      if (writer) counts[0] = round;
    }
  }
  if (threadIdx.x == 0 && stop != 0) counts[2] = 1;
}

// Block 0 writes lines of 128 bytes, 8 threads a line and 16 bytes a thread, with the round in every 8 bytes; block 1
// reads them all the time. counts[0]: reads; counts[1]: lines that were read half old and half new (LL128 relies on 0);
// counts[2]: 16 bytes that were (LL relies on 0). 32 threads, so 4 lines.
__global__ void probe_lines(std::uint64_t* lines, std::uint64_t rounds, std::uint64_t* counts) {
  unsigned char* const mine = reinterpret_cast<unsigned char*>(lines) + threadIdx.x * 16;
  if (blockIdx.x == 0) {
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      const auto low = static_cast<std::uint32_t>(round);
      port::store_line(mine, {low, low, low, low});
      for (unsigned pause = 0; pause < round % 64; ++pause) static_cast<void>(port::now_ns());
      __syncwarp();
    }
    return;
  }
  std::uint32_t seen = 0;
  std::uint64_t reads = 0, torn_lines = 0, torn_words = 0;
  const std::uint64_t begin = port::now_ns();
  while (seen < rounds && !over(begin, 2'000'000'000ull)) {
    const tutti::device::Word16 word = port::load_line(mine);
    seen = word.w;
    if (word.x != word.w || word.y != word.w || word.z != word.w) ++torn_words;
    const std::uint32_t first = __shfl_sync(0xffffffffu, word.x, threadIdx.x & ~(kLineThreads - 1));
    if (first != word.w) ++torn_lines;
    ++reads;
    seen = __shfl_sync(0xffffffffu, seen, 0);
  }
  atomicAdd(reinterpret_cast<unsigned long long*>(&counts[0]), static_cast<unsigned long long>(reads));
  atomicAdd(reinterpret_cast<unsigned long long*>(&counts[1]), static_cast<unsigned long long>(torn_lines));
  atomicAdd(reinterpret_cast<unsigned long long*>(&counts[2]), static_cast<unsigned long long>(torn_words));
}

}  // extern "C"
