// Control: the control plane of a measured job. It has a barrier and reductions over one number per rank, through a
// small file that all ranks map. It is separate from the library under test, so that all libraries are timed with the
// same barrier, and the measured times are not sent by the library that is tested. A file also works between network
// namespaces.
//
// The main thread of each rank creates one Control and calls it. All ranks make the same calls in the same order. If a
// rank is missing, the others block for ever; compare.py limits the time of every job from outside.
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
  // Opens `path`, an empty file that compare.py has created for this job. `ranks` is 1 to kMaxRanks. Blocks until all
  // ranks have called create(), unless it fails.
  static Result<std::unique_ptr<Control>> create(const std::string& path, int rank, int ranks);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Waits for all ranks. If the machine has at least as many cores as there are ranks, the caller first checks up to
  // kSpins (control.cc) times whether all ranks have arrived, which takes some microseconds and is usually enough. Only
  // then it sleeps, so that a helper thread of the library can use the core. With fewer cores it sleeps at once.
  void barrier();

  struct Spread {
    double mean = 0;
    double least = 0;
    double most = 0;
  };
  // Returns the mean, minimum and maximum of the values that the ranks pass. All ranks must call it.
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
