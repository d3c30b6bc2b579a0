// The public functions of the verifier. Class Run (run.h) does the work. docs/verifier.md explains the method.
#include "plan/verify/verify.h"

#include <fmt/format.h>

#include <utility>

#include "base/assert.h"
#include "plan/verify/run.h"

namespace tutti {
namespace {

Result<Report> run(const Plan& plan, const VerifyOptions& options, ExpressionLog* log) {
  TUTTI_ASSERT(options.tiles >= 1 && options.calls >= 1);
  TUTTI_ASSERT(!options.own_order_only || !options.windows, "through windows peers touch a rank's memory too");
  const Result<Wiring> wiring = check_structure(plan);
  if (!wiring.ok()) return wiring.error();
  return Run(*wiring, options, log).run_all_calls();
}

std::string print_expression(const ExpressionLog& log, std::uint64_t expression) {
  const std::vector<std::uint64_t>& operands = log.at(expression);
  if (operands.size() == 1) return fmt::format("r{}", operands[0]);
  std::string text(operands.size() - 1, '(');
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) text += "+";
    text += print_expression(log, operands[i]);
    if (i > 0) text += ")";
  }
  return text;
}

}  // namespace

Result<VerifyReport> verify(const Plan& plan, const VerifyOptions& options) {
  const Result<Report> report = run(plan, options, nullptr);
  if (!report.ok()) return report.error();
  return report->counts;
}

Result<VerifyReport> verify_all(const Plan& plan) {
  VerifyReport sum;
  for (const bool in_place : {false, true}) {
    for (const bool windows : {false, true}) {
      const Result<VerifyReport> report = verify(plan, {.in_place = in_place, .windows = windows});
      if (!report.ok()) return report.error();
      sum.steps += report->steps;
      sum.messages += report->messages;
      sum.race_checks += report->race_checks;
    }
  }
  return sum;
}

Result<std::vector<std::string>> addition_order(const Plan& plan) {
  if (!reduces(plan.shape.collective.kind)) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = fmt::format("a {} adds nothing", to_string(plan.shape.collective.kind))};
  }
  ExpressionLog log;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) log[Contributions::leaf_expression(rank)] = {rank};
  const Result<Report> report = run(plan, {.tiles = 1, .calls = 1}, &log);
  if (!report.ok()) return report.error();
  std::vector<std::string> orders;
  for (const std::uint64_t expression : report->expressions) orders.push_back(print_expression(log, expression));
  return orders;
}

}  // namespace tutti
