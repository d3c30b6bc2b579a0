#include "job/job_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/recording.h"
#include "base/system/boot_id.h"
#include "job/data_paths.h"
#include "job/machine_limits.h"
#include "job/memory_sharing.h"
#include "job/rank_sets.h"
#include "topology/host.h"
#include "transports/checksum/checksum_transport.h"
#include "transports/mixed/mixed_transport.h"
#include "transports/rdma/offload_transport.h"
#include "transports/shm/groups.h"
#include "transports/shm/shm_transport.h"
#include "transports/shm/unix_exchange.h"
#include "transports/tcp/tcp_transport.h"

namespace tutti {
namespace {

Error set_up_error(ErrorCode code, std::string message, std::int32_t rank = -1) {
  return {code, ErrorScope::kCommunicator, rank, std::move(message)};
}

// Two ranks try to share memory if their machine names are equal. It does no harm if two machines have the same
// name, because their ranks cannot connect to each other's Unix sockets, which have random names.
Result<std::string> machine_name(const Config& config) {
  auto boot = boot_id();
  if (!boot) return boot.error();
  return boot->name + "/" + config.node_id;
}

// The settings that are compared during set-up, because they must be equal on all ranks of a job.
std::string common_settings(const Config& config) {
  return fmt::format(
      "TUTTI_SLOTS={} TUTTI_SLOT_BYTES={} TUTTI_TRANSPORT={} TUTTI_UNIFORM={} TUTTI_ENCRYPT={} "
      "TUTTI_CHECKSUM={} TUTTI_SELFTEST={}",
      config.slots, config.slot_bytes ? std::to_string(*config.slot_bytes) : "(not set)", row_of(config.transport).name,
      uniform_name(config.uniform), config.encrypt ? 1 : 0, config.checksum ? 1 : 0, config.selftest ? 1 : 0);
}

// Default slot size of a communicator. RDMA cards need longer slots: with four slots of 128 KiB, a card of 400
// Gbit/s waits for credit after 10 us. Short slots are used if a rank has no RDMA path, if ranks share memory (short
// slots stay in the caches), or if there are so many ranks that the slots would take gigabytes. UCX needs even longer
// slots, because it has a cost for each flush and announcement. Measured: docs/results/2026-11-25-rdma.md.
std::uint32_t default_slot_bytes(const JobContext& job_context, const std::vector<std::uint32_t>& members) {
  // A communicator of more ranks gets short slots, because each rank has 2 * slots * slot_bytes bytes for each lane to
  // each other rank.
  constexpr std::size_t kMostOfLong = 64;
  constexpr std::uint32_t kSlotBytesOfUcx = 1024 * 1024;
  std::set<std::uint32_t> machines;
  for (const std::uint32_t rank : members) {
    if (job_context.path_offers.empty() || job_context.path_offers[rank].empty()) return kSlotBytes;
    machines.insert(job_context.machines[rank]);
  }
  const bool apart = machines.size() == members.size() || network_only(job_context.config.transport);
  if (!apart || members.size() > kMostOfLong) return kSlotBytes;
  const bool longest = job_context.config.transport == TransportPolicy::kUcx && members.size() <= kMostOfLong / 2;
  return longest ? kSlotBytesOfUcx : kRdmaSlotBytes;
}

// Compares common_settings(), which every blob begins with, and removes them from the blobs. Errors: kMismatch,
// naming the first rank that differs from rank 0.
Status compare_settings(std::vector<std::string>& blobs) {
  std::string first;
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    const std::size_t end = blobs[rank].find('|');
    const std::string settings = blobs[rank].substr(0, end);
    blobs[rank].erase(0, end == std::string::npos ? blobs[rank].size() : end + 1);
    if (rank == 0) first = settings;
    if (settings == first) continue;
    return set_up_error(ErrorCode::kMismatch,
                        fmt::format("rank 0 has {}, rank {} has {}: give all ranks the same", first, rank, settings),
                        static_cast<std::int32_t>(rank));
  }
  return {};
}

Result<std::uint32_t> parse_id(const std::string& blob, std::size_t rank) {
  std::uint32_t id = 0;
  const auto [end, error] = std::from_chars(blob.data(), blob.data() + blob.size(), id);
  if (error == std::errc() && end == blob.data() + blob.size()) return id;
  return set_up_error(ErrorCode::kRefused, fmt::format("rank {} published a segment number that cannot be read", rank),
                      static_cast<std::int32_t>(rank));
}

// Finds the machine of every rank: ranks are on one machine if their machine names are equal and they can reach each
// other's Unix sockets. Each blob is a Unix address, '|' and a machine name. Returns for each rank the lowest rank of
// its machine. Sets `addresses` to the Unix addresses of the ranks with this rank's machine name; the others are empty.
Result<std::vector<std::uint32_t>> find_machines(const UnixExchange& exchange, const std::vector<std::string>& blobs,
                                                 std::uint32_t rank, const Gather& gather,
                                                 std::vector<std::string>& addresses) {
  const std::size_t ranks = blobs.size();
  const auto end_of_address = [&](std::size_t r) { return std::min(blobs[r].find('|'), blobs[r].size()); };
  const auto name_of = [&](std::size_t r) { return std::string_view(blobs[r]).substr(end_of_address(r)); };
  addresses.assign(ranks, "");
  for (std::size_t r = 0; r < ranks; ++r) {
    if (name_of(r) == name_of(rank)) addresses[r] = blobs[r].substr(0, end_of_address(r));
  }
  const auto reached = exchange.probe(addresses);
  std::vector<bool> own(ranks, false);
  for (std::size_t r = 0; reached && r < ranks; ++r) own[r] = (*reached)[r] == Reach::kReached;
  auto rows = gather_or_fail(gather, reached ? Result<std::string>(pack_ranks(own)) : reached.error());
  if (!rows) return rows.error();
  std::vector<std::vector<bool>> reaches;
  for (const std::string& row : *rows) reaches.push_back(unpack_ranks(row, ranks));
  return local_groups(reaches);
}

// The shape of the segments of `ranks`, the ranks of one machine, without the space for checksums.
SegmentShape shape_of(const Config& config, const std::vector<std::uint32_t>& ranks) {
  return {.ranks = static_cast<std::uint32_t>(ranks.size()),
          .slots = config.slots,
          .slot_bytes = config.slot_bytes_or(kSlotBytes)};
}

// Ranks that use only the network share no memory, so the limits of shared memory do not apply to them.
Status check_limits(const Config& config, const std::vector<std::uint32_t>& ranks) {
  if (network_only(config.transport)) return check_descriptor_limit(ranks.size(), process_limits());
  return check_machine_limits(shape_of(config, ranks), process_limits());
}

// Returns for each member the number of its machine. Machines are numbered in the order of their first members.
std::vector<std::uint32_t> number_machines(const std::vector<std::uint32_t>& machines,
                                           const std::vector<std::uint32_t>& members) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  std::vector<std::uint32_t> nodes;
  for (const std::uint32_t member : members) {
    nodes.push_back(numbers.try_emplace(machines[member], static_cast<std::uint32_t>(numbers.size())).first->second);
  }
  return nodes;
}

