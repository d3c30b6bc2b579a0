// The method is column generation. The linear program contains only the tours that were found so far. Its prices are
// passed to cheap_tour(). If this finds no tour that costs less than 1, if the total is not proven to be optimal, and
// if the limits permit, the prices are passed to cheapest_tour(), too. A tour that costs less than 1 at these prices is
// added to the linear program. If there is no such tour, the optimum is reached.
#include "tools/topo/packing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/assert.h"

namespace tutti {
namespace {

constexpr double kTiny = 1e-9;      // tolerance for prices and pivots, which are about 1
constexpr double kAccuracy = 1e-7;  // relative tolerance of the optimum
constexpr double kMaxLoads = 1024;  // limit in aims_above() on the uses of one resource by all tours together
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The linear program, solved by the revised simplex method with an explicit inverse of the basis matrix. Each row
// stands for a resource, scaled to a capacity of 1.
//
// Each pivot puts one variable into the basis, and the variable whose value reaches 0 first leaves the basis. If
// several variables reach 0 at the same time, the method could return to an earlier basis and repeat the same pivots
// without end (cycling). The lexicographic rule prevents this, except for rounding errors: each of these variables has
// a row of the inverse, which is divided by the row's element of the entering column. The variable whose divided row is
// lexicographically smallest leaves.
class Master {
 public:
  explicit Master(const std::vector<double>& capacity) : capacity_(capacity), rows_(capacity.size()) {
    inverse_.assign(rows_ * rows_, 0);
    for (std::size_t row = 0; row < rows_; ++row) inverse_[row * rows_ + row] = 1;
    value_.assign(rows_, 1);
    basis_.assign(rows_, kSlack);
  }

  // The price of each resource: the increase of the total for one more unit of capacity.
  std::vector<double> prices() const {
    std::vector<double> prices(rows_, 0);
    for (std::size_t row = 0; row < rows_; ++row) {
      if (basis_[row] == kSlack) continue;
      for (std::size_t i = 0; i < rows_; ++i) prices[i] += inverse_[row * rows_ + i];
    }
    for (std::size_t i = 0; i < rows_; ++i) prices[i] /= capacity_[i];
    return prices;
  }

  // Adds a tour and puts it into the basis. `loads` is the result of loads_of() for the tour.
  void enter(Tour tour, const std::vector<std::uint32_t>& loads) {
    std::vector<double> column(rows_, 0);
    for (std::uint32_t resource : loads) column[resource] += 1 / capacity_[resource];
    const std::size_t row = pivot(column);
    basis_[row] = static_cast<std::int32_t>(tours_.size());
    tours_.push_back(std::move(tour));
  }

  // Puts the slack variable of one resource into the basis: of the resource whose price times capacity is negative and
  // the lowest, because less use of this resource increases the total. Returns false, and changes nothing, if no price
  // is negative.
  bool enter_slack(const std::vector<double>& prices) {
    std::size_t lowest = 0;
    for (std::size_t i = 0; i < rows_; ++i) {
      if (prices[i] * capacity_[i] < prices[lowest] * capacity_[lowest]) lowest = i;
    }
    if (prices[lowest] * capacity_[lowest] >= -kTiny * scale()) return false;
    std::vector<double> column(rows_, 0);
    column[lowest] = 1;
    const std::size_t row = pivot(column);
    basis_[row] = kSlack;
    return true;
  }

  double total() const {
    double sum = 0;
    for (std::size_t row = 0; row < rows_; ++row) sum += basis_[row] == kSlack ? 0 : value_[row];
    return sum;
  }

  std::vector<std::pair<double, Tour>> shares() const {
    std::vector<std::pair<double, Tour>> shares;
    for (std::size_t row = 0; row < rows_; ++row) {
      if (basis_[row] == kSlack || value_[row] <= kTiny * scale()) continue;
      shares.emplace_back(value_[row], tours_[static_cast<std::size_t>(basis_[row])]);
    }
    return shares;
  }

 private:
  static constexpr std::int32_t kSlack = -1;

