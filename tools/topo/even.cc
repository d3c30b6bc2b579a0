// Evenly shared tours, by depth-first search: each tour may use a resource as often as a whole share fits into what is
// left of it. What makes it quick is the linear program's proof: where the shares are to come near to its optimum, no
// tour may cost much more than 1 at its prices and little priced capacity may be left over, so most legs are out of the
// question.
#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/assert.h"
#include "tools/topo/packing.h"

namespace tutti {
namespace {

constexpr double kRounding = 1e-5;  // of prices and capacities: what counts as equal

enum class TourOrder : std::uint8_t {
  kPairs,    // every other tour is the one before backwards; else as kEvenly
  kEvenly,   // the nearest places first, of these the ones with most room left: they share out the load
  kNearest,  // the nearest places first, of these the lowest numbers
  kAll,      // by number; leaves out only what another order of the tours gives too
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
    allowed_ = prices.empty() ? count : worth;  // what all tours may cost together
  }

  bool worth_trying() const { return allowed_ >= count_ * (1 - kRounding); }

  // False, too, where the budget ends.
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
  bool take_leg(const Leg& leg) {
    if (!leg.possible()) return false;
    for (std::size_t i = 0; i < leg.resources.size(); ++i) {
      if (left_[leg.resources[i]] == 0) {
        while (i-- > 0) give(leg.resources[i]);
        return false;
      }
      --left_[leg.resources[i]];
      cost_ += prices_[leg.resources[i]];
    }
    // The tours still to come, this one's rest apart, cost at least 1 each.
    const auto to_come = static_cast<double>(count_ - 1 - tours_.size());
    if (cost_ + to_come <= allowed_ + count_ * kRounding) return true;
    give_leg(leg);
    return false;
  }
  void give(std::uint32_t resource) {
    ++left_[resource];
    cost_ -= prices_[resource];
  }
  void give_leg(const Leg& leg) {
    for (std::uint32_t resource : leg.resources) give(resource);
  }

  // How much is left on the leg, of resources that have as many times left as they have.
  std::uint64_t room(const Leg& leg) const {
    std::uint64_t sum = 0;
    for (std::uint32_t resource : leg.resources) sum += left_[resource];
    return sum;
  }
  std::uint64_t room_beyond(std::uint32_t place) const {
    std::uint64_t most = 0;
    for (std::uint32_t to = 0; to < problem_.places; ++to) {
      if (to != place && problem_.leg(place, to).possible()) most = std::max(most, room(problem_.leg(place, to)));
    }
    return most;
  }

  // Which places to try, one after the other, coming from `last`. Equals in the order of their numbers from there on,
  // and round: so tours that begin at different places end at different ones.
  std::vector<std::uint32_t> in_order(const Leg* legs, std::uint32_t last) const {
    std::vector<std::uint32_t> places(problem_.places);
    std::iota(places.begin(), places.end(), 0u);
    if (order_ == TourOrder::kAll) return places;
    const bool begins = last == problem_.places;
    if (!begins) std::rotate(places.begin(), places.begin() + last, places.end());
    std::vector<std::tuple<PathType, std::size_t, std::uint64_t>> keys(problem_.places);
    for (std::uint32_t place : places) {
      // A tour's ends load them least: it begins where least room is left.
      std::uint64_t least_first = 0;
      if (order_ != TourOrder::kNearest) least_first = begins ? room_beyond(place) : ~room(legs[place]);
      keys[place] = {legs[place].type, legs[place].resources.size(), least_first};
    }
    std::stable_sort(places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) { return keys[a] < keys[b]; });
    return places;
  }

  // Whether there is still a place to end at.
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
        if (!take_leg(legs[place])) continue;
        Tour tour{door, 0, {place}};
        std::vector<bool> passed(problem_.places);
        passed[place] = true;
        if (extend(tour, passed)) return true;
        give_leg(legs[place]);
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
      if (!take_leg(legs[place])) continue;
      passed[place] = true;
      tour.order.push_back(place);
      if (extend(tour, passed)) return true;
      tour.order.pop_back();
      passed[place] = false;
      give_leg(legs[place]);
    }
    return false;
  }

  // Tours through one door come in the order of their places where all are tried.
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
      if (!take_leg(leg)) continue;
      tour.exit = exit;
      tours_.push_back(tour);
      if (in_pairs() && tours_.size() < count_ ? add_reversed() : next_tour()) return true;
      tours_.pop_back();
      give_leg(leg);
    }
    return false;
  }

  // The tour that was added last, backwards, and all that come after the two.
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
    while (taken < legs.size() && take_leg(*legs[taken])) ++taken;
    if (taken == legs.size()) {
      tours_.push_back(back);
      if (next_tour()) return true;
      tours_.pop_back();
    }
    while (taken-- > 0) give_leg(*legs[taken]);
    return false;
  }

  const TourProblem& problem_;
  std::uint32_t count_;
  std::vector<double> prices_;
  std::vector<std::uint32_t> all_;   // [resource]: how often a whole share fits
  std::vector<std::uint32_t> left_;  // of it
  double allowed_ = 0;
  double cost_ = 0;
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
