// Control: the control plane of a measured job. It has a barrier and reductions over one number per rank, through a
// small file that all ranks map. It is separate from the library under test, so that all libraries are timed with the
// same barrier, and their results are not transferred by the library that is tested. A file also works between
// network namespaces.
//
// The main thread of each rank creates one Control and calls it. All ranks make the same calls in the same order. If
// a rank is missing, the others block for ever; compare.py limits the time of every job from outside.
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
  // ranks have called it.
  static Result<std::unique_ptr<Control>> create(const std::string& path, int rank, int ranks);
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Waits for all ranks. If there is a core for each rank, the caller makes kSpins (control.cc) checks, within some
  // microseconds, in which ranks usually arrive, and then sleeps, so that a helper thread of the library can use the
  // core. With fewer cores than ranks the caller sleeps at once.
  void barrier();

  struct Spread {
    double mean = 0;
    double least = 0;
    double most = 0;
  };
  // The mean, minimum and maximum of the values of all ranks. Collective.
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