  double scale() const { return std::max(1.0, total()); }

  // Puts the variable with this column into the basis. Returns the row of the variable that leaves the basis.
  std::size_t pivot(const std::vector<double>& column) {
    std::vector<double> change(rows_, 0);  // the product of the matrix inverse_ and `column`
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t i = 0; i < rows_; ++i) change[row] += inverse_[row * rows_ + i] * column[i];
    }
    const std::size_t leaving = ratio_test(change);
    const double by = change[leaving];
    for (std::size_t i = 0; i < rows_; ++i) inverse_[leaving * rows_ + i] /= by;
    value_[leaving] /= by;
    for (std::size_t row = 0; row < rows_; ++row) {
      if (row == leaving || change[row] == 0) continue;
      for (std::size_t i = 0; i < rows_; ++i) {
        inverse_[row * rows_ + i] -= change[row] * inverse_[leaving * rows_ + i];
      }
      value_[row] = std::max(0.0, value_[row] - change[row] * value_[leaving]);
    }
    return leaving;
  }

  // Returns the row of the variable that leaves the basis. `change` is the entering column, multiplied by the inverse.
  std::size_t ratio_test(const std::vector<double>& change) const {
    const double largest = *std::max_element(change.begin(), change.end());
    TUTTI_ASSERT(largest > 0, "a tour without loads");
    std::size_t leaving = rows_;
    for (std::size_t row = 0; row < rows_; ++row) {
      if (change[row] <= kTiny * largest) continue;
      if (leaving == rows_ || goes_before(row, leaving, change)) leaving = row;
    }
    return leaving;
  }

  // True if the variable of row `a` leaves rather than that of row `b`: it reaches 0 first, or both reach 0 at the same
  // time and the lexicographic rule prefers `a`.
  bool goes_before(std::size_t a, std::size_t b, const std::vector<double>& change) const {
    const double first = value_[a] / change[a], second = value_[b] / change[b];
    if (std::abs(first - second) > kTiny * std::max(first, second)) return first < second;
    for (std::size_t i = 0; i < rows_; ++i) {
      const double left = inverse_[a * rows_ + i] / change[a], right = inverse_[b * rows_ + i] / change[b];
      if (std::abs(left - right) > kTiny * std::max(std::abs(left), std::abs(right))) return left < right;
    }
    return false;
  }