std::string describe_checksums() {
  return fmt::format("every message carries a checksum (CRC-32C by {}), all values travel in slots",
                     crc32c_is_in_hardware() ? "the processor's instruction" : "tables");
}

std::string_view describe_attachment(Attachment attachment) {
  switch (attachment) {
    case Attachment::kNone: return "memory that is not registered is copied through slots";
    case Attachment::kLongCalls: return "long messages are copied straight between the ranks' memory";
    case Attachment::kCalls: return "messages are copied straight between the ranks' memory, by system calls";
    case Attachment::kPointers: return "the ranks are threads of one process and use each other's memory";
  }
  return "";
}

// Creates the transport of one communicator.
class TransportMaker {
 public:
  TransportMaker(const std::shared_ptr<JobContext>& job_context, const std::vector<std::uint32_t>& members,
                 std::uint32_t rank, std::uint64_t communicator, const Gather& gather)
      : job_context_(job_context),
        members_(members),
        rank_(rank),
        communicator_(communicator),
        gather_(gather),
        slot_bytes_(job_context->config.slot_bytes_or(default_slot_bytes(*job_context, members))) {
    const bool remote_only = network_only(job_context->config.transport);
    for (std::uint32_t r = 0; r < members.size(); ++r) {
      const bool here = job_context->machines[members[r]] == job_context->machines[members[rank]];
      const bool local = r == rank || (here && !remote_only);
      local_index_.push_back(local ? static_cast<std::int32_t>(local_.size()) : -1);
      if (local) local_.push_back(r);
    }
  }

