// Tours: the paths that one ring or one tree can take through the GPUs of a machine, and the search for the cheapest
// tour if every link has a price. Used by the search (tools/topo/search.cc, tools/topo/packing.cc). All functions are
// pure and may be called from any thread.
//
// A place is a GPU, or a CPU if the machine has no GPUs. A tour enters by a door, visits each place once, and leaves
// by an exit that the door allows:
//
//  ring in one machine    one door, which opens only to place 0; leaving is the path from the last place to place 0
//  ring across machines   a door and an exit for each NIC
//  tree                   a chain that begins at the GPU of the NIC and may end at any place; each leg is loaded in
//                         both directions
#pragma once

#include <cstdint>
#include <vector>

#include "topology/graph.h"

namespace tutti {

// One part of a tour, and the resources that it loads: links in one direction, or ports of NICs in one direction. A
// resource is listed once for each time that the leg uses it.
struct Leg {
  std::vector<std::uint32_t> resources{};
  PathType type = PathType::kDis;

  bool possible() const { return type != PathType::kDis; }
};

struct Door {
  std::vector<Leg> legs{};             // indexed by place; from outside to the place
  std::vector<std::uint32_t> exits{};  // exits that a tour may use; not empty
};

struct Exit {
  std::vector<Leg> legs{};  // indexed by place; from the place to the outside
};

struct TourProblem {
  std::uint32_t places = 0;        // 1 .. 2^16
  std::vector<double> capacity{};  // indexed by resource; greater than 0
  std::vector<Leg> between{};      // indexed by from * places + to
  std::vector<Door> doors{};
  std::vector<Exit> exits{};
  bool reversible = false;  // a reversed tour is also a tour; door i belongs to exit i
  bool closed = false;      // the path to the exit also leads to a place

  const Leg& leg(std::uint32_t from, std::uint32_t to) const { return between[from * places + to]; }
};

struct Tour {
  std::uint32_t door = 0;
  std::uint32_t exit = 0;
  std::vector<std::uint32_t> order{};  // all places, in the order of the visit

  bool operator==(const Tour&) const = default;
};

// The resources that the tour loads. A resource that is loaded several times is listed several times.
std::vector<std::uint32_t> loads_of(const TourProblem& problem, const Tour& tour);

// The reversed tour; the problem must be reversible.
Tour reversed(const Tour& tour, const TourProblem& problem);

struct PricedTour {
  Tour tour{};
  double price = 0;    // infinite if there is no tour
  bool exact = false;  // no tour is cheaper
};

// Largest number of places for cheapest_tour().
inline constexpr std::uint32_t kMaxExactPlaces = 16;

// Finds the cheapest tour by dynamic programming over sets of places (Held and Karp 1962). Takes places^2 * 2^places
// steps for each door, for at most kMaxExactPlaces places. The result is deterministic: of several cheapest tours, it
// is the one with the lowest door, and then the first one in the recurrence. Adds the number of steps to `steps`.
PricedTour cheapest_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps);

// Finds a cheap tour, not always the cheapest. For each door it always continues to the nearest place, which takes
// places^2 steps. With at most kMaxExactPlaces places, it then moves single places as long as that reduces the price,
// in at most places^3 steps.
PricedTour cheap_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps);

// A lower bound for the price of a tour: a tour leaves each place once and arrives at each place once. At least 0;
// infinite if there is no tour.
double least_price(const TourProblem& problem, const std::vector<double>& prices);

}  // namespace tutti
