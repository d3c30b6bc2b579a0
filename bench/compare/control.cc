#include "bench/compare/control.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace tutti::compare {
namespace {

constexpr int kSpins = 400;

Error system_error(const std::string& what) {
  return {.code = ErrorCode::kSystem,
          .scope = ErrorScope::kProcess,
          .rank = -1,
          .message = what + ": " + std::strerror(errno)};
}

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  return ::syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

}  // namespace

// The contents of the file that all ranks map. create() makes an empty file long enough; the kernel fills it with
// zeros, which are the initial state.
struct Control::Shared {
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> round;
  alignas(64) std::atomic<std::uint32_t> sleepers;
  struct alignas(64) CacheLine {
    double value;
  };
  CacheLine lines[kMaxRanks];
};

Result<std::unique_ptr<Control>> Control::create(const std::string& path, int rank, int ranks) {
  if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .scope = ErrorScope::kProcess,
                 .rank = rank,
                 .message = "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " cannot be"};
  }
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return system_error("cannot open the control file " + path);
  void* address = MAP_FAILED;
  if (::ftruncate(file, sizeof(Shared)) == 0) {
    address = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const Error error = system_error("cannot map the control file " + path);
  ::close(file);
  if (address == MAP_FAILED) return error;
  std::unique_ptr<Control> control(new Control(static_cast<Shared*>(address), rank, ranks));
  control->barrier();
  return control;
}

Control::Control(Shared* shared, int rank, int ranks)
    : shared_(shared), rank_(rank), ranks_(ranks), spins_(ranks <= ::sysconf(_SC_NPROCESSORS_ONLN)) {}

Control::~Control() { ::munmap(shared_, sizeof(Shared)); }

void Control::barrier() {
  const std::uint32_t round = shared_->round.load(std::memory_order_acquire);
  if (shared_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(ranks_)) {
    shared_->arrived.store(0, std::memory_order_relaxed);
    // This store is sequentially consistent, as are the accesses to `sleepers` and `round` by which another rank goes
    // to sleep (below). So either this rank sees the other rank counted in `sleepers` and wakes it, or the other rank
    // sees the new round and does not sleep.
    shared_->round.store(round + 1, std::memory_order_seq_cst);
    if (shared_->sleepers.load(std::memory_order_seq_cst) > 0) futex(shared_->round, FUTEX_WAKE, INT_MAX);
    return;
  }
  for (int i = 0; spins_ && i < kSpins; ++i) {
    if (shared_->round.load(std::memory_order_acquire) != round) return;
    __builtin_ia32_pause();
  }
  shared_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (shared_->round.load(std::memory_order_seq_cst) == round) futex(shared_->round, FUTEX_WAIT, round);
  shared_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

Control::Spread Control::spread(double value) {
  shared_->lines[rank_].value = value;
  barrier();
  Spread spread{.mean = 0, .least = value, .most = value};
  for (int i = 0; i < ranks_; ++i) {
    const double other = shared_->lines[i].value;
    spread.mean += other / ranks_;
    spread.least = std::min(spread.least, other);
    spread.most = std::max(spread.most, other);
  }
  barrier();  // a rank must not overwrite its value before all ranks have read it
  return spread;
}

}  // namespace tutti::compare
