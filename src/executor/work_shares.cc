#include "executor/work_shares.h"

#include <algorithm>

namespace tutti {

void WorkShares::reset() {
  taken_.assign(marks_.ranks(), false);
  cpus_ = nullptr;
  crowded_ = false;
}

void WorkShares::begin(const std::vector<std::int32_t>& cpus) {
  cpus_ = &cpus;
  for (auto cpu = cpus.begin(); cpu != cpus.end(); ++cpu) crowded_ |= std::find(cpus.begin(), cpu, *cpu) != cpu;
}

bool WorkShares::take(std::uint32_t of) {
  if (crowded_ && !marks_.claim(of)) return false;
  taken_[of] = true;
  return true;
}

std::optional<std::uint32_t> WorkShares::take_of_others(bool on_other_cores) {
  if (!crowded_) return std::nullopt;
  const std::uint32_t rank = marks_.rank();
  for (std::uint32_t i = 1; i < marks_.ranks(); ++i) {
    const std::uint32_t other = (rank + i) % marks_.ranks();
    if ((on_other_cores || (*cpus_)[other] == (*cpus_)[rank]) && take(other)) return other;
  }
  return std::nullopt;
}

}  // namespace tutti
