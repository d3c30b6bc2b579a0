#include "communicator/measurement/first_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/exceptions.h"
#include "base/mix_bits.h"
#include "communicator/communicator_impl.h"
#include "communicator/measurement/choice_measurer.h"
#include "model/calibration.h"
#include "model/fit.h"
#include "model/fit_choices.h"

namespace tutti::detail {
namespace {

// Each measurement has one sample in each of three passes, and the shortest counts, so that a slow moment of the
// machine does not matter.
constexpr int kPasses = 3;
constexpr ChoiceSamples kSamples{.samples = 1, .sample_us = 150, .most_us = 100'000, .most_waiting = 0.1};
// The longest timeout of a call of the measurement. It is short, because a failed measurement must not cost much.
constexpr std::chrono::milliseconds kTimeout{500};
// A job whose set-up has less time than this does not measure.
constexpr std::chrono::milliseconds kLeastSetUpTimeout{5'000};

Error not_measured(std::string why) { return {ErrorCode::kTimeout, ErrorScope::kCall, -1, std::move(why)}; }

// A communicator of all ranks for the measurement. It has the given `attach` and the default number and size of slots,
// makes no recording, has no uniform calls, and logs only errors.
Result<std::unique_ptr<Communicator>> make_one(const JobContext& job_context, const std::vector<std::uint32_t>& members,
                                               std::uint64_t id, AttachPolicy attach, const Gather& gather) {
  auto own = std::make_shared<JobContext>(job_context);  // shared by the parts of the communicator
  own->config.attach = attach;
  own->config.slots = Config().slots;
  own->config.slot_bytes.reset();
  own->config.record = 0;
  own->config.uniform = UniformCalls::kNone;
  own->config.log_level = std::min(own->config.log_level, LogLevel::kError);
  const std::uint32_t rank = own->job_rank;
  return make_communicator({.rank = rank,
                            .ranks = static_cast<std::uint32_t>(members.size()),
                            .job_context = std::move(own),
                            .members = members,
                            .id = id},
                           std::min(job_context.config.timeout, kTimeout), gather);
}

// Measures with two communicators, one for each value of TUTTI_ATTACH that is compared. If the system forbids
// cross-memory attach, measures only short calls (ChoiceGroups::kShortCalls). Errors: kTimeout if there was not enough
// time or the machine was too busy; kUnsupported if the ranks do not share memory; and those of ChoiceMeasurer::run().
Result<std::vector<Measurement>> measure(Communicator& by_messages, Communicator& by_calls) {
  const Transport& transport = *CommunicatorImpl::of(by_calls).environment().transport;
  if (!transport.shares_memory()) {
    return Error{ErrorCode::kUnsupported, ErrorScope::kCall, -1, "the ranks do not share memory"};
  }
  const bool permitted = transport.attachment() == Attachment::kCalls;
  ChoiceMeasurer measurer(&by_messages, permitted ? &by_calls : nullptr, kSamples);
  for (int pass = 0; pass < kPasses; ++pass) {
    TUTTI_TRY(measurer.run(permitted ? ChoiceGroups::kAll : ChoiceGroups::kShortCalls));
    if (measurer.has_ended()) return not_measured("it is busy, or the calls take too long");
  }
  const double noise = noise_of_passes(measurer.measured());
  if (noise < kMuchNoise) return shortest_of(measurer.measured());
  return not_measured(fmt::format(
      "it is busy: in half of the measurements, the middle pass took at least {:.1f} times as long as the fastest",
      noise));
}

Result<std::vector<Measurement>> make_and_measure(const JobContext& job_context,
                                                  const std::vector<std::uint32_t>& members, std::uint64_t id,
                                                  const Gather& gather) {
  const auto by_messages = make_one(job_context, members, mix_bits(id + 1), AttachPolicy::kOff, gather);
  const auto by_calls = make_one(job_context, members, mix_bits(id + 2), AttachPolicy::kCalls, gather);
  if (!by_messages) return by_messages.error();
  if (!by_calls) return by_calls.error();
  try {
    return measure(**by_messages, **by_calls);
  } catch (...) {  // the other ranks get an error when the communicators are destroyed
    return error_of_exception(ErrorScope::kCall, static_cast<std::int32_t>(job_context.job_rank), "the measurement");
  }
}

// Called on rank 0. Stores what was measured, and returns the new tuning.
Result<Tuning> store(const JobContext& job_context, std::uint32_t ranks, std::uint32_t cores,
                     const Result<std::vector<Measurement>>& measured, const std::string& path) {
  if (!measured) return measured.error();
  const std::uint32_t numbers[] = {ranks};
  const std::vector<RankChoices> found = fit_choices(*measured, numbers, cores);
  if (found.empty()) return not_measured("nothing was measured");
  Tuning tuning = *job_context.tuning;
  tuning.parameters.choices.push_back(found.front());
  TUTTI_TRY(check_size(tuning));
  TUTTI_TRY(add_choices(path, found.front(), process_environment()));
  Log(job_context.config.log_level, 0)
      .write(LogLevel::kInfo, "measured this machine with {} ranks: {}; stored in {} (TUTTI_MEASURE=0: do not measure)",
             ranks, to_string(found.front().choices), path);
  return tuning;
}

// Called on rank 0. Takes the lock, which another job may have held until now. That job may have stored its result, so
// the file is read again.
Result<Tuning> take_lock(const JobContext& job_context, const std::string& path, std::optional<CalibrationLock>& lock) {
  if (path.empty()) return not_measured("there is no folder for the result (HOME, XDG_CACHE_HOME)");
  auto taken = CalibrationLock::take(path);
  if (!taken) return taken.error();
  lock.emplace(*std::move(taken));
  const auto stored = load_calibration("", process_environment());
  if (!stored) return stored.error();
  Tuning tuning = *job_context.tuning;
  if (!*stored) return tuning;
  Tuning with_file = tuning;
  with_file.parameters = **stored;
  TUTTI_TRY(check_size(with_file));  // otherwise own_tuning() has not used the file, and would not use a longer one
  tuning.parameters.choices = (*stored)->choices;
  TUTTI_TRY(check_size(tuning));
  return tuning;
}

// A round in which rank 0 sends `mine`, its new tuning, which then replaces that of each rank. If it is an error, rank
// 0 logs it, and the tuning stays as it is. Returns whether rank 0 had a tuning.
Result<bool> replace_tuning(JobContext& job_context, const Result<Tuning>& mine, const Gather& gather) {
  if (job_context.job_rank == 0 && !mine) {
    Log(job_context.config.log_level, 0)
        .write(LogLevel::kInfo, "this machine is not measured: {}", mine.error().message);
  }
  auto blobs = gather(job_context.job_rank == 0 && mine ? pack(*mine) : "");
  if (!blobs) return blobs.error();
  if (blobs->front().empty()) return false;
  auto tuning = unpack(blobs->front());
  if (!tuning) return tuning.error();
  job_context.tuning = std::make_shared<const Tuning>(*std::move(tuning));  // shared by the rank's communicators
  return true;
}

}  // namespace

bool may_measure(const JobContext& job_context, std::uint32_t ranks) {
  const Config& config = job_context.config;
  return ranks >= 2 && ranks <= kMostMeasuringRanks && config.measure && config.setup_timeout >= kLeastSetUpTimeout &&
         (job_context.cpu_limit == 0 || job_context.cpu_limit >= ranks) && config.tune_file.empty() &&
         config.attach == AttachPolicy::kAuto && !config.checksum && !network_only(config.transport) &&
         !job_context.devices && !on_several_machines(job_context);
}

bool needs_measurement(const Tuning& tuning, std::uint32_t ranks, std::uint32_t cores) {
  const std::vector<RankChoices>& there = tuning.parameters.choices;
  return tuning.measure && ranks <= cores && there.size() < kMostRankChoices && !has_choices(there, ranks, cores);
}

Status measure_first_choices(JobContext& job_context, const std::vector<std::uint32_t>& members, std::uint32_t cores,
                             std::uint64_t id, const Gather& gather) {
  const auto ranks = static_cast<std::uint32_t>(members.size());
  const bool stores = job_context.job_rank == 0;
  const std::string path = stores ? calibration_path("", process_environment()) : "";
  std::optional<CalibrationLock> lock;  // rank 0 holds it until this function returns
  const auto locked = stores ? take_lock(job_context, path, lock) : *job_context.tuning;
  const auto goes_on = replace_tuning(job_context, locked, gather);
  if (!goes_on) return goes_on.error();
  if (!*goes_on || !needs_measurement(*job_context.tuning, ranks, cores)) return {};
  const auto measured = make_and_measure(job_context, members, id, gather);
  if (!stores && !measured) {
    Log(job_context.config.log_level, static_cast<std::int32_t>(job_context.job_rank))
        .write(LogLevel::kInfo, "the measurement has failed on this rank: {}", measured.error().message);
  }
  const auto stored = stores ? store(job_context, ranks, cores, measured, path) : *job_context.tuning;
  const auto replaced = replace_tuning(job_context, stored, gather);
  return replaced ? Status() : replaced.error();
}

}  // namespace tutti::detail
