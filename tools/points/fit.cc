// parameter(), set_parameter() and fit(), which fits the parameters of a system to some of its points.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "base/assert.h"
#include "tools/points/points.h"

namespace tutti::tool {
namespace {

Error invalid(std::string message) {
  return {.code = ErrorCode::kInvalidArgument, .scope = ErrorScope::kCall, .rank = -1, .message = std::move(message)};
}

// Returns pointers to the fields of `p` for which `name` stands. A name of the level `nic` stands for two fields,
// because `spine` must have the same value. The result is empty if no parameter that can be fitted has this name.
std::vector<double*> pointers_to(Parameters& p, std::string_view name) {
  if (name == "launch_us") return {&p.launch_us};
  if (name == "step_us") return {&p.step_us};
  if (name == "switch_latency_us") return {&p.switch_latency_us};
  if (name == "switch_gbytes_per_s") return {&p.switch_gbytes_per_s};
  if (name == "reduce_gbytes_per_s") return {&p.reduce_gbytes_per_s};
  constexpr Level kLevelsFitted[] = {Level::kMemory, Level::kNvLink, Level::kPcie, Level::kNic};
  for (const Level level : kLevelsFitted) {
    for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128, Protocol::kWindow}) {
      const std::string start = fmt::format("{}.{}.", to_string(level), to_string(protocol));
      if (!name.starts_with(start)) continue;
      const std::string_view field = name.substr(start.size());
      std::vector<double*> found;
      for (const Level each : {level, level == Level::kNic ? Level::kSpine : level}) {
        MessageCost& cost = p.cost(each, protocol);
        if (field == "post_us") found.push_back(&cost.post_us);
        if (field == "latency_us") found.push_back(&cost.latency_us);
        if (field == "gap_us") found.push_back(&cost.gap_us);
        if (field == "gbytes_per_s") found.push_back(&cost.gbytes_per_s);
        if (field == "channel_gbytes_per_s") found.push_back(&cost.channel_gbytes_per_s);
      }
      return found;
    }
  }
  return {};
}

class Fit {
 public:
  Fit(const System& system, const Predictor& predictor, const std::vector<Point>& points)
      : system_(system), predictor_(predictor), points_(points) {}

  // The sum of |log(predicted / measured)| over the points with `fitted` true. Errors: those of
  // Predictor::predict().
  Result<double> misfit(const Parameters& parameters) const {
    double sum = 0;
    for (const Point& point : points_) {
      if (!point.fitted) continue;
      const Result<Predicted> predicted = predictor_.predict(point, parameters);
      if (!predicted.ok()) return predicted.error();
      sum += std::abs(std::log(predicted->time_us / point.time_us));
    }
    return sum;
  }

  // Improves `parameters` and returns the misfit that is left. In each round, every fitted parameter is multiplied or
  // divided by e^step, if that reduces the misfit. If a round changes nothing, the step is halved. The search ends when
  // the step is not above kLastStep.
  Result<double> descend(Parameters& parameters) const {
    constexpr double kFirstStep = 0.5, kLastStep = 0.01;  // changes of the natural logarithm of a parameter
    Result<double> best = misfit(parameters);
    for (double step = kFirstStep; best.ok() && step > kLastStep;) {
      bool better = false;
      for (const std::string& name : system_.fitted) {
        for (const double factor : {std::exp(step), std::exp(-step)}) {
          Parameters tried = parameters;
          TUTTI_TRY(set_parameter(tried, name, *parameter(tried, name) * factor));
          const Result<double> cost = misfit(tried);
          if (!cost.ok()) return cost.error();
          if (*cost >= *best) continue;
          parameters = std::move(tried);
          best = cost;
          better = true;
          break;
        }
      }
      if (!better) step /= 2;
    }
    return best;
  }

 private:
  const System& system_;
  const Predictor& predictor_;
  const std::vector<Point>& points_;
};

}  // namespace

Result<double> parameter(const Parameters& parameters, std::string_view name) {
  Parameters copy = parameters;
  const std::vector<double*> pointers = pointers_to(copy, name);
  if (pointers.empty()) return invalid(fmt::format("{}: no parameter has this name", name));
  return *pointers[0];
}

Status set_parameter(Parameters& parameters, std::string_view name, double value) {
  const std::vector<double*> pointers = pointers_to(parameters, name);
  if (pointers.empty()) return invalid(fmt::format("{}: no parameter has this name", name));
  // If the bandwidth of a rank is set, that of one channel is scaled by the same factor.
  constexpr std::string_view kAll = ".gbytes_per_s";
  if (name.ends_with(kAll)) {
    const std::string one = std::string(name.substr(0, name.size() - kAll.size())) + ".channel_gbytes_per_s";
    for (double* const pointer : pointers_to(parameters, one)) *pointer *= value / *pointers[0];
  }
  for (double* const pointer : pointers) *pointer = value;
  return {};
}

Result<Parameters> fit(const System& system, const Predictor& predictor, const std::vector<Point>& points,
                       std::uint32_t starts) {
  const Fit fitting(system, predictor, points);
  std::mt19937_64 random(1);
  Parameters best;
  double least = std::numeric_limits<double>::infinity();
  for (std::uint32_t start = 0; start < starts; ++start) {
    Parameters tried = default_gpu_parameters(system.capability);
    for (const std::string& name : system.fitted) {
      const double part = static_cast<double>(random() >> 11) / static_cast<double>(1ull << 53);
      const double factor = start == 0 ? 1 : std::pow(10.0, 2 * part - 1);
      TUTTI_TRY(set_parameter(tried, name, *parameter(tried, name) * factor));
    }
    const Result<double> cost = fitting.descend(tried);
    if (!cost.ok()) return cost.error();
    if (*cost >= least) continue;
    least = *cost;
    best = std::move(tried);
  }
  best.name = system.name;
  return best;
}

}  // namespace tutti::tool
