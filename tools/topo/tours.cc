#include "tools/topo/tours.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kGain = 1e-12;  // differences of prices that are smaller than this are taken as rounding errors

double price_of(const Leg& leg, const std::vector<double>& prices) {
  if (!leg.possible()) return kInfinite;
  double sum = 0;
  for (std::uint32_t resource : leg.resources) sum += prices[resource];
  return sum;
}

// The price of each leg (the sum of the prices of its resources; infinite if the leg is impossible), calculated once.
struct LegPrices {
  std::uint32_t places;
  std::vector<double> between;             // indexed by from * places + to
  std::vector<std::vector<double>> doors;  // indexed by [door][place]
  std::vector<std::vector<double>> exits;  // indexed by [exit][place]

  LegPrices(const TourProblem& problem, const std::vector<double>& prices) : places(problem.places) {
    TUTTI_ASSERT(prices.size() == problem.capacity.size(), "{} prices", prices.size());
    for (const Leg& leg : problem.between) between.push_back(price_of(leg, prices));
    for (const Door& door : problem.doors) {
      doors.emplace_back();
      for (const Leg& leg : door.legs) doors.back().push_back(price_of(leg, prices));
    }
    for (const Exit& exit : problem.exits) {
      exits.emplace_back();
      for (const Leg& leg : exit.legs) exits.back().push_back(price_of(leg, prices));
    }
  }

  double of(const Tour& tour) const {
    double sum = doors[tour.door][tour.order.front()] + exits[tour.exit][tour.order.back()];
    for (std::size_t i = 0; i + 1 < tour.order.size(); ++i) sum += between[tour.order[i] * places + tour.order[i + 1]];
    return sum;
  }

  std::uint32_t cheapest_exit(const Door& door, std::uint32_t place) const {
    return *std::min_element(door.exits.begin(), door.exits.end(),
                             [&](std::uint32_t a, std::uint32_t b) { return exits[a][place] < exits[b][place]; });
  }
};

// Finds the cheapest tour through one door.
class HeldKarp {
 public:
  HeldKarp(const TourProblem& problem, const LegPrices& priced, std::uint32_t door)
      : problem_(problem), priced_(priced), door_(door), places_(problem.places) {}

  PricedTour run(std::uint64_t& steps) {
    const std::uint32_t sets = 1u << places_;
    best_.assign(static_cast<std::size_t>(sets) * places_, kInfinite);
    for (std::uint32_t place = 0; place < places_; ++place) at(1u << place, place) = priced_.doors[door_][place];
    for (std::uint32_t set = 1; set < sets; ++set) {
      for (std::uint32_t last = 0; last < places_; ++last) {
        const double here = at(set, last);
        if (here == kInfinite) continue;
        steps += places_;
        for (std::uint32_t next = 0; next < places_; ++next) {
          if ((set >> next & 1) != 0) continue;
          double& there = at(set | 1u << next, next);
          there = std::min(there, here + priced_.between[last * places_ + next]);
        }
      }
    }
    return trace(sets - 1);
  }

 private:
  // The lowest price of all partial tours that have visited exactly the places in `set` and end at `last`; infinite if
  // there is none, for example because `last` is not in the set.
  double& at(std::uint32_t set, std::uint32_t last) { return best_[static_cast<std::size_t>(set) * places_ + last]; }

  // Reads the cheapest tour from the table, backwards from its last place.
  PricedTour trace(std::uint32_t set) {
    PricedTour found{{door_, 0, {}}, kInfinite, true};
    std::uint32_t last = 0;
    for (std::uint32_t place = 0; place < places_; ++place) {
      const std::uint32_t exit = priced_.cheapest_exit(problem_.doors[door_], place);
      const double price = at(set, place) + priced_.exits[exit][place];
      if (!(price < found.price - kGain)) continue;
      found.price = price;
      found.tour.exit = exit;
      last = place;
    }
    if (found.price == kInfinite) return found;
    for (;;) {
      found.tour.order.push_back(last);
      const double here = at(set, last);
      set &= ~(1u << last);
      if (set == 0) break;
      std::uint32_t before = places_;
      for (std::uint32_t place = 0; place < places_ && before == places_; ++place) {
        if (at(set, place) + priced_.between[place * places_ + last] == here) before = place;
      }
      TUTTI_ASSERT(before < places_, "no place before {}", last);
      last = before;
    }
    std::reverse(found.tour.order.begin(), found.tour.order.end());
    return found;
  }