  Result<std::unique_ptr<Transport>> make() {
    const std::int64_t deadline_ns =
        job_context_->clock->now_ns() + job_context_->config.setup_timeout.count() * 1'000'000;
    std::vector<std::uint32_t> peers;
    for (const std::uint32_t r : local_) peers.push_back(members_[r]);
    const auto exchange =
        // Shared with the transport and with the windows of registered memory.
        std::make_shared<SubExchange>(job_context_->exchange, std::move(peers));
    const auto index = static_cast<std::uint32_t>(local_index_[rank_]);
    const SegmentShape shape{.ranks = static_cast<std::uint32_t>(local_.size()),
                             .slots = job_context_->config.slots,
                             .slot_bytes = whole_slot_bytes()};
    auto own = OwnSegment::create(index, shape, exchange);
    auto blobs = gather_or_fail(gather_, own ? Result<std::string>(std::to_string(own->id())) : own.error());
    // Take part in the second round in spite of the error, because the ranks of other communicators that are created in
    // the same rounds (by one split()) need it.
    if (!blobs) {
      static_cast<void>(gather_("!"));
      return blobs.error();
    }
    const auto offered_until_all_know = own->offer();
    auto local = open_local(exchange, shape, std::move(*own), *blobs, deadline_ns);
    if (!local) return gather_or_fail(gather_, local.error()).error();
    const std::string found = found_attachment(**local) + pack_cpus(job_context_->cpus);
    ShmTransport* const whole = local_.size() == members_.size() ? local->get() : nullptr;
    auto transport = whole != nullptr
                         ? Result<std::unique_ptr<Transport>>(std::unique_ptr<Transport>(std::move(*local)))
                         : add_remote(std::move(*local));
    // A barrier: no rank leaves set-up before each has mapped the memory of its peers and has made its transport. Each
    // rank also sends how it can attach to other ranks' memory, and the CPUs that it may use.
    auto ready = gather_or_fail(gather_, transport ? Result<std::string>(found) : transport.error());
    if (!ready) return ready.error();
    if (whole != nullptr) whole->set_attachment(agreed_attachment(*ready));
    for (const std::string& blob : *ready) cpus_.push_back(unpack_cpus(std::string_view(blob).substr(!blob.empty())));
    if (!job_context_->config.checksum) return transport;
    return std::unique_ptr<Transport>(
        std::make_unique<ChecksumTransport>(*std::move(transport), rank_, connection_names()));
  }

  // The CPUs that each rank may use, indexed by rank. Valid after make().
  const std::vector<std::vector<bool>>& cpus() const { return cpus_; }

 private:
  Result<std::unique_ptr<ShmTransport>> open_local(const std::shared_ptr<SubExchange>& exchange,
                                                   const SegmentShape& shape, OwnSegment own,
                                                   const std::vector<std::string>& blobs, std::int64_t deadline_ns) {
    std::vector<std::uint32_t> ids;
    for (const std::uint32_t r : local_) {
      auto id = parse_id(blobs[r], r);
      if (!id) return id.error();
      ids.push_back(*id);
    }
    const auto index = static_cast<std::uint32_t>(local_index_[rank_]);
    Clock& clock = *job_context_->clock;
    auto offers =
        collect_offers(*exchange, index, ids, own.segment().mapping(), clock, deadline_ns, gather_.has_failed());
    if (!offers) return in_job_ranks(offers.error());
    auto transport = ShmTransport::create(index, shape, std::move(own), *offers, exchange);
    if (!transport) return in_job_ranks(transport.error());
    return transport;
  }

  // Returns one digit, the number of an Attachment: how this rank can access the other ranks' memory, as far as the
  // settings permit it.
  std::string found_attachment(const ShmTransport& local) const {
    const AttachPolicy policy = job_context_->config.attach;
    Attachment found = policy == AttachPolicy::kOff ? Attachment::kNone : local.find_attachment();
    if (policy == AttachPolicy::kCalls && found != Attachment::kNone) found = Attachment::kCalls;
    return std::to_string(static_cast<int>(found));
  }

