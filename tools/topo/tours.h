// Tours: the paths that one ring or one tree can take through the GPUs of a machine, and the search for the cheapest
// tour if every link has a price. Used by the search (search.cc, packing.cc and even.cc in tools/topo). All functions
// are pure and may be called from any thread.
//
// A place is a GPU, or a CPU if the machine has no GPUs. A tour enters by a door, visits each place once, and leaves
// by an exit that the door allows:
//
//  ring in one machine    one door, which leads only to place 0; one exit, the path from the last place back to place 0
//  ring across machines   a door and an exit for each NIC
//  tree                   a door for each NIC (within one machine: a single door) and one exit, which is free from any
//                         place; each leg loads its links in both directions
#pragma once

#include <cstdint>
#include <vector>

#include "topology/graph.h"

namespace tutti {

// One part of a tour (between two places, or between a place and the outside), and the resources that it loads: links
// or ports of NICs, each in one direction. A resource is listed once for each time that the leg uses it.
struct Leg {
  std::vector<std::uint32_t> resources{};
  PathType type = PathType::kDis;

  bool possible() const { return type != PathType::kDis; }
};

struct Door {
  std::vector<Leg> legs{};             // indexed by place: the leg from the outside to the place
  std::vector<std::uint32_t> exits{};  // the exits that a tour through this door may use; not empty
};

struct Exit {
  // indexed by place: the leg from the place to the outside, or to place 0 if TourProblem::closed is true
  std::vector<Leg> legs{};
};

struct TourProblem {
  std::uint32_t places = 0;        // number of places, at least 1 and less than 2^16
  std::vector<double> capacity{};  // indexed by resource; greater than 0
  std::vector<Leg> between{};      // indexed by from * places + to
  std::vector<Door> doors{};
  std::vector<Exit> exits{};
  // true: every tour may also be taken in reverse, and door i and exit i are the same NIC or (if `closed`) both at
  // place 0.
  bool reversible = false;
  bool closed = false;  // a ring in one machine: the exit's legs are paths to place 0, and not to the outside

  const Leg& leg(std::uint32_t from, std::uint32_t to) const { return between[from * places + to]; }
};

struct Tour {
  std::uint32_t door = 0;
  std::uint32_t exit = 0;
  std::vector<std::uint32_t> order{};  // all places, in the order of the visit

  bool operator==(const Tour&) const = default;
};

// The resources that the tour loads, of all its legs. A resource is listed once for each time that the tour loads it.
std::vector<std::uint32_t> loads_of(const TourProblem& problem, const Tour& tour);

// Returns the same tour in the opposite direction. The problem must be reversible.
Tour reversed(const Tour& tour, const TourProblem& problem);

struct PricedTour {
  Tour tour{};
  double price = 0;    // infinite if there is no tour
  bool exact = false;  // true: no tour is cheaper; false: a cheaper one may exist
};

// Largest number of places for cheapest_tour().
inline constexpr std::uint32_t kMaxExactPlaces = 16;

// Finds the cheapest tour by dynamic programming over sets of places (Held and Karp 1962). Takes at most
// places^2 * 2^(places - 1) steps for each door. There must be at most kMaxExactPlaces places. The result is
// deterministic: of several cheapest tours, it is the one with the lowest door, and then the first one in the
// recurrence. Adds the number of steps to `steps`.
PricedTour cheapest_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps);

// Finds a cheap tour, which need not be the cheapest. It makes a tour for each door, which always continues to the
// place with the cheapest leg (places^2 steps). With at most kMaxExactPlaces places, it then moves single places to
// other positions in the tour as long as that reduces the price (at most places^3 steps for each door). The result is
// the cheapest of these tours. Adds the number of steps to `steps`.
PricedTour cheap_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps);

// Returns a lower bound for the price of every tour. A tour leaves each place once and arrives at each place once. So
// it costs at least as much as the cheapest legs out of all places, and at least as much as the cheapest legs into
// all places. Infinite if this shows that there is no tour.
double least_price(const TourProblem& problem, const std::vector<double>& prices);

}  // namespace tutti