  const std::vector<double>& capacity_;
  std::size_t rows_;
  std::vector<double> inverse_;      // indexed by row * rows_ + i
  std::vector<double> value_;        // indexed by row; value of the variable that is in the basis there
  std::vector<std::int32_t> basis_;  // indexed by row; index into tours_, or kSlack
  std::vector<Tour> tours_;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Lowers packing.bound if these prices prove a lower one. `cheapest` is a lower bound for the price of every tour.
// Divided by it, the prices make every tour cost at least 1, and the bound is the price of all capacities.
void update_bound(const TourProblem& problem, const std::vector<double>& prices, double cheapest, Packing& packing) {
  if (!(cheapest > 0)) return;
  const double bound = dot(prices, problem.capacity) / cheapest;
  if (!packing.prices.empty() && bound >= packing.bound) return;
  packing.bound = bound;
  packing.prices = prices;
  for (double& price : packing.prices) price /= cheapest;
}

// True if cheapest_tour() can handle the number of places, and its steps fit within the remaining steps.
bool may_search_all(const TourProblem& problem, const PackingLimits& limits, const Packing& packing) {
  if (problem.places > kMaxExactPlaces) return false;
  const std::uint64_t sets = 1ull << (problem.places - 1);
  return packing.steps + problem.doors.size() * problem.places * problem.places * sets <= limits.max_steps;
}

// Returns a tour that costs less than 1 at these prices, so that adding it can increase the total. Returns nothing if
// the total has reached the bound, if there is no such tour, or if none is found within the limits. If cheap_tour()
// finds none, also updates the bound and `proven`; `total` is the total of the linear program.
std::optional<Tour> next_tour(const TourProblem& problem, const PackingLimits& limits,
                              const std::vector<double>& prices, double total, Packing& packing) {
  PricedTour cheap = cheap_tour(problem, prices, packing.steps);
  if (cheap.price < 1 - 1e-6) return std::move(cheap.tour);
  update_bound(problem, prices, least_price(problem, prices), packing);
  packing.proven = total >= packing.bound * (1 - kAccuracy);
  if (packing.proven || !may_search_all(problem, limits, packing)) return std::nullopt;
  PricedTour cheapest = cheapest_tour(problem, prices, packing.steps);
  update_bound(problem, prices, cheapest.price, packing);
  packing.proven = total >= packing.bound * (1 - kAccuracy);
  if (packing.proven || cheapest.price >= 1 - kTiny) return std::nullopt;
  return std::move(cheapest.tour);
}

// Returns the first tour for the linear program. Without tours all its prices are 0, so prices of 1 / capacity are
// used, which prefer fast links. Returns nothing if there is no tour (then packing.proven is set), or if none is
// found within the limits.
std::optional<Tour> first_tour(const TourProblem& problem, const PackingLimits& limits, Packing& packing) {
  std::vector<double> prices;
  for (double capacity : problem.capacity) prices.push_back(1 / capacity);
  PricedTour cheap = cheap_tour(problem, prices, packing.steps);
  if (cheap.price < kInfinite) return std::move(cheap.tour);
  if (!may_search_all(problem, limits, packing)) return std::nullopt;
  PricedTour cheapest = cheapest_tour(problem, prices, packing.steps);
  if (cheapest.price < kInfinite) return std::move(cheapest.tour);
  packing.proven = true;
  packing.bound = 0;
  return std::nullopt;
}

// Lowers the bound if possible, without the linear program: for each place, with a price of 1 for the first resource of
// each leg that leaves the place and for the last resource of each leg that arrives at it, and 0 for all others. If
// every tour uses some of these resources, they limit the total. Also updates packing.proven; `total` is the total of
// the linear program.
void add_cut_bounds(const TourProblem& problem, double total, Packing& packing) {
  for (std::uint32_t place = 0; place < problem.places; ++place) {
    std::vector<double> prices(problem.capacity.size(), 0);
    const auto price_first = [&](const Leg& leg) {
      if (!leg.resources.empty()) prices[leg.resources.front()] = 1;
    };
    const auto price_last = [&](const Leg& leg) {
      if (!leg.resources.empty()) prices[leg.resources.back()] = 1;
    };
    for (std::uint32_t other = 0; other < problem.places; ++other) {
      if (other == place) continue;
      price_first(problem.leg(place, other));
      price_last(problem.leg(other, place));
    }
    for (const Door& door : problem.doors) price_last(door.legs[place]);
    for (const Exit& exit : problem.exits) price_first(exit.legs[place]);
    const double least = least_price(problem, prices);
    if (least < kInfinite) update_bound(problem, prices, least, packing);
  }
  packing.proven = total >= packing.bound * (1 - kAccuracy);
}

// Solves the linear program as far as the limits allow. Returns its tours with their shares, which may be unequal. Sets
// bound, prices, proven and steps of `packing`.
std::vector<std::pair<double, Tour>> solve(const TourProblem& problem, const PackingLimits& limits, Packing& packing) {
  packing.bound = kInfinite;
  Master master(problem.capacity);
  std::optional<Tour> next = first_tour(problem, limits, packing);
  const std::uint64_t pivot_steps = problem.capacity.size() * problem.capacity.size();
  for (bool first = true; next && (first || packing.steps <= limits.max_steps); first = false) {
    const std::vector<std::uint32_t> loads = loads_of(problem, *next);
    master.enter(std::move(*next), loads);
    std::vector<double> prices = master.prices();
    packing.steps += pivot_steps;
    while (packing.steps <= limits.max_steps && master.enter_slack(prices)) {
      prices = master.prices();
      packing.steps += pivot_steps;
    }
    for (double& price : prices) price = std::max(price, 0.0);
    next = next_tour(problem, limits, prices, master.total(), packing);
  }
  if (!packing.proven) add_cut_bounds(problem, master.total(), packing);
  return master.shares();
}

void use_tours(const TourProblem& problem, std::vector<Tour> tours, Packing& packing) {
  packing.tours = std::move(tours);
  packing.share = even_share(problem, packing.tours);
  packing.total = packing.share * static_cast<double>(packing.tours.size());
}

// Rounds the tours of the linear program to equal shares. For a candidate share, each tour is repeated as often as that
// share fits into the tour's own share; tours with larger shares come first, and there are at most max_tours in all.
// Candidates are the shares of tours divided by whole numbers, and the best one is used.
void use_rounded(const TourProblem& problem, std::vector<std::pair<double, Tour>> shares, std::uint32_t max_tours,
                 Packing& packing) {
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [own, unused] : shares) {
    for (std::uint32_t times = 1; times <= max_tours; ++times) {
      const double share = own / times;
      std::vector<Tour> tours;
      for (const auto& [other, tour] : shares) {
        const double fits = std::min(other / share * (1 + 1e-6), static_cast<double>(max_tours - tours.size()));
        tours.insert(tours.end(), static_cast<std::size_t>(fits), tour);
      }
      const double total = even_share(problem, tours) * static_cast<double>(tours.size());
      const double before = packing.total * (tours.size() < packing.tours.size() ? 1 - kAccuracy : 1 + kAccuracy);
      if (total > before) use_tours(problem, std::move(tours), packing);
    }
  }
  TUTTI_ASSERT(packing.total > 0);
}