  // The best attachment that all ranks of this machine support. An invalid digit counts as none.
  Attachment agreed_attachment(const std::vector<std::string>& blobs) const {
    Attachment agreed = Attachment::kPointers;
    for (const std::uint32_t r : local_) {
      // find() returns npos, which is greater than 3, if the blob is empty or begins with another character.
      const std::size_t digit = std::string_view("0123").find(blobs[r][0]);
      agreed = digit > 3 ? Attachment::kNone : std::min(agreed, static_cast<Attachment>(digit));
    }
    return agreed;
  }

  // Bytes of a slot, including the space for a checksum after the value.
  std::uint32_t whole_slot_bytes() const {
    return slot_bytes_ + (job_context_->config.checksum ? kChecksumSlotBytes : 0);
  }

  // Descriptions of the connections for error messages, indexed by rank.
  std::vector<std::string> connection_names() const {
    std::vector<std::string> connection_names;
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      if (local_index_[r] >= 0) {
        connection_names.emplace_back("shared memory");
        continue;
      }
      // Without the '/' and the listener's nonce that follow (tcp/wire.h): the nonce is for the ranks only.
      const std::string& address = job_context_->tcp_addresses[members_[r]];
      connection_names.push_back(job_context_->path_maker != nullptr ? "the network"
                                                                     : "tcp, " + address.substr(0, address.find('/')));
    }
    return connection_names;
  }

  Result<std::unique_ptr<Transport>> add_remote(std::unique_ptr<ShmTransport> local) {
    TUTTI_ASSERT(job_context_->endpoint != nullptr);
    std::vector<std::string> addresses;
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      addresses.push_back(local_index_[r] >= 0 ? "" : job_context_->tcp_addresses[members_[r]]);
    }
    TcpTransportOptions options;
    options.rank = rank_;
    options.ranks = static_cast<std::uint32_t>(members_.size());
    options.communicator = communicator_;
    options.slots = job_context_->config.slots;
    options.slot_bytes = whole_slot_bytes();
    options.clock = job_context_->clock.get();
    if (job_context_->path_maker != nullptr) return add_offloaded(std::move(local), options, addresses);
    auto remote = TcpTransport::create(options, job_context_->endpoint, addresses);
    if (!remote) return remote.error();
    if (local_.size() == 1) return std::unique_ptr<Transport>(std::move(*remote));
    PollDoorbell& doorbell = (*remote)->doorbell();
    return mix(std::move(local), std::move(*remote), doorbell);
  }

  Result<std::unique_ptr<Transport>> mix(std::unique_ptr<ShmTransport> local, std::unique_ptr<Transport> remote,
                                         PollDoorbell& doorbell) {
    auto mixed = MixedTransport::create(
        {.rank = rank_, .ranks = static_cast<std::uint32_t>(members_.size()), .local_index = local_index_},
        std::move(local), std::move(remote), doorbell);
    if (!mixed) return mixed.error();
    return std::unique_ptr<Transport>(std::move(*mixed));
  }

  // Combines shared memory with an RDMA data path, even if this rank is alone on its machine, because the
  // shared-memory transport manages the registered memory, which the NICs access.
  Result<std::unique_ptr<Transport>> add_offloaded(std::unique_ptr<ShmTransport> local,
                                                   const TcpTransportOptions& options,
                                                   const std::vector<std::string>& addresses) {
    DataPathOptions path{.rank = rank_,
                         .ranks = options.ranks,
                         .slots = options.slots,
                         .slot_bytes = options.slot_bytes,
                         .lanes = options.lanes,
                         .offers = {}};
    for (std::uint32_t r = 0; r < members_.size(); ++r) {
      path.offers.push_back(local_index_[r] >= 0 ? "" : job_context_->path_offers[members_[r]]);
    }
    auto remote = OffloadTransport::create(options, job_context_->endpoint, addresses, [&](const DataPathHost& host) {
      return job_context_->path_maker->make(host, path);
    });
    if (!remote) return remote.error();
    PollDoorbell& doorbell = (*remote)->doorbell();
    return mix(std::move(local), std::move(*remote), doorbell);
  }

  // The shared-memory transport numbers only the ranks of this machine. Translates such a number in an error into the
  // rank of the communicator.
  Error in_job_ranks(Error error) const {
    if (local_.size() == members_.size() || error.rank < 0) return error;
    const std::uint32_t rank = local_[static_cast<std::size_t>(error.rank)];
    error.message += fmt::format(" (rank {} of this machine is rank {} of the communicator)", error.rank, rank);
    error.rank = static_cast<std::int32_t>(rank);
    return error;
  }

  std::shared_ptr<JobContext> job_context_;  // shared with the communicators
  const std::vector<std::uint32_t>& members_;
  std::uint32_t rank_;
  std::uint64_t communicator_;
  const Gather& gather_;
  const std::uint32_t slot_bytes_;
  std::vector<std::int32_t> local_index_;  // indexed by rank: its index in local_; -1 if it is reached by the network
  std::vector<std::uint32_t> local_;       // the ranks that share memory with this one, and this one
  std::vector<std::vector<bool>> cpus_;    // the CPUs that each rank may use, indexed by rank
};

