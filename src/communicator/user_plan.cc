// UserPlan: reads, checks and proves plans of the caller.
#include "communicator/user_plan.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "plan/canonical.h"
#include "plan/limits.h"
#include "plan/verify/verify.h"

namespace tutti {
namespace {

constexpr std::size_t kReadBytes = std::size_t{1} << 16;

// Verifies all four combinations of in place (or not) and windows (or not). Only the last combination, in place and
// with windows, depends on windows_in_place. If `may_choose`, the plan file does not specify windows_in_place, and
// this function chooses it. True saves a copy, because a rank may then let peers read its in-place input directly;
// but then the plan must never overwrite data that a peer may still read. If only that cannot be proved,
// windows_in_place becomes false, and such messages go through slots.
Result<PlanProof> prove_all(Plan& plan, bool may_choose) {
  PlanProof proof;
  for (const bool in_place : {false, true}) {
    for (const bool windows : {false, true}) {
      Result<VerifyReport> report = verify(plan, {.in_place = in_place, .windows = windows});
      if (!report && may_choose && in_place && windows && plan.shape.windows_in_place) {
        plan.shape.windows_in_place = false;
        report = verify(plan, {.in_place = in_place, .windows = windows});
      }
      if (!report) return std::move(report).error();
      proof.steps += report->steps;
      proof.messages += report->messages;
      proof.race_checks += report->race_checks;
    }
  }
  proof.windows_in_place = plan.shape.windows_in_place;
  return proof;
}

PlanDescription describe(PlanFile& file) {
  const PlanShape& shape = file.plan.shape;
  return {.name = std::move(file.name),
          .comment = std::move(file.comment),
          .collective = shape.collective.kind,
          .ranks = shape.collective.ranks,
          .root = shape.collective.root,
          .chunks = shape.chunks,
          .scratch_chunks = shape.scratch_chunks,
          .slots = shape.slots,
          .lanes = shape.lanes,
          .order = shape.order};
}

Error system_error(const std::string& what, int number) {
  return {.code = ErrorCode::kSystem, .message = fmt::format("{}: {}", what, std::generic_category().message(number))};
}

// Returns the whole file. A file that is too long is read only until it exceeds the limit, so that the parser can
// report it.
Result<std::string> read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return system_error(fmt::format("cannot open the plan {}", path), errno);
  std::string text;
  std::size_t bytes = 0;
  do {
    text.resize(bytes + kReadBytes);
    errno = 0;
    const std::size_t got = std::fread(text.data() + bytes, 1, kReadBytes, file);
    bytes += got;
    if (got == 0) break;
  } while (bytes <= PlanLimits::kJsonBytes);
  const int failed = std::ferror(file) != 0 ? errno : 0;
  std::fclose(file);
  if (failed != 0) return system_error(fmt::format("cannot read the plan {}", path), failed);
  text.resize(bytes);
  return text;
}

}  // namespace

namespace detail {

Result<UserPlan> UserPlanData::prove(PlanFile file) {
  TUTTI_TRY(check_limits(file.plan));
  Result<PlanProof> proof = prove_all(file.plan, !file.says_windows_in_place);
  if (!proof) return std::move(proof).error();
  auto data = std::make_shared<UserPlanData>();
  data->plan = canonical(file.plan);
  data->description = describe(file);
  data->proof = *proof;
  data->digest = tutti::digest(data->plan);
  return UserPlan(std::move(data));
}

Generator UserPlanData::generator(const UserPlan& plan) {
  return {.shape = plan.data_->plan.shape,
          .build = [data = plan.data_](const PlanShape&, std::uint32_t rank) { return data->plan.ranks.at(rank); }};
}

}  // namespace detail

namespace {

Result<UserPlan> read_plan(std::string_view text) {
  Result<PlanFile> file = parse_plan(text);
  if (!file) return std::move(file).error();
  return detail::UserPlanData::prove(*std::move(file));
}

Result<UserPlan> load_plan(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text) return std::move(text).error();
  Result<UserPlan> plan = read_plan(*text);
  if (plan) return plan;
  Error error = std::move(plan).error();
  error.message = fmt::format("{}: {}", path, error.message);
  return error;
}

}  // namespace

Result<UserPlan> UserPlan::parse_json(std::string_view text) {
  return guarded("UserPlan::parse_json", [&] { return read_plan(text); });
}

Result<UserPlan> UserPlan::load(const std::string& path) {
  return guarded("UserPlan::load", [&] { return load_plan(path); });
}

UserPlan::UserPlan(std::shared_ptr<const detail::UserPlanData> data) : data_(std::move(data)) {}
UserPlan::UserPlan(const UserPlan&) = default;
UserPlan& UserPlan::operator=(const UserPlan&) = default;
UserPlan::~UserPlan() = default;

const PlanDescription& UserPlan::description() const { return data_->description; }
std::string_view UserPlan::name() const { return data_->description.name; }
const PlanProof& UserPlan::proof() const { return data_->proof; }
std::uint32_t UserPlan::digest() const { return data_->digest; }

std::string UserPlan::to_json() const {
  return tutti::to_json({.plan = data_->plan, .name = data_->description.name, .comment = data_->description.comment});
}

bool UserPlan::operator==(const UserPlan& other) const {
  return data_ == other.data_ || (data_->description == other.data_->description && data_->plan == other.data_->plan);
}

}  // namespace tutti