// A goal for even_tours(): the number of tours and their total bandwidth.
struct Aim {
  double total = 0;
  std::uint32_t count = 0;
};

// Equal shares are always limited by a resource that they fill completely, so the best share is a capacity divided by a
// whole number. Returns the aims with such shares (with whole numbers up to kMaxLoads) whose total is not above the
// bound, and larger than that of the present packing (or about equal, with at most as many tours). The largest total
// comes first; of equal totals, the fewest tours.
std::vector<Aim> aims_above(const TourProblem& problem, std::uint32_t max_tours, const Packing& packing) {
  std::vector<double> capacities = problem.capacity;
  std::sort(capacities.begin(), capacities.end());
  capacities.erase(std::unique(capacities.begin(), capacities.end()), capacities.end());
  std::vector<Aim> aims;
  for (std::uint32_t count = 1; count <= max_tours; ++count) {
    const double least = packing.total * (count <= packing.tours.size() ? 1 - kAccuracy : 1 + kAccuracy);
    for (double capacity : capacities) {
      const double fewest = std::ceil(count * capacity / packing.bound * (1 - 1e-6));
      for (double loads = std::max(1.0, fewest); count * capacity / loads > least && loads <= kMaxLoads; ++loads) {
        aims.push_back({count * capacity / loads, count});
      }
    }
  }
  const double least_difference = packing.total * kAccuracy;
  std::sort(aims.begin(), aims.end(), [least_difference](const Aim& a, const Aim& b) {
    const double first = std::round(a.total / least_difference), second = std::round(b.total / least_difference);
    return first != second ? first > second : a.count < b.count;
  });
  return aims;
}

// Sets the tours, share and total of `packing` to the best packing with equal shares that it finds. `shares` are the
// tours of the linear program. Adds the number of tried legs to `steps`.
void share_evenly(const TourProblem& problem, const std::vector<std::pair<double, Tour>>& shares,
                  const PackingLimits& limits, Packing& packing, std::uint64_t& steps) {
  use_rounded(problem, shares, limits.max_tours, packing);
  std::uint64_t tried = 0;
  Aim last;
  for (const Aim& aim : aims_above(problem, limits.max_tours, packing)) {
    if (tried >= limits.max_even_steps) break;
    if (aim.count == last.count && aim.total >= last.total * (1 - kAccuracy)) continue;
    last = aim;
    std::optional<std::vector<Tour>> even =
        even_tours(problem, aim.count, aim.total, packing.prices, limits.max_even_steps / 4, tried);
    if (!even) continue;
    use_tours(problem, std::move(*even), packing);
    break;
  }
  steps += tried;
}

