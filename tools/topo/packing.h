// How much bandwidth tours have together, and which they are: the largest packing of tours into the capacities of the
// links. Pure functions; any thread. docs/decisions/0017-search.md has the method.
//
//   maximise sum of x_t over all tours t,   so that on each resource r:  sum of x_t * loads_t(r) <= capacity_r,  x >= 0
//
// The answer carries its proof: prices of the resources at which no tour costs less than 1, while all capacities
// together are worth `bound`. So no set of tours, evenly shared or not, has more than `bound`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/topo/tours.h"

namespace tutti {

struct PackingLimits {
  std::uint32_t max_tours = 16;             // of the answer
  std::uint64_t max_steps = 1u << 24;       // of a linear program: tours priced, numbers changed; of all, 6 times that
  std::uint64_t max_even_steps = 1u << 18;  // legs tried by even_tours(), for each kind of paths
  double nearness = 0.05;  // part of the total that may be given up for paths of nearer types; 0: these don't matter
};

struct Packing {
  std::vector<Tour> tours{};
  double share = 0;              // of each, the same for all
  double total = 0;              // of all
  double bound = 0;              // no packing has more, shares equal or not; infinite where it was not found out
  std::vector<double> prices{};  // of the resources; empty where the bound is infinite
  bool proven = false;           // the linear program was solved: its optimum is the bound, to a part in 10^6
  std::uint64_t steps = 0;
};

// The best packing of at most max_tours tours that share evenly: the largest total, then the fewest tours, then the
// first that is met. Tours whose legs are all of nearer types (between places first, then to the outside) are preferred
// where they have nearly as much, as `nearness` says. Where the steps for that end, the linear program's tours, cut to
// equal shares, may be the answer. Empty where there is no tour.
Packing best_packing(const TourProblem& problem, const PackingLimits& limits);

// That many tours of equal shares with all together at least `total`; nothing where none is found within the budget for
// each way of trying. `prices`: as in Packing, or empty.
std::optional<std::vector<Tour>> even_tours(const TourProblem& problem, std::uint32_t count, double total,
                                            const std::vector<double>& prices, std::uint64_t budget,
                                            std::uint64_t& steps);

// The largest share that each of these tours may have at once.
double even_share(const TourProblem& problem, const std::vector<Tour>& tours);

}  // namespace tutti