  const TourProblem& problem_;
  const LegPrices& priced_;
  std::uint32_t door_;
  std::uint32_t places_;
  std::vector<double> best_;  // the table of prices that at() reads
};

// Returns the tour that begins at place `first` and always continues to the place with the cheapest leg. The price of
// the tour may be infinite.
Tour greedy_tour(const TourProblem& problem, const LegPrices& priced, std::uint32_t door, std::uint32_t first) {
  Tour tour{door, 0, {first}};
  std::vector<bool> passed(problem.places);
  passed[first] = true;
  while (tour.order.size() < problem.places) {
    const double* const legs = &priced.between[tour.order.back() * problem.places];
    std::uint32_t nearest = problem.places;
    for (std::uint32_t place = 0; place < problem.places; ++place) {
      if (!passed[place] && (nearest == problem.places || legs[place] < legs[nearest])) nearest = place;
    }
    passed[nearest] = true;
    tour.order.push_back(nearest);
  }
  tour.exit = priced.cheapest_exit(problem.doors[door], tour.order.back());
  return tour;
}

// Improves a tour: makes the move of one place to another position that reduces the price most, and repeats this as
// long as the price falls, at most as many times as there are places. Leaves the order unchanged if there are more
// than kMaxExactPlaces places. run() returns the price of the tour.
class Improver {
 public:
  Improver(const TourProblem& problem, const LegPrices& priced, Tour& tour)
      : problem_(problem), priced_(priced), tour_(tour) {}

  double run(std::uint64_t& steps) {
    const auto places = static_cast<std::int32_t>(tour_.order.size());
    const bool few = places > 1 && places <= static_cast<std::int32_t>(kMaxExactPlaces);
    for (std::int32_t round = 0; few && round < places; ++round) {
      double best = -kGain;
      std::int32_t best_from = 0, best_to = 0;
      for (std::int32_t from = 0; from < places; ++from) {
        const double without = leg(from - 1, from + 1) - leg(from - 1, from) - leg(from, from + 1);
        for (std::int32_t to = -1; to < places; ++to) {  // the new position is between `to` and the next place
          if (to == from || to == from - 1) continue;
          const double with = leg(to, from) + leg(from, to + 1) - leg(to, to + 1);
          if (!(without + with < best)) continue;
          best = without + with;
          best_from = from;
          best_to = to;
        }
      }
      steps += static_cast<std::uint64_t>(places) * static_cast<std::uint64_t>(places);
      if (best == -kGain) break;
      const auto begin = tour_.order.begin();
      if (best_to > best_from) std::rotate(begin + best_from, begin + best_from + 1, begin + best_to + 1);
      if (best_to < best_from) std::rotate(begin + best_to + 1, begin + best_from, begin + best_from + 1);
    }
    tour_.exit = priced_.cheapest_exit(problem_.doors[tour_.door], tour_.order.back());
    return priced_.of(tour_);
  }

 private:
  static constexpr double kLargePrice = 1e6;  // replaces an infinite price, because infinity minus infinity is NaN

  // The price of the leg between the places at the positions `from` and `to` of the tour. Position -1 stands for the
  // door, and the position after the last place for the cheapest exit.
  double leg(std::int32_t from, std::int32_t to) const {
    const std::vector<std::uint32_t>& order = tour_.order;
    double price = 0;
    if (from < 0) {
      price = priced_.doors[tour_.door][order[static_cast<std::size_t>(to)]];
    } else if (to == static_cast<std::int32_t>(order.size())) {
      const std::uint32_t last = order[static_cast<std::size_t>(from)];
      price = priced_.exits[priced_.cheapest_exit(problem_.doors[tour_.door], last)][last];
    } else {
      price =
          priced_.between[order[static_cast<std::size_t>(from)] * priced_.places + order[static_cast<std::size_t>(to)]];
    }
    return std::min(price, kLargePrice);
  }