// The path types that occur among the possible legs of all these lists, without duplicates, the nearest first.
std::vector<PathType> types_of(const std::vector<const std::vector<Leg>*>& all) {
  std::vector<PathType> types;
  for (const std::vector<Leg>* legs : all) {
    for (const Leg& leg : *legs) {
      if (leg.possible()) types.push_back(leg.type);
    }
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return types;
}

// The limits on path types that are tried: pairs of the farthest permitted type between places and the farthest
// permitted type to the outside, the nearest first. The pair of the two farthest types is left out, because it
// excludes no leg.
std::vector<std::pair<PathType, PathType>> type_limits_of(const TourProblem& problem) {
  std::vector<const std::vector<Leg>*> outside;
  for (const Door& door : problem.doors) outside.push_back(&door.legs);
  for (const Exit& exit : problem.exits) outside.push_back(&exit.legs);
  std::vector<std::pair<PathType, PathType>> kinds;
  std::vector<PathType> between = types_of({&problem.between});
  if (between.empty()) between = {PathType::kLoc};  // there is only one place
  for (PathType inner : between) {
    if (problem.closed) {
      kinds.emplace_back(inner, inner);
      continue;
    }
    for (PathType outer : types_of(outside)) kinds.emplace_back(inner, outer);
  }
  if (!kinds.empty()) kinds.pop_back();
  return kinds;
}

// Returns the problem without the legs of a type that is farther than the limit (`between` places, or to the
// `outside`).
TourProblem without_farther(TourProblem problem, PathType between, PathType outside) {
  const auto cut = [](std::vector<Leg>& legs, PathType farthest) {
    for (Leg& leg : legs) {
      if (leg.type > farthest) leg = {};
    }
  };
  cut(problem.between, between);
  for (Door& door : problem.doors) cut(door.legs, outside);
  for (Exit& exit : problem.exits) cut(exit.legs, outside);
  return problem;
}

}  // namespace

double even_share(const TourProblem& problem, const std::vector<Tour>& tours) {
  std::vector<double> load(problem.capacity.size(), 0);
  for (const Tour& tour : tours) {
    for (std::uint32_t resource : loads_of(problem, tour)) load[resource] += 1;
  }
  double share = kInfinite;
  for (std::size_t i = 0; i < load.size(); ++i) {
    if (load[i] > 0) share = std::min(share, problem.capacity[i] / load[i]);
  }
  return share;
}

Packing best_packing(const TourProblem& problem, const PackingLimits& limits) {
  Packing whole;
  const std::vector<std::pair<double, Tour>> shares = solve(problem, limits, whole);
  if (shares.empty()) return whole;
  std::vector<Packing> found;
  double most = 0;
  for (const auto& [between, outside] : type_limits_of(problem)) {
    if (limits.nearness <= 0 || whole.steps > 4 * limits.max_steps) break;
    Packing packing;
    const TourProblem nearer = without_farther(problem, between, outside);
    const std::vector<std::pair<double, Tour>> some = solve(nearer, limits, packing);
    whole.steps += packing.steps;
    if (some.empty() || packing.bound < most * (1 - limits.nearness)) continue;
    share_evenly(nearer, some, limits, packing, whole.steps);
    most = std::max(most, packing.total);
    found.push_back(std::move(packing));
    if (most >= whole.bound * (1 - limits.nearness)) break;
  }
  if (found.empty() || most < whole.bound * (1 - limits.nearness)) {
    found.emplace_back(whole);
    share_evenly(problem, shares, limits, found.back(), whole.steps);
    most = std::max(most, found.back().total);
  }
  for (Packing& packing : found) {
    if (packing.total < most * (1 - limits.nearness)) continue;
    whole.tours = std::move(packing.tours);
    whole.share = packing.share;
    whole.total = packing.total;
    break;
  }
  return whole;
}

}  // namespace tutti