// Opens this rank's TCP endpoint and, if verbs or UCX is selected, the maker of that data path. Returns the data that
// other ranks need to connect: the endpoint's address and, if there is a maker, a '|' and the maker's offer.
Result<std::string> open_network(JobContext& job_context, const std::string& tcp_address, const Key& key) {
  const Config& config = job_context.config;
  auto endpoint = TcpEndpoint::listen({.address = tcp_address,
                                       .first_port = config.port_range.first,
                                       .last_port = config.port_range.last,
                                       .key = key,
                                       .encrypt = config.encrypt});
  if (!endpoint) return endpoint.error();
  job_context.endpoint = *endpoint;
  std::string contact = job_context.endpoint->address();
  auto maker = detail::find_data_path(config, Log(config.log_level, static_cast<std::int32_t>(job_context.job_rank)));
  if (!maker) return maker.error();
  job_context.path_maker = *maker;
  if (job_context.path_maker != nullptr) contact += "|" + job_context.path_maker->offer();
  return contact;
}

}  // namespace

Result<std::shared_ptr<JobContext>> make_job_context(const Config& config, std::uint32_t rank, std::uint32_t ranks,
                                                     const std::string& tcp_address, const Key& key,
                                                     std::int64_t timeout_ms, const Gather& gather,
                                                     const Result<std::shared_ptr<detail::RankDevice>>& device) {
  auto job_context = std::make_shared<JobContext>();
  job_context->config = config;
  job_context->job_rank = rank;
  HostTopology host = discover_host();
  job_context->cpus = std::move(host.cpus);
  job_context->cpu_limit = host.cpu_limit;
  job_context->clock = std::make_shared<SteadyClock>();
  job_context->plan_cache = std::make_shared<VerifiedPlanCache>(config.verify_plans);
  const std::int64_t deadline_ns = job_context->clock->now_ns() + timeout_ms * 1'000'000;
  auto listening = UnixExchange::listen(rank, ranks);
  auto name = machine_name(config);
  auto own_info = listening ? shared_memory_address(config, **listening, rank) : listening.error();
  if (!name) own_info = name.error();
  // The name is the last part, because it contains text from the user, in which a '|' may occur.
  if (own_info) *own_info = common_settings(config) + "|" + *own_info + "|" + *name;
  auto blobs = gather_or_fail(gather, own_info);
  if (!blobs) return blobs.error();
  TUTTI_TRY(compare_settings(*blobs));
  const std::shared_ptr<UnixExchange> exchange = std::move(*listening);  // see JobContext::exchange
  job_context->exchange = exchange;
  std::vector<std::string> addresses;
  auto machines = find_machines(*exchange, *blobs, rank, gather, addresses);
  if (!machines) return machines.error();
  job_context->machines = std::move(*machines);
  std::vector<std::uint32_t> group;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    if (job_context->machines[r] == job_context->machines[rank]) group.push_back(r);
  }
  const bool one_machine = group.size() == ranks;
  if (!one_machine && config.transport == TransportPolicy::kShm) {
    return set_up_error(ErrorCode::kConfig,
                        "TUTTI_TRANSPORT=shm, but the ranks cannot all share memory: they are on several machines, in "
                        "several network namespaces, or have different TUTTI_NODE_IDs; use auto");
  }
  // All ranks of a machine connect to each other at the same time. They get a little less time than the timeout, so
  // that a rank that cannot connect can still report that in the next round.
  const std::int64_t until_ns = deadline_ns - std::min<std::int64_t>(timeout_ms / 4, 1000) * 1'000'000;
  Status connected = check_limits(config, group);
  if (connected) connected = exchange->connect(addresses, group, *job_context->clock, until_ns, gather.has_failed());
  const bool with_tcp = !one_machine || network_only(config.transport);
  Result<std::string> contact = connected.ok() ? Result<std::string>(std::string()) : connected.error();
  if (!device) contact = device.error();
  if (contact.ok() && with_tcp) contact = open_network(*job_context, tcp_address, key);
  if (contact.ok()) contact = (*device != nullptr ? "d" : "-") + *contact;
  auto contacts = gather_or_fail(gather, contact);
  if (!contacts) return contacts.error();
  for (const std::string& one : *contacts) {
    job_context->devices |= one.starts_with('d');
    const std::size_t bar = std::min(one.find('|'), one.size());
    job_context->tcp_addresses.push_back(one.substr(!one.empty(), bar - !one.empty()));
    job_context->path_offers.push_back(one.substr(std::min(bar + 1, one.size())));
  }
  job_context->device = *device;
  return job_context;
}

