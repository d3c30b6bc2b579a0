// The control plane of a measured job: a barrier and reductions over one number of each rank, through a small file that
// all ranks map. It is not the library under test: every library is timed against the same barrier, and what its ranks
// have measured and checked does not travel through it. A file works between network namespaces too.
//
// Each rank's main thread makes one and calls it; all ranks make the same calls in the same order. A rank that is
// missing blocks the others for ever: the orchestrator (compare.py) bounds every job from outside.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/result.h"

namespace tutti::compare {

constexpr int kMaxRanks = 256;

class Control {
 public:
  // `path` is a file that the orchestrator has made empty for this job; ranks 1 .. kMaxRanks. Blocks until all ranks
  // have come.
  static Result<std::unique_ptr<Control>> create(const std::string& path, int rank, int ranks);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // With a core for each rank it spins for some 20 us, in which ranks that are well normally meet, then sleeps, so that
  // a library's helper thread gets the core; with fewer cores it sleeps at once.
  void barrier();

  struct Spread {
    double mean = 0;
    double least = 0;
    double most = 0;
  };
  // Over the values that all ranks give.
  Spread spread(double value);
  double most(double value) { return spread(value).most; }

 private:
  struct Shared;
  Control(Shared* shared, int rank, int ranks);

  Shared* shared_;
  const int rank_;
  const int ranks_;
  const bool spins_;
};

}  // namespace tutti::compare
