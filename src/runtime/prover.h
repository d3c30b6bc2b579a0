// Prover: proves a plan before its first use, and remembers it. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "plan/plan.h"
#include "tutti/result.h"

namespace tutti {

class Prover {
 public:
  // Plans of more ranks are not proved here (it would take seconds): their generators are, by `tutti verify`, over
  // samples.
  static constexpr std::uint32_t kMaxRanks = 64;

  explicit Prover(bool enabled) : enabled_(enabled) {}
  // Success, or kInvalidPlan with rank, channel and step.
  Status prove(const Generator& generator);

 private:
  bool enabled_;
  std::mutex mutex_;
  std::map<std::pair<Algorithm, std::uint32_t>, Status> proved_;  // by algorithm and ranks
};

}  // namespace tutti
