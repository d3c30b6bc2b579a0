// even_tours(): finds tours with equal shares by depth-first search. Before the search, the capacity of each resource
// is converted to the number of times that the share fits into it. The prices from the linear program make the search
// shorter: every tour costs at least 1, and if the intended total is near the optimum, the capacity that is available
// for all tours costs little more than their number. So no tour may cost much more than 1, and many legs are too
// expensive to be tried further.
#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/assert.h"
#include "tools/topo/packing.h"

namespace tutti {
namespace {

constexpr double kRounding = 1e-5;  // relative tolerance for prices and capacities

enum class TourOrder : std::uint8_t {
  // Every second tour is the reverse of the tour before it. The other tours are searched for in the order kEvenly.
  kPairs,
  // The nearest places first; of equally near places, the one with the most remaining capacity on its leg first, so
  // that the load is distributed. (in_order() explains the exception for the first place of a tour.)
  kEvenly,
  // The nearest places first; equally near places by number, beginning at the present place.
  kNearest,
  // All places by number. If the budget is sufficient, this order tries every set of tours that can be in the result,
  // except sets that differ from another one only in the order of their tours.
  kAll,
};

class EvenTours {
 public:
  EvenTours(const TourProblem& problem, std::uint32_t count, double total, const std::vector<double>& prices)
      : problem_(problem), count_(count), prices_(prices) {
    if (prices_.empty()) prices_.assign(problem.capacity.size(), 0);
    double worth = 0;
    for (std::size_t i = 0; i < problem.capacity.size(); ++i) {
      const double times = problem.capacity[i] * count / total * (1 + 1e-6);
      all_.push_back(static_cast<std::uint32_t>(std::min(times, 1e6)));
      worth += prices_[i] * all_.back();
    }
    allowed_ = prices.empty() ? count : worth;  // the price of all tours together must not exceed this
  }

  // False if the prices prove that there are no `count` tours with the intended total: each would cost at least 1,
  // but the available capacity costs less than `count`.
  bool worth_trying() const { return allowed_ >= count_ * (1 - kRounding); }

  // Searches in one order of places, and tries at most `budget` legs; legs to an exit and legs of a reversed tour are
  // not counted. Adds the number of tried legs to `steps`. Returns false if it finds no tours or if the budget is used
  // up.
  bool find(TourOrder order, std::uint64_t budget, std::uint64_t& steps) {
    order_ = order;
    left_ = all_;
    tours_.clear();
    cost_ = 0;
    budget_ = budget;
    const bool found = next_tour();
    steps += budget - budget_;
    return found;
  }

  std::vector<Tour> take() { return std::move(tours_); }

 private:
  // Takes the capacity of the leg's resources and returns true, if they have capacity and the price of all tours can
  // stay within allowed_. Otherwise changes nothing and returns false.
  bool use_leg(const Leg& leg) {
    if (!leg.possible()) return false;
    for (std::size_t i = 0; i < leg.resources.size(); ++i) {
      if (left_[leg.resources[i]] == 0) {
        while (i-- > 0) release(leg.resources[i]);
        return false;
      }
      --left_[leg.resources[i]];
      cost_ += prices_[leg.resources[i]];
    }
    // Each tour that has not been begun costs at least 1.
    const auto to_come = static_cast<double>(count_ - 1 - tours_.size());
    if (cost_ + to_come <= allowed_ + count_ * kRounding) return true;
    release_leg(leg);
    return false;
  }
  void release(std::uint32_t resource) {
    ++left_[resource];
    cost_ -= prices_[resource];
  }
  void release_leg(const Leg& leg) {
    for (std::uint32_t resource : leg.resources) release(resource);
  }

  // The remaining capacity of a leg, summed over its resources.
  std::uint64_t remaining_capacity(const Leg& leg) const {
    std::uint64_t sum = 0;
    for (std::uint32_t resource : leg.resources) sum += left_[resource];
    return sum;
  }
  std::uint64_t most_remaining_from(std::uint32_t place) const {
    std::uint64_t most = 0;
    for (std::uint32_t to = 0; to < problem_.places; ++to) {
      if (to != place && problem_.leg(place, to).possible())
        most = std::max(most, remaining_capacity(problem_.leg(place, to)));
    }
    return most;
  }

  // The places in the order in which to try them after the place `last`. `legs` are the legs to all places; if `last`
  // is the number of places, they lead in from a door. With kAll, the places are in the order of their numbers.
  // Otherwise equally good places are tried by number, beginning at `last` (from a door: at 0) and continuing
  // cyclically, so that tours with different first places usually have different last places.
  std::vector<std::uint32_t> in_order(const Leg* legs, std::uint32_t last) const {
    std::vector<std::uint32_t> places(problem_.places);
    std::iota(places.begin(), places.end(), 0u);
    if (order_ == TourOrder::kAll) return places;
    const bool begins = last == problem_.places;
    if (!begins) std::rotate(places.begin(), places.begin() + last, places.end());
    std::vector<std::tuple<PathType, std::size_t, std::uint64_t>> keys(problem_.places);
    for (std::uint32_t place : places) {
      // A tour uses fewer links at its first place than at others. So, of equally near places, it begins at the one
      // with the least remaining capacity, and continues along the leg with the most.
      std::uint64_t least_first = 0;
      if (order_ != TourOrder::kNearest)
        least_first = begins ? most_remaining_from(place) : ~remaining_capacity(legs[place]);
      keys[place] = {legs[place].type, legs[place].resources.size(), least_first};
    }
    std::stable_sort(places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) { return keys[a] < keys[b]; });
    return places;
  }

