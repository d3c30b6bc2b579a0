// Makes the first communicators of a job: either for one rank (create, create_async), or for all ranks, which are then
// in this process (create_all).
#include "communicator/create.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "base/assert.h"
#include "base/config.h"
#include "base/exceptions.h"
#include "base/loopback.h"
#include "base/mix_bits.h"
#include "base/thread.h"
#include "base/thread_group.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/job_key.h"
#include "bootstrap/rendezvous.h"
#include "communicator/communicator_impl.h"
#include "communicator/job_facts.h"
#include "communicator/measurement/first_choices.h"
#include "communicator/measurement/path_test.h"
#include "device/rank_device.h"
#include "job/data_paths.h"
#include "job/job_context.h"
#include "selection/tuning.h"
#include "topology/host.h"
#include "tutti/communicator.h"

namespace tutti {
namespace {

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

// Returns the settings. They have three sources, in ascending order of precedence: `defaults`, environment variables,
// `options`.
Result<Config> config_for(const CommunicatorOptions& options, const Variables& defaults) {
  auto config = parse_config(with_defaults(environment_variables(), defaults));
  if (!config) return config.error();
  if (!options.transport.empty()) {
    const auto transport = parse_transport(options.transport);
    if (!transport)
      return invalid(fmt::format("transport \"{}\" is none of auto, shm, tcp, verbs, ucx", options.transport));
    config->transport = *transport;
  }
  if (!options.attach.empty()) {
    const auto attach = parse_attach(options.attach);
    if (!attach) return invalid(fmt::format("attach \"{}\" is none of auto, calls, off", options.attach));
    config->attach = *attach;
  }
  if (!options.device_calls.empty()) {
    const auto policy = parse_device_calls(options.device_calls);
    if (!policy) return invalid(fmt::format("device_calls \"{}\" is none of auto, staged", options.device_calls));
    config->device_calls = *policy;
  }
  if (options.node_id.size() > 64) return invalid("the node id is longer than 64 bytes");
  if (options.uniform && *options.uniform > UniformCalls::kAll) return invalid("uniform is not one of UniformCalls");
  if (options.uniform) config->uniform = *options.uniform;
  if (options.encrypt) config->encrypt = *options.encrypt;
  if (options.checksum) config->checksum = *options.checksum;
  if (!options.node_id.empty()) config->node_id = options.node_id;
  if (!options.interface.empty()) config->interface = options.interface;
  // Communicator::grow() takes the key from the Config, because the options are gone then.
  if (!options.job_key_file.empty()) config->job_key_file = options.job_key_file;
  if (!options.job_key.empty()) {
    config->job_key_file.clear();
    config->job_key.clear();
    for (const char byte : options.job_key) config->job_key += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  if (options.setup_timeout.count() < 0 || options.timeout.count() < 0) return invalid("a timeout is negative");
  if (options.setup_timeout.count() > 0) config->setup_timeout = options.setup_timeout;
  if (options.timeout.count() > 0) config->timeout = options.timeout;
  return config;
}

std::vector<std::uint32_t> all_ranks(std::uint32_t ranks) {
  std::vector<std::uint32_t> all(ranks);
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

Result<std::unique_ptr<Communicator>> first_communicator(const std::shared_ptr<JobContext>& job_context,
                                                         std::uint32_t rank, std::uint32_t ranks,
                                                         const Gather& gather) {
  const auto facts = detail::exchange_facts(*job_context, ranks, gather);
  if (!facts) return facts.error();
  const std::vector<std::uint32_t> members = all_ranks(ranks);
  if (detail::needs_measurement(*job_context->tuning, ranks, facts->cores)) {
    TUTTI_TRY(detail::measure_first_choices(*job_context, members, facts->cores, facts->id, gather));
  }
  if (job_context->config.selftest) {
    // An id of its own, because each communicator of a job has one.
    TUTTI_TRY(detail::test_paths(*job_context, members, mix_bits(facts->id), gather));
  }
  return detail::make_communicator(
      {.rank = rank, .ranks = ranks, .job_context = job_context, .members = members, .id = facts->id},
      job_context->config.timeout, gather);
}

bool meets_by_id(const RendezvousOptions& rendezvous) {
  return rendezvous.unique_id || rendezvous.pmi_fd || rendezvous.pmix;
}

// Sets the key with which the ranks and the rendezvous server authenticate each other. A unique id, whether the
// caller passed it or a launcher's store provides it, contains a key of its own; a configured key is then mixed into
// that key.
Status add_key(const CommunicatorOptions& options, const Config& config, RendezvousOptions& rendezvous) {
  auto given = key_of_options(options.job_key, options.job_key_file, "CommunicatorOptions");
  if (!given) return given.error();
  if (meets_by_id(rendezvous)) {
    auto configured =
        *given ? std::move(given) : configured_key(config.job_key_file, "TUTTI_JOB_KEY_FILE", config.job_key);
    if (!configured) return configured.error();
    if (*configured) rendezvous.origin += "; key: the unique id and " + (*configured)->origin;
    rendezvous.configured_key = *std::move(configured);
    return {};
  }
  auto key = *given ? Result<JobKey>(**std::move(given))
                    : find_job_key(config.job_key_file, "TUTTI_JOB_KEY_FILE", config.job_key);
  if (!key) return key.error();
  rendezvous.origin += "; key: " + key->origin;
  rendezvous.key = *std::move(key);
  return {};
}

// Warns on rank 0, once per process, if ranks on several machines encrypt but their only secret is the one in the
// unique id. Such an id has travelled outside of Tutti, for example through a launcher's store, and Tutti cannot tell
// whether it was protected there.
void warn_of_store(const RendezvousOptions& rendezvous, const JobContext& job_context) {
  static std::atomic<bool> warned{false};
  if (!rendezvous.encrypt || !meets_by_id(rendezvous) || rendezvous.configured_key || !on_several_machines(job_context))
    return;
  if (rendezvous.rank != 0 || warned.exchange(true)) return;
  Log(job_context.config.log_level, rendezvous.rank)
      .write(LogLevel::kWarn,
             "encryption is on, but its only secret is in the unique id: whoever can read the store through which the "
             "id went (torch's, the launcher's) can join the job or come between its ranks; {}",
             how_to_give_a_key());
}

Error no_random_bytes() { return {ErrorCode::kSystem, ErrorScope::kCall, -1, "the system gives no random bytes"}; }

// The device of each rank, indexed by rank, for a process that has all ranks.
Result<std::vector<std::shared_ptr<detail::RankDevice>>> find_devices(const CommunicatorOptions& options,
                                                                      std::uint32_t ranks) {
  if (!options.devices.empty() && options.devices.size() != ranks) {
    return invalid(
        fmt::format("{} devices are given for {} ranks: give one for each, or none", options.devices.size(), ranks));
  }
  // Ranks on the same GPU share one RankDevice.
  std::map<std::optional<std::int32_t>, std::shared_ptr<detail::RankDevice>> found;
  std::vector<std::shared_ptr<detail::RankDevice>> devices;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto wanted = options.devices.empty() ? options.device : std::optional(options.devices[rank]);
    if (!found.contains(wanted)) {
      auto device = detail::RankDevice::find(wanted);
      if (!device) return device.error();
      found[wanted] = std::move(*device);
    }
    devices.push_back(found[wanted]);
  }
  return devices;
}

// Opens the TCP listener of a process that has all ranks.
Status listen_for_all(JobContext& job_context, std::uint32_t ranks) {
  Key key{};
  if (!random_bytes(key)) return no_random_bytes();
  const PortRange& ports = job_context.config.port_range;
  auto endpoint = TcpEndpoint::listen({.address = loopback_address(),
                                       .first_port = ports.first,
                                       .last_port = ports.last,
                                       .key = key,
                                       .encrypt = job_context.config.encrypt});
  if (!endpoint) return endpoint.error();
  job_context.endpoint = *endpoint;
  job_context.tcp_addresses.assign(ranks, job_context.endpoint->address());
  return {};
}

// A set-up round of a communicator of one rank.
Result<std::vector<std::string>> gather_alone(const std::string& blob) { return std::vector<std::string>{blob}; }

// Runs the set-up rounds between the threads of one process, one thread per rank. A thread that will miss a round,
// because an exception was thrown, must call give_up(). Otherwise the others would wait for it for ever.
class InProcessGather {
 public:
  explicit InProcessGather(std::uint32_t ranks) : blobs_(ranks) {}
  // Ends the current round and all future ones with the error `why`, because some rank will not take part any more. If
  // several ranks give up, the first error is used.
  void give_up(const Error& why) noexcept {
    const std::scoped_lock lock(mutex_);
    if (!given_up_) given_up_ = copy_of(why);
    changed_.notify_all();
  }
  bool given_up() {
    const std::scoped_lock lock(mutex_);
    return given_up_.has_value();
  }
  Result<std::vector<std::string>> all_gather(std::uint32_t rank, const std::string& blob) {
    std::unique_lock lock(mutex_);
    if (given_up_) return *given_up_;
    const std::uint64_t round = round_;
    blobs_[rank] = blob;
    if (present_ + 1 == blobs_.size()) {
      result_ = blobs_;  // if this copy throws, the rank has not joined the round
      present_ = 0;
      ++round_;
      changed_.notify_all();
    } else {
      ++present_;
      changed_.wait(lock, [&] { return round_ != round || given_up_; });
      if (round_ == round) return *given_up_;
    }
    // This is still the result of this round, because the next round cannot complete before this rank joins it.
    return result_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> blobs_;
  std::vector<std::string> result_;
  std::uint64_t round_ = 0;
  std::size_t present_ = 0;
  std::optional<Error> given_up_;
};

}  // namespace

namespace detail {
namespace {

Result<std::unique_ptr<Communicator>> join_job(const Config& config, const CommunicatorOptions& options,
                                               std::shared_ptr<const std::atomic<bool>> stop) {
  auto rendezvous = resolve_rendezvous(options, config, process_environment());
  if (!rendezvous) return rendezvous.error();
  rendezvous->stop = std::move(stop);
  rendezvous->log_level = config.log_level;
  if (rendezvous->size > 1) TUTTI_TRY(add_key(options, config, *rendezvous));
  const auto rank = static_cast<std::uint32_t>(rendezvous->rank);
  const auto ranks = static_cast<std::uint32_t>(rendezvous->size);
  Log(config.log_level, rendezvous->rank).write(LogLevel::kInfo, "rendezvous settings from: {}", rendezvous->origin);
  std::unique_ptr<Bootstrap> bootstrap;
  Gather gather = gather_alone;
  std::string address = loopback_address();
  Key key{};
  if (ranks == 1 && !random_bytes(key)) return no_random_bytes();
  if (ranks > 1) {
    auto met = tcp_bootstrap(*rendezvous);
    if (!met) return met.error();
    bootstrap = std::move(*met);
    key = bootstrap->key();
    gather = Gather([&](const std::string& blob) { return bootstrap->all_gather(blob); },
                    [&] { return bootstrap->has_failed(); });
    auto listen_at = data_address(config, bootstrap->local_address());
    // All ranks exchange their addresses or errors, so that a missing network interface on one rank fails all ranks.
    auto agreed = gather_or_fail(gather, listen_at);
    if (!agreed) return agreed.error();
    const bool met_here = bootstrap->server_is_here() && config.interface.empty();
    auto reachable = met_here ? route_to_others(*listen_at, *agreed) : listen_at;
    if (!reachable) return reachable.error();
    address = *std::move(reachable);
  }
  auto job_context = make_job_context(config, rank, ranks, address, key, rendezvous->timeout_ms, gather,
                                      detail::RankDevice::find(options.device));
  if (!job_context) return job_context.error();
  warn_of_store(*rendezvous, **job_context);
  auto communicator = first_communicator(*job_context, rank, ranks, gather);
  if (communicator.ok() && bootstrap != nullptr) bootstrap->set_succeeded();
  return communicator;
}

// Makes the communicators of all ranks, each in a thread of its own, which ends when the communicator is complete or
// its set-up has failed. If the set-up of a rank throws, that rank misses some rounds, so the others are notified by
// give_up().
Result<std::vector<std::unique_ptr<Communicator>>> make_in_threads(
    const JobContext& common, const std::vector<std::shared_ptr<RankDevice>>& devices) {
  const auto ranks = static_cast<std::uint32_t>(devices.size());
  const auto relay = std::make_shared<InProcessRelay>();  // shared by the ranks' exchanges
  InProcessGather in_process_gather(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators(ranks);
  std::vector<std::optional<Error>> errors(ranks);
  const auto make_one = [&](std::uint32_t rank) -> Result<std::unique_ptr<Communicator>> {
    auto job_context = std::make_shared<JobContext>(common);  // shared by the rank's communicators
    job_context->job_rank = rank;
    job_context->device = devices[rank];
    job_context->exchange = std::make_shared<InProcessExchange>(relay, rank);
    const Gather gather([&](const std::string& blob) { return in_process_gather.all_gather(rank, blob); },
                        [&] { return in_process_gather.given_up(); });
    return first_communicator(job_context, rank, ranks, gather);
  };
  const auto body = [&](std::uint32_t rank) noexcept {
    try {
      auto made = make_one(rank);
      if (made) communicators[rank] = std::move(*made);
      if (!made) errors[rank] = std::move(made).error();
    } catch (...) {
      errors[rank] = error_of_exception(ErrorScope::kCall, static_cast<std::int32_t>(rank), "create_all");
      in_process_gather.give_up(*errors[rank]);
    }
  };
  ThreadGroup threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    try {
      threads.add([&body, rank] { body(rank); });
    } catch (...) {
      return error_of_exception(ErrorScope::kCall, static_cast<std::int32_t>(rank), "no thread can be started");
    }
  }
  threads.open();
  threads.join();
  for (std::optional<Error>& error : errors) {
    if (error) return *std::move(error);
  }
  return communicators;
}

Result<std::vector<std::unique_ptr<Communicator>>> make_all(std::int32_t size, const CommunicatorOptions& options,
                                                            std::int32_t nodes, const Variables& defaults) {
  auto config = config_for(options, defaults);
  if (!config) return config.error();
  if (size < 1 || size > 1024)
    return invalid(fmt::format("size {} is outside 1..1024, the limit for one process", size));
  if (nodes < 1 || nodes > size)
    return invalid(fmt::format("{} machines are outside 1..{}, the number of ranks", nodes, size));
  if (nodes > 1 && config->transport == TransportPolicy::kShm) {
    return invalid("transport \"shm\" cannot connect ranks on several machines: use auto or tcp");
  }
  const auto ranks = static_cast<std::uint32_t>(size);
  JobContext common;
  common.config = *config;
  HostTopology host = discover_host();
  common.cpus = std::move(host.cpus);
  common.cpu_limit = host.cpu_limit;
  common.clock = std::make_shared<SteadyClock>();
  common.plan_cache = std::make_shared<VerifiedPlanCache>(config->verify_plans);
  common.recordings = open_recordings(*config, 0);
  auto devices = find_devices(options, ranks);
  if (!devices) return devices.error();
  common.devices = std::any_of(devices->begin(), devices->end(), [](const auto& one) { return one != nullptr; });
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto node = [&](std::uint32_t r) { return std::uint64_t{r} * static_cast<std::uint32_t>(nodes) / ranks; };
    const bool first = rank == 0 || node(rank) != node(rank - 1);
    common.machines.push_back(first ? rank : common.machines.back());
  }
  if (nodes > 1 || network_only(config->transport)) {
    TUTTI_TRY(listen_for_all(common, ranks));
    auto maker = detail::find_data_path(*config, Log(config->log_level, 0));
    if (!maker) return maker.error();
    common.path_maker = *std::move(maker);
    common.path_offers.assign(ranks, common.path_maker != nullptr ? common.path_maker->offer() : "");
  }
  return make_in_threads(common, *devices);
}

}  // namespace

Result<std::unique_ptr<Communicator>> create(const CommunicatorOptions& options, const Variables& defaults,
                                             std::shared_ptr<const std::atomic<bool>> stop) {
  return guarded("create", [&]() -> Result<std::unique_ptr<Communicator>> {
    auto config = config_for(options, defaults);
    if (!config) return config.error();
    return join_job(*config, options, std::move(stop));
  });
}

Result<std::unique_ptr<Communicator>> create_with(const Config& config, const CommunicatorOptions& options,
                                                  std::shared_ptr<const std::atomic<bool>> stop) {
  return guarded("create", [&] { return join_job(config, options, std::move(stop)); });
}

Result<std::vector<std::unique_ptr<Communicator>>> create_all(std::int32_t size, const CommunicatorOptions& options,
                                                              std::int32_t nodes, const Variables& defaults) {
  return guarded("create_all", [&] { return make_all(size, options, nodes, defaults); });
}

class PendingImpl {
 public:
  using Made = Result<std::unique_ptr<Communicator>>;

  explicit PendingImpl(const CommunicatorOptions& options) {
    const SignalsBlocked blocked;  // the new thread inherits the blocked signals
    try {
      // If no device is named, the current CUDA context of this thread determines the GPU.
      const auto context = options.device ? CurrentContext() : CurrentContext::of_this_thread();
      result_ = std::async(std::launch::async, [options, context]() -> Made {
        const auto scope = context.enter();
        if (!scope) return scope.error();
        return Communicator::create(options);
      });
    } catch (...) {
      failed_ = error_of_exception(ErrorScope::kCall, -1,
                                   "no thread can be started (raise the limit of processes or of memory)");
    }
  }
  bool ready() const {
    return !result_.valid() || result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  Made take() {
    if (auto failed = std::exchange(failed_, std::nullopt)) return *std::move(failed);
    if (!result_.valid()) return invalid("wait() of this PendingCommunicator has been called already");
    return result_.get();
  }

 private:
  std::future<Made> result_;
  std::optional<Error> failed_;  // set if the set-up could not be started
};

}  // namespace detail

Result<std::unique_ptr<Communicator>> Communicator::create(const CommunicatorOptions& options) {
  return detail::create(options, {});
}

Result<std::vector<std::unique_ptr<Communicator>>> Communicator::create_all(std::int32_t size,
                                                                            const CommunicatorOptions& options,
                                                                            std::int32_t nodes) {
  return detail::create_all(size, options, nodes, {});
}

PendingCommunicator Communicator::create_async(const CommunicatorOptions& options) {
  std::unique_ptr<detail::PendingImpl> made;
  // If there is no memory for it, `made` stays null, and wait() returns an error.
  runs_through([&] { made = std::make_unique<detail::PendingImpl>(options); });
  return PendingCommunicator(std::move(made));
}

PendingCommunicator::PendingCommunicator(std::unique_ptr<detail::PendingImpl> impl) : impl_(std::move(impl)) {}
PendingCommunicator::PendingCommunicator(PendingCommunicator&&) noexcept = default;
PendingCommunicator& PendingCommunicator::operator=(PendingCommunicator&&) noexcept = default;
PendingCommunicator::~PendingCommunicator() = default;
bool PendingCommunicator::test() const { return impl_ == nullptr || impl_->ready(); }
Result<std::unique_ptr<Communicator>> PendingCommunicator::wait() {
  return guarded("PendingCommunicator::wait", [&]() -> Result<std::unique_ptr<Communicator>> {
    if (impl_ != nullptr) return impl_->take();
    return invalid("this PendingCommunicator was moved away, or there was no memory to begin the set-up");
  });
}

}  // namespace tutti
