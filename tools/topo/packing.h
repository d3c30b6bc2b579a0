// best_packing(): searches for the largest total bandwidth that several tours (rings or trees, see tours.h) can have at
// the same time, and for these tours. A tour with a share of bandwidth uses this share of each resource (link or port)
// as often as the tour passes it. All functions are pure and may be called from any thread.
// docs/decisions/0017-search.md describes the method.
//
//  maximise sum of x_t over all tours t,   so that on each resource r:  sum of x_t * loads_t(r) <= capacity_r,  x >= 0
//
// If an upper bound is known and there are tours, the result contains the proof of the bound: prices of the resources,
// at which every tour costs at least 1, while all capacities together cost `bound`. Therefore no set of tours, with
// equal shares or not, has more bandwidth than `bound`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/topo/tours.h"

namespace tutti {

struct PackingLimits {
  std::uint32_t max_tours = 16;  // largest number of tours in the result
  // Approximate limit of steps for one linear program; a step is the pricing of a partial tour or the update of one
  // matrix element. All linear programs of a call together may take about 6 times as many.
  std::uint64_t max_steps = 1u << 24;
  // Approximate limit for the number of legs that even_tours() tries. It applies anew to each limit on path types that
  // is tried.
  std::uint64_t max_even_steps = 1u << 18;
  // Fraction of the total bandwidth that may be given up so that paths have nearer types; 0: path types do not matter.
  double nearness = 0.05;
};

struct Packing {
  std::vector<Tour> tours{};
  double share = 0;  // bandwidth of each tour in GB/s; all tours have the same
  double total = 0;  // bandwidth of all tours together
  // Upper bound for the total of every packing, with equal shares or not; infinite if it is unknown.
  double bound = 0;
  std::vector<double> prices{};  // indexed by resource: the prices that prove the bound; empty if no prices are known
  // True if the linear program was solved: its total equals the bound to one part in 10^7, or there is no tour. The
  // total of the tours with equal shares may still be lower.
  bool proven = false;
  std::uint64_t steps = 0;  // number of steps that the search took
};

// Searches for the best packing of at most max_tours tours with equal shares: the one with the largest total; of
// several, the one with the fewest tours, and then the first one found. If the total is almost as large (see
// PackingLimits::nearness), tours whose farthest path type is nearer are preferred: first the type between places, then
// the type to the outside. If the limits end the search early, the result may be worse, for example the tours of the
// linear program, rounded to equal shares. The result has no tours if none exists or none was found within the limits.
Packing best_packing(const TourProblem& problem, const PackingLimits& limits);

// Finds `count` tours with equal shares and a total bandwidth of at least `total` (to one part in 10^6). Tries several
// orders of places, and at most `budget` legs in each order, without those to exits and of reversed tours. Returns
// nothing if it finds no such tours. Adds the number of tried legs to `steps`. `prices` are those of a Packing, or
// empty if there are none.
std::optional<std::vector<Tour>> even_tours(const TourProblem& problem, std::uint32_t count, double total,
                                            const std::vector<double>& prices, std::uint64_t budget,
                                            std::uint64_t& steps);

// The largest share that all these tours can have at the same time, if all have the same; infinite without loads.
double even_share(const TourProblem& problem, const std::vector<Tour>& tours);

}  // namespace tutti