  // False if the tour is certain not to reach an exit: no exit of its door has a leg with remaining capacity from a
  // place that the tour has not visited yet (which could become its last place), or, if it has visited all places, from
  // its last place. `passed`: for each place, whether the tour has visited it.
  bool can_leave(const Tour& tour, const std::vector<bool>& passed) const {
    for (std::uint32_t exit : problem_.doors[tour.door].exits) {
      const std::vector<Leg>& legs = problem_.exits[exit].legs;
      for (std::uint32_t place = 0; place < problem_.places; ++place) {
        const bool last = tour.order.size() == problem_.places ? place == tour.order.back() : !passed[place];
        if (last && legs[place].possible() && fits(legs[place])) return true;
      }
    }
    return false;
  }
  bool fits(const Leg& leg) const {
    return std::all_of(leg.resources.begin(), leg.resources.end(), [&](std::uint32_t i) { return left_[i] > 0; });
  }

  bool in_pairs() const { return order_ == TourOrder::kPairs; }

  bool next_tour() {
    if (tours_.size() == count_) return true;
    const std::uint32_t first_door = tours_.empty() || in_pairs() ? 0 : tours_.back().door;
    for (std::uint32_t door = first_door; door < problem_.doors.size(); ++door) {
      const std::vector<Leg>& legs = problem_.doors[door].legs;
      for (std::uint32_t place : in_order(legs.data(), problem_.places)) {
        if (budget_ == 0) return false;
        --budget_;
        if (!use_leg(legs[place])) continue;
        Tour tour{door, 0, {place}};
        std::vector<bool> passed(problem_.places);
        passed[place] = true;
        if (extend(tour, passed)) return true;
        release_leg(legs[place]);
      }
    }
    return false;
  }

  bool extend(Tour& tour, std::vector<bool>& passed) {
    if (tour.order.size() == problem_.places) return leave(tour);
    if (!can_leave(tour, passed)) return false;
    const Leg* const legs = &problem_.leg(tour.order.back(), 0);
    for (std::uint32_t place : in_order(legs, tour.order.back())) {
      if (budget_ == 0) return false;
      if (passed[place]) continue;
      --budget_;
      if (!use_leg(legs[place])) continue;
      passed[place] = true;
      tour.order.push_back(place);
      if (extend(tour, passed)) return true;
      tour.order.pop_back();
      passed[place] = false;
      release_leg(legs[place]);
    }
    return false;
  }

  // True if the tour must be left out. With kAll, consecutive tours through the same door must be in ascending order of
  // their places, because the same tours in another order are the same set.
  bool out_of_order(const Tour& tour) const {
    return order_ == TourOrder::kAll && !tours_.empty() && tours_.back().door == tour.door &&
           tour.order < tours_.back().order;
  }

  bool leave(Tour& tour) {
    if (out_of_order(tour)) return false;
    std::vector<std::uint32_t> exits = problem_.doors[tour.door].exits;
    std::stable_partition(exits.begin(), exits.end(), [&](std::uint32_t exit) { return exit == tour.door; });
    for (std::uint32_t exit : exits) {
      const Leg& leg = problem_.exits[exit].legs[tour.order.back()];
      if (!use_leg(leg)) continue;
      tour.exit = exit;
      tours_.push_back(tour);
      if (in_pairs() && tours_.size() < count_ ? add_reversed() : next_tour()) return true;
      tours_.pop_back();
      release_leg(leg);
    }
    return false;
  }

  // Adds the reverse of the last tour, and then searches for the tours that are still missing. Returns false and
  // removes the reverse again if this fails.
  bool add_reversed() {
    const Tour back = reversed(tours_.back(), problem_);
    const std::vector<std::uint32_t>& exits = problem_.doors[back.door].exits;
    if (std::find(exits.begin(), exits.end(), back.exit) == exits.end()) return false;
    std::vector<const Leg*> legs{&problem_.doors[back.door].legs[back.order.front()]};
    for (std::size_t i = 0; i + 1 < back.order.size(); ++i) {
      legs.push_back(&problem_.leg(back.order[i], back.order[i + 1]));
    }
    legs.push_back(&problem_.exits[back.exit].legs[back.order.back()]);
    std::size_t taken = 0;
    while (taken < legs.size() && use_leg(*legs[taken])) ++taken;
    if (taken == legs.size()) {
      tours_.push_back(back);
      if (next_tour()) return true;
      tours_.pop_back();
    }
    while (taken-- > 0) release_leg(*legs[taken]);
    return false;
  }

  const TourProblem& problem_;
  std::uint32_t count_;
  std::vector<double> prices_;
  std::vector<std::uint32_t> all_;   // indexed by resource: how many times the share fits into its capacity
  std::vector<std::uint32_t> left_;  // indexed by resource: all_ minus the uses by the tours so far
  double allowed_ = 0;               // the highest possible price of all tours
  double cost_ = 0;                  // the price of the tours so far, with the unfinished one
  TourOrder order_ = TourOrder::kEvenly;
  std::uint64_t budget_ = 0;
  std::vector<Tour> tours_;
};

}  // namespace

std::optional<std::vector<Tour>> even_tours(const TourProblem& problem, std::uint32_t count, double total,
                                            const std::vector<double>& prices, std::uint64_t budget,
                                            std::uint64_t& steps) {
  TUTTI_ASSERT(count > 0 && total > 0);
  EvenTours search(problem, count, total, prices);
  if (!search.worth_trying()) return std::nullopt;
  for (const TourOrder order : {TourOrder::kPairs, TourOrder::kNearest, TourOrder::kEvenly, TourOrder::kAll}) {
    if (order == TourOrder::kPairs && (!problem.reversible || count % 2 != 0)) continue;
    if (search.find(order, order == TourOrder::kAll ? budget : budget / 8, steps)) return search.take();
  }
  return std::nullopt;
}

}  // namespace tutti
