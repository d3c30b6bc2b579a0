// Tours: the ways in which one ring or one tree can pass the GPUs of a machine, and the cheapest of them when every
// link has a price. For the search (tools/topo/search.cc, tools/topo/packing.cc); pure functions, any thread.
//
// A tour comes in by a door, passes each place once, and goes out by an exit that the door allows:
//   ring in one machine    one door, which opens to place 0 only; going out is the way from the last place to place 0
//   ring across machines   a door and an exit for each NIC
//   tree                   a chain from the NIC's GPU on: each leg is loaded in both directions, and the end is
//   anywhere
#pragma once

#include <cstdint>
#include <vector>

#include "topology/graph.h"

namespace tutti {

// What a tour loads on one of its ways: resources (a link in one direction, a NIC's port in one direction), each once
// for every pass.
struct Leg {
  std::vector<std::uint32_t> resources{};
  PathType type = PathType::kDis;

  bool possible() const { return type != PathType::kDis; }
};

struct Door {
  std::vector<Leg> legs{};             // [place], from outside
  std::vector<std::uint32_t> exits{};  // by which a tour may go out, not empty
};

struct Exit {
  std::vector<Leg> legs{};  // [place], to the outside
};

struct TourProblem {
  std::uint32_t places = 0;        // 1 .. 2^16
  std::vector<double> capacity{};  // [resource], > 0
  std::vector<Leg> between{};      // [from * places + to]
  std::vector<Door> doors{};
  std::vector<Exit> exits{};
  bool reversible = false;  // a tour backwards is one too; door i and exit i belong together
  bool closed = false;      // going out is a way between places too

  const Leg& leg(std::uint32_t from, std::uint32_t to) const { return between[from * places + to]; }
};

struct Tour {
  std::uint32_t door = 0;
  std::uint32_t exit = 0;
  std::vector<std::uint32_t> order{};  // all places

  bool operator==(const Tour&) const = default;
};

// Every resource that the tour loads, as often as it does.
std::vector<std::uint32_t> loads_of(const TourProblem& problem, const Tour& tour);

// The tour backwards, of a reversible problem.
Tour reversed(const Tour& tour, const TourProblem& problem);

struct PricedTour {
  Tour tour{};
  double price = 0;    // infinite: there is no tour
  bool exact = false;  // none is cheaper
};

inline constexpr std::uint32_t kMaxExactPlaces = 16;

// By dynamic programming over sets of places (Held and Karp 1962): places^2 * 2^places steps for each door, at most
// kMaxExactPlaces. Of equals the lowest door, then the one that the recurrence meets first: always the same. Adds its
// steps to `steps`.
PricedTour cheapest_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps);

// A cheap one: for each door the nearest place next in places^2 steps, and up to kMaxExactPlaces places are then moved
// until nothing gains, in places^3 steps at most.
PricedTour cheap_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps);

// No tour costs less: each place is left once, and come to once. 0 or more; infinite where there is no tour at all.
double least_price(const TourProblem& problem, const std::vector<double>& prices);

}  // namespace tutti