  const TourProblem& problem_;
  const LegPrices& priced_;
  Tour& tour_;
};

}  // namespace

std::vector<std::uint32_t> loads_of(const TourProblem& problem, const Tour& tour) {
  std::vector<std::uint32_t> loads = problem.doors[tour.door].legs[tour.order.front()].resources;
  const auto add = [&](const Leg& leg) { loads.insert(loads.end(), leg.resources.begin(), leg.resources.end()); };
  for (std::size_t i = 0; i + 1 < tour.order.size(); ++i) add(problem.leg(tour.order[i], tour.order[i + 1]));
  add(problem.exits[tour.exit].legs[tour.order.back()]);
  return loads;
}

Tour reversed(const Tour& tour, const TourProblem& problem) {
  TUTTI_ASSERT(problem.reversible);
  Tour back{tour.exit, tour.door, {tour.order.rbegin(), tour.order.rend()}};
  // Inside one machine a ring always begins at place 0, also if it is reversed.
  if (!problem.doors[back.door].legs[back.order.front()].possible()) {
    std::rotate(back.order.begin(), std::find(back.order.begin(), back.order.end(), 0u), back.order.end());
  }
  return back;
}

PricedTour cheapest_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps) {
  TUTTI_ASSERT(problem.places >= 1 && problem.places <= kMaxExactPlaces, "{} places", problem.places);
  const LegPrices priced(problem, prices);
  PricedTour best{{}, kInfinite, true};
  for (std::uint32_t door = 0; door < problem.doors.size(); ++door) {
    PricedTour found = HeldKarp(problem, priced, door).run(steps);
    if (found.price < best.price - kGain) best = std::move(found);
  }
  return best;
}

PricedTour cheap_tour(const TourProblem& problem, const std::vector<double>& prices, std::uint64_t& steps) {
  const LegPrices priced(problem, prices);
  PricedTour best{{}, kInfinite, false};
  for (std::uint32_t door = 0; door < problem.doors.size(); ++door) {
    steps += problem.places * problem.places;
    std::uint32_t first = 0;
    for (std::uint32_t place = 1; place < problem.places; ++place) {
      if (priced.doors[door][place] < priced.doors[door][first]) first = place;
    }
    Tour tour = greedy_tour(problem, priced, door, first);
    const double price = Improver(problem, priced, tour).run(steps);
    if (!(price < best.price - kGain)) continue;
    best.price = price;
    best.tour = std::move(tour);
  }
  return best;
}

double least_price(const TourProblem& problem, const std::vector<double>& prices) {
  const LegPrices priced(problem, prices);
  const std::uint32_t places = problem.places;
  std::vector<double> leaving(places, kInfinite), coming(places, kInfinite);
  double door = kInfinite, exit = kInfinite;
  for (std::uint32_t place = 0; place < places; ++place) {
    for (const std::vector<double>& legs : priced.doors) coming[place] = std::min(coming[place], legs[place]);
    for (const std::vector<double>& legs : priced.exits) leaving[place] = std::min(leaving[place], legs[place]);
    door = std::min(door, coming[place]);
    exit = std::min(exit, leaving[place]);
  }
  for (std::uint32_t from = 0; from < places; ++from) {
    for (std::uint32_t to = 0; to < places; ++to) {
      if (from == to) continue;
      leaving[from] = std::min(leaving[from], priced.between[from * places + to]);
      coming[to] = std::min(coming[to], priced.between[from * places + to]);
    }
  }
  for (std::uint32_t place = 0; place < places; ++place) {
    door += leaving[place];
    exit += coming[place];
  }
  return std::max(door, exit);
}

}  // namespace tutti