namespace {

std::unique_ptr<Recorder> make_recorder(JobContext& job_context, const std::vector<std::uint32_t>& members,
                                        std::uint32_t rank, std::uint64_t communicator,
                                        const Environment& environment) {
  if (job_context.first_communicator == 0) job_context.first_communicator = communicator;
  if (job_context.config.record == 0) return nullptr;
  if (job_context.recordings == nullptr)
    job_context.recordings = open_recordings(job_context.config, job_context.job_rank);
  return Recorder::create(job_context.recordings, {.job = job_context.first_communicator,
                                                   .communicator = communicator,
                                                   .rank = rank,
                                                   .ranks = static_cast<std::uint32_t>(members.size()),
                                                   .job_rank = job_context.job_rank,
                                                   .transport = environment.transport->name(),
                                                   .capacity = job_context.config.record});
}

}  // namespace

std::shared_ptr<RecordingFolder> open_recordings(const Config& config, std::uint32_t job_rank) {
  return std::make_shared<RecordingFolder>(recording::folders(config.record_dir, process_environment()),
                                           Log(config.log_level, static_cast<std::int32_t>(job_rank)));
}

Result<Environment> make_environment(const std::shared_ptr<JobContext>& job_context,
                                     const std::vector<std::uint32_t>& members, std::uint32_t rank,
                                     std::uint64_t communicator, const Gather& gather) {
  TransportMaker maker(job_context, members, rank, communicator, gather);
  auto transport = maker.make();
  if (!transport) return transport.error();
  Environment environment{.clock = job_context->clock,
                          .waiter = nullptr,
                          .transport = std::move(*transport),
                          .plan_cache = job_context->plan_cache,
                          .nodes = number_machines(job_context->machines, members),
                          .log = Log(job_context->config.log_level, static_cast<std::int32_t>(rank))};
  // The CPU sets of the ranks of this machine, and those of the ranks of rank 0's machine. All ranks compute the same
  // `first`, so environment.cores is the same on all ranks.
  std::vector<std::vector<bool>> cpus;
  std::vector<std::vector<bool>> first;
  for (std::uint32_t r = 0; r < members.size(); ++r) {
    if (environment.nodes[r] == environment.nodes[rank]) cpus.push_back(maker.cpus()[r]);
    if (environment.nodes[r] == environment.nodes[0]) first.push_back(maker.cpus()[r]);
  }
  environment.cores = cores_of(first, 0);
  const auto here = static_cast<std::uint32_t>(cpus.size());
  const std::uint32_t cores = cores_of(cpus, job_context->cpu_limit);
  environment.waiter = job_context->make_waiter ? job_context->make_waiter()
                                                : std::make_unique<AdaptiveWaiter>(wait_limits(here, cores));
  if (here == members.size()) environment.nodes.clear();
  environment.recorder = make_recorder(*job_context, members, rank, communicator, environment);
  environment.log.write(
      LogLevel::kInfo,
      "rank {} of {}, transport {}; on this machine: {} of the {} ranks, itself included, with {} cores; "
      "{} slots of {} bytes; {}",
      rank, members.size(), environment.transport->name(), here, members.size(), cores, environment.transport->slots(),
      environment.transport->slot_bytes(),
      job_context->config.checksum ? describe_checksums()
                                   : std::string(describe_attachment(environment.transport->attachment())));
  return environment;
}

}  // namespace tutti
