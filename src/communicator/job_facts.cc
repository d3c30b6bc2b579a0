#include "communicator/job_facts.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "communicator/measurement/first_choices.h"
#include "selection/tuning.h"
#include "topology/host.h"

namespace tutti::detail {
namespace {

// Returns the process and the CPUs of a rank as a text that ends with a bar. They are left out if the job is too large
// for the measurement, or if there are so many CPUs (more than about 1,000) that the text would be too long for a
// round.
std::string process_of_rank(const JobContext& job_context, std::uint32_t ranks) {
  constexpr std::size_t kMostTextBytes = 280;
  const std::string text = fmt::format("{},{}|", getpid(), pack_cpus(job_context.cpus));
  return ranks <= kMostMeasuringRanks && text.size() <= kMostTextBytes ? text : "|";
}

// Removes the text before the first `mark`, and the mark, from `text`, and returns the text before the mark. Without a
// mark it removes and returns everything.
std::string_view take_until(char mark, std::string_view& text) {
  const std::string_view taken = text.substr(0, text.find(mark));
  text.remove_prefix(std::min(text.size(), taken.size() + 1));
  return taken;
}

std::uint32_t shared_cores(const std::vector<std::string>& blobs) {
  std::set<std::string_view> processes;
  std::vector<std::vector<bool>> cpus;
  for (std::string_view rest : blobs) {
    std::string_view rank = take_until('|', rest);
    const std::string_view process = take_until(',', rank);
    if (process.empty() || !processes.insert(process).second) return 0;
    cpus.push_back(unpack_cpus(rank));
  }
  return cores_of(cpus, 0);
}

}  // namespace

Result<JobFacts> exchange_facts(JobContext& job_context, std::uint32_t ranks, const Gather& gather) {
  JobFacts facts;
  Result<std::string> mine = process_of_rank(job_context, ranks);
  if (job_context.job_rank == 0) {
    const Log log(job_context.config.log_level, 0);
    auto tuning = own_tuning(job_context.config, job_context.cpu_limit, log);
    if (tuning) tuning->measure = may_measure(job_context, ranks);
    if (!tuning) {
      mine = tuning.error();
    } else if (getrandom(&facts.id, sizeof(facts.id), 0) == static_cast<ssize_t>(sizeof(facts.id))) {
      mine = fmt::format("{}{}|{}", *mine, facts.id, pack(*tuning));
    } else {
      mine = Error{ErrorCode::kSystem, ErrorScope::kCommunicator, -1, "the system gives no random numbers"};
    }
  }
  auto blobs = gather_or_fail(gather, mine);
  if (!blobs) return blobs.error();
  facts.cores = shared_cores(*blobs);
  std::string_view rest = blobs->front();
  take_until('|', rest);
  const std::string_view id = take_until('|', rest);
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), facts.id);
  if (error != std::errc() || end != id.data() + id.size()) {
    return Error{ErrorCode::kRefused, ErrorScope::kCommunicator, 0, "rank 0 sent a malformed communicator id"};
  }
  auto tuning = unpack(rest);
  if (!tuning) return tuning.error();
  job_context.tuning = std::make_shared<const Tuning>(*std::move(tuning));
  return facts;
}

}  // namespace tutti::detail
