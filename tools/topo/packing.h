// best_packing(): the largest total bandwidth that several tours can have at the same time, and these tours. It is the
// largest packing of tours into the capacities of the links. All functions are pure and may be called from any thread.
// docs/decisions/0017-search.md describes the method.
//
//  maximise sum of x_t over all tours t,   so that on each resource r:  sum of x_t * loads_t(r) <= capacity_r,  x >= 0
//
// The result contains its proof: prices of the resources, at which every tour costs at least 1, while the value of all
// capacities together is `bound`. Therefore no set of tours, with equal shares or not, has more than `bound`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/topo/tours.h"

namespace tutti {

struct PackingLimits {
  std::uint32_t max_tours = 16;  // largest number of tours in the result
  // Limit for one linear program: number of tours that are priced plus numbers that are changed. All linear programs
  // together may take 6 times as many.
  std::uint64_t max_steps = 1u << 24;
  // Number of legs that even_tours() tries, for each limit on path types.
  std::uint64_t max_even_steps = 1u << 18;
  // Fraction of the total that may be given up for paths of nearer types; 0: path types do not matter.
  double nearness = 0.05;
};

struct Packing {
  std::vector<Tour> tours{};
  double share = 0;  // bandwidth of each tour, the same for all
  double total = 0;  // bandwidth of all tours together
  // Upper bound for every packing, with equal shares or not; infinite if it is unknown.
  double bound = 0;
  std::vector<double> prices{};  // prices of the resources; empty if the bound is infinite
  // The linear program was solved: its optimum equals the bound to one part in 10^6.
  bool proven = false;
  std::uint64_t steps = 0;
};

// Finds the best packing of at most max_tours tours with equal shares: the one with the largest total, then the one
// with the fewest tours, then the first one found. Tours whose legs all have nearer types (first between places, then
// to the outside) are preferred if their total is almost as large (see PackingLimits::nearness). If the steps for the
// search of equal shares are used up, the result may be the tours of the linear program, rounded to equal shares. The
// result has no tours if there is no tour.
Packing best_packing(const TourProblem& problem, const PackingLimits& limits);

// Finds `count` tours with equal shares and a total of at least `total`. Returns nothing if it finds none within the
// budget of steps, which applies to each order of trying. `prices` as in Packing, or empty.
std::optional<std::vector<Tour>> even_tours(const TourProblem& problem, std::uint32_t count, double total,
                                            const std::vector<double>& prices, std::uint64_t budget,
                                            std::uint64_t& steps);

// The largest share that all these tours can have at the same time.
double even_share(const TourProblem& problem, const std::vector<Tour>& tours);

}  // namespace tutti
